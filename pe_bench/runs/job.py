"""A run at work: its folder, configuration, data and model, with the device that it uses."""

from dataclasses import dataclass
from pathlib import Path

import torch

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.folder import FirstStage


@dataclass(frozen=True)
class Job:
    """A run that is trained or scored: one of ours, or a checkpoint's, which needs no training."""

    config: Config
    folder: Path
    setting: str  # the hash of all of the run but its encoding and seed
    label: str  # the name in tables of the encoding that it is trained with
    scored_with: str  # the name of the encoding in `model`
    device: torch.device
    dtype: torch.dtype  # that matrices are multiplied in while training
    threads: int
    data: Data
    model: LanguageModel
    first: FirstStage | None = None  # of its family, where the run is not that itself
    source: Path | None = None  # the run whose weights its training starts from; then their checkpoint
    tokens_per_second: float = 0.0  # of its training
    forced: bool = False  # `scored_with` is not compatible with what was trained

    @property
    def train_dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")
