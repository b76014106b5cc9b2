"""A run that is set up: what training, scoring and their processes need to know of it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from pe_bench.config.schema import Config


@dataclass(frozen=True)
class Setup:
    """A run's configuration and folder, with the device, the precision and the threads of its work.

    Its data are no part of it: each process that trains loads them itself.
    """

    config: Config
    run: Path
    setting: str  # the hash of all of the run but its encoding and seed
    label: str  # the name of its encoding in tables
    device: torch.device
    dtype: torch.dtype  # that matrices are multiplied in while training
    threads: int

    @property
    def train_dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")
