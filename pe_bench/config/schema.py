"""The types of a configuration and their defaults.

The YAML files under `configs/` say the same defaults with comments for people; a test holds
the two together. Nothing heavy is imported here: a mistake must be answered at once.
"""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Precision = Literal["auto", "float32", "bfloat16"]
ScorePrecision = Literal["float32", "bfloat16"]
Protocol = Literal["paired", "nonoverlapping", "sliding", "task"]
Slice = Literal["all", "recall", "novel", "key"]  # of the targets
Controls = Literal["auto", "all", "none", "offset"]
OptimizerName = Literal["adamw", "muon"]
Tracker = Literal["tensorboard", "wandb", "mlflow"]
MARGIN = 0.01  # bits per byte; see `report.statistics` on what it is worth
FAILURE = 0.25  # bits per byte; the perplexity of a four-byte token doubles
MIN_PAIRED_LENGTH = 2  # tokens: a target and one that it sees
MAX_DEFAULT_BLOCK = 128
DEFAULT_LENGTHS = (0.25, 0.5, 1, 1 + 1 / 32, 1.125, 1.25, 1.5, 2, 4, 8, 16)  # times the training length


@dataclass(frozen=True)
class ModelConfig:
    name: str = "tiny"
    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 4
    d_head: int = 32
    d_ff: int = 344
    tie_embeddings: bool = True


@dataclass(frozen=True)
class DataConfig:
    name: str = "stdlib"
    source: Literal["stdlib", "files", "hub", "task"] = "stdlib"
    path: str | None = None
    validation_path: str | None = None
    subset: str | None = None
    revision: str | None = None
    text_column: str = "text"
    newlines: Literal["universal", "keep"] = "universal"
    max_tokens: int | None = None
    validation_fraction: float = 0.2


@dataclass(frozen=True)
class TokenizerConfig:
    kind: Literal["bytes", "bpe", "hub", "file"] = "bytes"
    name: str | None = None
    revision: str | None = None
    vocab_size: int | None = None


@dataclass(frozen=True)
class TrainConfig:
    length: int = 128
    steps: int | None = None
    tokens: int = 1_024_000
    batch_tokens: int = 1_024
    micro_batches: int = 1
    processes: int = 1
    optimizer: OptimizerName = "muon"
    lr: float = 5e-3
    encoding_lr: float | None = None
    final_lr: float = 0.1
    warmup_steps: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    log_every: int = 10
    validate_every: int = 200
    validation_tokens: int = 32_768
    checkpoint_every: int = 200
    from_run: str | None = None

    @property
    def total_steps(self) -> int:
        """`steps` where it is set, else as many as `tokens` need."""
        return self.steps if self.steps is not None else math.ceil(self.tokens / self.batch_tokens)

    @property
    def batch(self) -> int:
        """Windows in one step."""
        return self.batch_tokens // self.length


@dataclass(frozen=True)
class EvalConfig:
    lengths: list[int] | None = None
    max_length: int | None = None
    protocol: Protocol = "paired"
    targets: int = 128
    target_tokens: int | None = None
    stride: int | None = None
    controls: Controls = "auto"
    per_position: bool = False
    tokens: int = 65_536
    batch_tokens: int = 4_096
    precision: ScorePrecision = "float32"
    seed: int = 0

    def resolved_lengths(self, train_length: int) -> list[int]:
        """The lengths to score, in order; the training length is always among them.

        Of the default ones those that are too short to score are left out.
        """
        shortest = MIN_PAIRED_LENGTH if self.protocol == "paired" else 1
        usual = [round(times * train_length) for times in DEFAULT_LENGTHS]
        chosen = self.lengths or [length for length in usual if length >= shortest]
        return sorted({*chosen, train_length})

    def resolved_max_length(self, train_length: int) -> int:
        return self.max_length or 16 * train_length

    def resolved_target_tokens(self, train_length: int) -> int:
        """The tokens in a target block: by default a power of two, which has parts for every length."""
        return self.target_tokens or 1 << min(MAX_DEFAULT_BLOCK, train_length).bit_length() - 1


@dataclass(frozen=True)
class ReportConfig:
    margin: float = MARGIN


@dataclass(frozen=True)
class CheckpointConfig:
    """The checkpoint that a run scores in place of training a model.

    identity: a hash of its files. train_length_from: the key of its configuration that gave `train.length`.
    begin: the token that stands first in each window. layers: how many have the run's encoding; others keep
    theirs. plain: it keeps transformers' own attention.
    """

    source: str
    identity: str
    train_length_from: str
    revision: str | None = None
    begin: int | None = None
    layers: int | None = None
    plain: bool = False


@dataclass(frozen=True)
class Config:
    """One run, resolved: no interpolation is left and every value has its type."""

    encoding: dict[str, Any]
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    task: dict[str, Any] | None = None  # its name and its options, of data=task
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    seed: int = 0
    precision: Precision = "auto"
    threads: str | int = "auto"
    device: str = "auto"
    results_dir: str = "results"
    cache_dir: str | None = None
    tracker: Tracker | None = None
    checkpoint: CheckpointConfig | None = None  # no key: the section of runs that score a checkpoint
    search: tuple[Path, ...] = ()  # no key: the folders of --config-dir, in which an encoding's file may lie


KEYS = tuple(field.name for field in fields(Config) if field.name not in ("search", "checkpoint"))
SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    "report": ReportConfig,
}
# `from` is a word of Python's, and so cannot name a field.
FIELD_OF_KEY = {"train.from": "from_run"}
KEY_OF_FIELD = {field: key for key, field in FIELD_OF_KEY.items()}
