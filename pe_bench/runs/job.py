"""A run at work, whose name follows from its content: a hash of everything that changes its weights."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.schema import Config, ModelConfig, TrainConfig

if TYPE_CHECKING:  # names of runs need no PyTorch
    import torch

    from pe_bench.data.packed import Data
    from pe_bench.model.decoder import LanguageModel
    from pe_bench.runs.folder import FirstStage

# It rises with a change of the defaults, which the identity leaves out, or of what they do.
IDENTITY_VERSION = 4

# Names are for people, and how often something is written changes no weights. Steps stand in place of
# what they were computed from.
NOT_IDENTITY = (
    *("name", "steps", "tokens", "log_every", "validate_every", "validation_tokens", "checkpoint_every"),
    *("processes", "sharding", "timeout"),
)
NOT_SETTING = ("from_run", "beside", "micro_batches")


@dataclass(frozen=True)
class Job:
    """A run that is trained or scored: one of ours, or a checkpoint's, which needs no training."""

    config: Config
    folder: Path
    setting: str  # the hash of all of the run but its encoding and seed
    label: str  # the name in tables of the encoding that it is trained with
    scored_with: str  # the name of the encoding in `model`
    device: "torch.device"
    dtype: "torch.dtype"  # that matrices are multiplied in while training
    threads: int
    data: "Data"
    model: "LanguageModel"
    first: "FirstStage | None" = None  # of its family, where the run is not that itself
    source: Path | None = None  # the run whose weights its training starts from; then their checkpoint
    kept: dict[str, Any] | None = None  # what the run keeps of its source, in source.json
    missing: str = ""  # why the source was not found
    tokens_per_second: float = 0.0  # of its training
    forced: bool = False  # `scored_with` is not compatible with what was trained

    @property
    def train_dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def identity(
    config: Config, data_hash: str, train_dtype: str, encoding_options: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what makes a run this run. Values that equal their defaults are left out.

    The data are represented by the hash of what was tokenized, wherever it lay. A source is represented by
    the name that it was trained under, whatever its folder is called now. `encoding_options` are the parts
    of the encoding, without options that equal the constructors' defaults.
    """
    train = {**_changed(config.train, TrainConfig()), "steps": config.train.total_steps}
    source = train.pop("source", None)
    if source is not None:
        train["from_run" if config.train.from_run else "beside"] = source
    return {
        "version": IDENTITY_VERSION,
        "encoding": encoding_options,
        "seed": config.seed,
        "model": _changed(config.model, ModelConfig()),
        "train": train,
        "data": data_hash,
        "precision": train_dtype,
    }


def run_name(config: Config, identity: dict[str, Any]) -> str:
    parts = [config.encoding["name"], *(config.encoding.get("modifiers") or {})]
    return f"{'+'.join(parts)}-s{config.seed}-{hashed(identity)}"


def setting(identity: dict[str, Any]) -> str:
    """Return the hash of all but encoding and seed: runs with one setting may be compared.

    Nor has it the name of a source, which has a seed, nor in how many parts a step is computed.
    """
    train = {key: value for key, value in identity["train"].items() if key not in NOT_SETTING}
    parts = {key: value for key, value in identity.items() if key not in ("encoding", "seed")}
    return hashed({**parts, "train": train})


def hashed(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _changed(section: Any, defaults: Any) -> dict[str, Any]:
    values, default = dataclasses.asdict(section), dataclasses.asdict(defaults)
    return {key: value for key, value in values.items() if value != default[key] and key not in NOT_IDENTITY}
