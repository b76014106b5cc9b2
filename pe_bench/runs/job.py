"""A run while it is trained or scored; its name has a hash of all values that change its weights."""

import dataclasses
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.schema import Config, ModelConfig, TrainConfig

if TYPE_CHECKING:  # names of runs need no PyTorch
    import torch

    from pe_bench.data.packed import Data
    from pe_bench.model.decoder import LanguageModel
    from pe_bench.runs.folder import FirstStage

# Raise it when a default or the effect of a default changes, because the identity leaves defaults out.
IDENTITY_VERSION = 4

# Keys that the identity leaves out. Names, the frequency of writing and validation, and the division of work
# among processes change no weights. In place of the keys that decide the number of steps, it has this number.
NOT_IDENTITY = (
    *("name", "steps", "tokens", "log_every", "validate_every", "validation_tokens", "checkpoint_every"),
    *("processes", "sharding", "timeout"),
)
NOT_SETTING = ("from_run", "beside", "micro_batches")  # fields of `TrainConfig` that the setting leaves out


@dataclass(frozen=True)
class Job:
    """A run that is trained or scored; for a Hugging Face model, only scored."""

    config: Config
    folder: Path
    setting: str  # the hash that `setting` returns: runs with one setting may be compared
    label: str  # the label of the trained encoding, in tables
    scored_with: str  # the label of the encoding in `model`
    device: "torch.device"
    dtype: "torch.dtype"  # the type of matrix products in training
    threads: int
    data: "Data"
    model: "LanguageModel"
    # The first stage that the run descends from; None if the run is a first stage itself.
    first: "FirstStage | None" = None
    # The folder of the parent from whose weights training starts. `train.prepare` loads the weights, and puts
    # their checkpoint in its place, or None if the training has begun or ended.
    start: Path | None = None
    kept: dict[str, Any] | None = None  # the facts of the parent for source.json
    missing: str = ""  # why the parent was not found
    tokens_per_second: float = 0.0  # the pace of the run's training
    forced: bool = False  # `scored_with` is not compatible with the trained encoding

    @property
    def train_dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def identity(
    config: Config, data_hash: str, train_dtype: str, encoding_options: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the values that decide a run's weights, without values that equal their defaults.

    data_hash: the hash of the tokenized text, which is the same in any folder. encoding_options: the options
    of each part of the encoding, without options that equal the constructors' defaults. A parent is
    represented by its name when it was trained, even if its folder was renamed.
    """
    train = _changed_values(config.train, TrainConfig())
    train["steps"] = config.train.total_steps
    source = train.pop("source", None)
    if source is not None:
        train["from_run" if config.train.from_run else "beside"] = source
    return {
        "version": IDENTITY_VERSION,
        "encoding": encoding_options,
        "seed": config.seed,
        "model": _changed_values(config.model, ModelConfig()),
        "train": train,
        "data": data_hash,
        "precision": train_dtype,
    }


def run_name(config: Config, identity: dict[str, Any]) -> str:
    """Return the name of a run: its encoding, its seed and the hash of its identity."""
    modifiers = config.encoding.get("modifiers") or {}
    encoding = "+".join([config.encoding["name"], *modifiers])
    return f"{encoding}-s{config.seed}-{hashed(identity)}"


def setting(identity: dict[str, Any]) -> str:
    """Return the hash of an identity without encoding and seed: runs with one setting may be compared.

    Two more values are left out: the parent's name, because it contains a seed, and `micro_batches`.
    """
    parts = {**identity, "train": _without_keys(identity["train"], NOT_SETTING)}
    return hashed(_without_keys(parts, ("encoding", "seed")))


def hashed(value: Any) -> str:
    """Return the first eight digits of a hash of plain values."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _changed_values(section: Any, defaults: Any) -> dict[str, Any]:
    """Return the values of a configuration's section that change weights and differ from their defaults."""
    values = _without_keys(dataclasses.asdict(section), NOT_IDENTITY)
    default = dataclasses.asdict(defaults)
    return {key: value for key, value in values.items() if value != default[key]}


def _without_keys(values: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
