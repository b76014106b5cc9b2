"""What a configuration may hold: the types and the defaults, from plain values and back.

The YAML files under `configs/` say the same defaults with comments for people; a test holds
the two together. Nothing heavy is imported here: a mistake must be told at once.
"""

import dataclasses
import math
import os
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pe_bench.checking import check_type, shown, unknown
from pe_bench.config_checks import check_config
from pe_bench.errors import UserError, require

T = TypeVar("T")
Precision = Literal["auto", "float32", "bfloat16"]
ScorePrecision = Literal["float32", "bfloat16"]
SHORT_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
Protocol = Literal["paired", "nonoverlapping", "sliding"]
Controls = Literal["auto", "all", "none"]
Tracker = Literal["tensorboard", "wandb", "mlflow"]
DEFAULT_LENGTHS = (0.25, 0.5, 1, 1.5, 2, 4, 8, 16)  # times the training length


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
    source: Literal["stdlib", "files", "hub"] = "stdlib"
    path: str | None = None
    validation_path: str | None = None
    subset: str | None = None
    revision: str | None = None
    text_column: str = "text"
    max_tokens: int | None = None
    validation_fraction: float = 0.2


@dataclass(frozen=True)
class TokenizerConfig:
    kind: Literal["bytes", "bpe", "hub"] = "bytes"
    name: str | None = None
    revision: str | None = None
    vocab_size: int | None = None


@dataclass(frozen=True)
class TrainConfig:
    length: int = 128
    steps: int | None = None
    tokens: int = 1_024_000
    batch_tokens: int = 4_096
    micro_batches: int = 1
    processes: int = 1
    shard: bool = False
    lr: float = 3e-3
    final_lr: float = 0.1
    warmup_steps: int = 25
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    log_every: int = 10
    validate_every: int = 50
    validation_tokens: int = 32_768
    checkpoint_every: int = 50
    from_run: str | None = None

    @property
    def total_steps(self) -> int:
        """`steps` where it is set, else what `tokens` comes to."""
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
    targets: int = 192
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
        shortest = 2 * self.resolved_target_tokens(train_length) if self.protocol == "paired" else 1
        usual = [round(times * train_length) for times in DEFAULT_LENGTHS]
        chosen = self.lengths or [length for length in usual if length >= shortest]
        return sorted({*chosen, train_length})

    def resolved_max_length(self, train_length: int) -> int:
        return self.max_length or 16 * train_length

    def resolved_target_tokens(self, train_length: int) -> int:
        return self.target_tokens or max(1, min(32, train_length // 8))


@dataclass(frozen=True)
class ReportConfig:
    margin: float = 0.01


@dataclass(frozen=True)
class Config:
    """One run, resolved: no interpolation is left and every value has its type."""

    encoding: dict[str, Any]
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
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


def config_dir() -> Path:
    """The folder of shipped YAML: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def parse_config(values: dict[str, Any]) -> Config:
    """A checked `Config` from plain values, as YAML gives them.

    Raises `UserError` for an unknown key, a value of the wrong type or one that cannot work.
    """
    parsed: dict[str, Any] = {}
    hints = typing.get_type_hints(Config)
    for key, value in values.items():
        if key in SECTIONS:
            parsed[key] = _parse_section(SECTIONS[key], value, key)
        elif key in hints:
            parsed[key] = _parse_value(value, hints[key], key)
        else:
            raise UserError(unknown(key, "key", hints))
    if "encoding" not in parsed:
        raise UserError("no encoding is named: say encoding=rope, or `pe-bench list encodings`")
    config = _with_home(Config(**parsed))
    check_config(config)
    return config


def to_plain(config: Config) -> dict[str, Any]:
    """The opposite of `parse_config`: plain values under the keys that people type."""
    values = dataclasses.asdict(config)
    for key, field_name in FIELD_OF_KEY.items():
        section, name = key.split(".")
        values[section][name] = values[section].pop(field_name)
    values["train"]["betas"] = list(values["train"]["betas"])
    return values


def _parse_section(section: type[T], values: Any, name: str) -> T:
    if not isinstance(values, dict):
        first = next(iter(to_plain(Config(encoding={}))[name]))
        raise UserError(f"{name} is a group of keys and cannot be {shown(values)}: say {name}.{first}=VALUE")
    hints = typing.get_type_hints(section)
    known = {KEY_OF_FIELD.get(field_name, f"{name}.{field_name}") for field_name in hints}
    parsed = {}
    for key, value in values.items():
        full = f"{name}.{key}"
        if full not in known:
            raise UserError(unknown(full, "key", known))
        field_name = str(FIELD_OF_KEY.get(full, key))
        parsed[field_name] = _parse_value(value, hints[field_name], full)
    return section(**parsed)


def _parse_value(value: Any, wanted: Any, key: str) -> Any:
    require(value != "", f"{key} is empty: give it a value, or leave it out")
    if wanted in (Precision, ScorePrecision) and isinstance(value, str):
        value = SHORT_PRECISIONS.get(value, value)
    return check_type(value, wanted, key)


def _with_home(config: Config) -> Config:
    """`~` in paths stands for the user's folder; a shell leaves it as it is inside KEY=VALUE."""

    def expanded(path: str | None) -> str | None:
        return None if path is None else os.path.expanduser(path)

    data = config.data
    if data.source == "files":
        paths = {"path": expanded(data.path), "validation_path": expanded(data.validation_path)}
        data = dataclasses.replace(data, **paths)
    folders = {"results_dir": expanded(config.results_dir), "cache_dir": expanded(config.cache_dir)}
    return dataclasses.replace(config, data=data, **folders)


def parse_lengths(text: str) -> list[int]:
    """`512,2048` as numbers. Raises `UserError` for anything but positive whole ones."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        require(
            word.isdecimal() and int(word) > 0,
            f"--lengths takes positive whole numbers, and '{word}' is not one",
        )
    return [int(word) for word in words]


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
