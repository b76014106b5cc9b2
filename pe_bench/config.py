"""What a configuration may hold: the types, the defaults, and the checks that need no data.

The YAML files under `configs/` say the same defaults with comments for people; a test holds
the two together. Nothing heavy is imported here: a mistake must be told at once.
"""

import dataclasses
import difflib
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pe_bench.errors import UserError

T = TypeVar("T")
Precision = Literal["auto", "float32", "bfloat16"]
Protocol = Literal["paired", "nonoverlapping", "sliding"]
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
    tokens: int = 65_536
    batch_tokens: int = 16_384
    seed: int = 0

    def resolved_lengths(self, train_length: int) -> list[int]:
        """The lengths to score, in order; the training length is always among them."""
        chosen = self.lengths or [round(times * train_length) for times in DEFAULT_LENGTHS]
        return sorted({*chosen, train_length})

    def resolved_max_length(self, train_length: int) -> int:
        return self.max_length or 16 * train_length

    def resolved_target_tokens(self, train_length: int) -> int:
        return self.target_tokens or max(1, min(32, train_length // 8))


@dataclass(frozen=True)
class Config:
    """One run, resolved: no interpolation is left and every value has its type."""

    encoding: dict[str, Any]
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    seed: int = 0
    precision: Precision = "auto"
    threads: str | int = "auto"
    device: str = "auto"
    results_dir: str = "results"
    cache_dir: str | None = None


SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
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
            parsed[key] = check_type(value, hints[key], key)
        else:
            raise UserError(unknown(key, "key", hints))
    if "encoding" not in parsed:
        raise UserError("no encoding is named: say encoding=rope, or `pe-bench list encodings`")
    config = Config(**parsed)
    _check_model(config.model)
    _check_train(config.train)
    _check_eval(config.eval, config.train.length)
    _check_run(config)
    return config


def to_plain(config: Config) -> dict[str, Any]:
    """The opposite of `parse_config`: plain values under the keys that people type."""
    values = dataclasses.asdict(config)
    for key, field_name in FIELD_OF_KEY.items():
        section, name = key.split(".")
        values[section][name] = values[section].pop(field_name)
    values["train"]["betas"] = list(values["train"]["betas"])
    return values


def _parse_section(section: type[T], values: dict[str, Any], name: str) -> T:
    hints = typing.get_type_hints(section)
    known = {KEY_OF_FIELD.get(field_name, f"{name}.{field_name}") for field_name in hints}
    parsed = {}
    for key, value in values.items():
        full = f"{name}.{key}"
        if full not in known:
            raise UserError(unknown(full, "key", known))
        field_name = FIELD_OF_KEY.get(full, key)
        parsed[field_name] = check_type(value, hints[field_name], full)
    return section(**parsed)


def unknown(word: str, kind: str, known: typing.Iterable[str]) -> str:
    """`unknown key 'x': did you mean 'y'?`, or the words there are when none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known)}"
    return f"unknown {kind} '{word}': {hint}"


def check_type(value: Any, wanted: Any, key: str) -> Any:
    """`value` as the type `wanted`, or a `UserError` that names the key, the value and the type.

    Whole floats pass for integers (YAML reads `1e6` as a float) and integers for floats.
    """
    converted = _convert(value, wanted)
    if converted is _WRONG:
        raise UserError(f"{key} must be {_describe(wanted)}, not {value!r}")
    return converted


_WRONG = object()


def _convert(value: Any, wanted: Any) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _first(_convert(value, one) for one in sorted(arguments, key=_strictness))
    if origin is Literal:
        return value if value in arguments else _WRONG
    if origin in (list, tuple):
        return _convert_sequence(value, origin, arguments)
    if origin is dict or wanted is dict:
        return dict(value) if isinstance(value, dict) else _WRONG
    if wanted is Any:
        return value
    if wanted is type(None):
        return None if value is None else _WRONG
    if wanted is bool:
        return value if isinstance(value, bool) else _WRONG
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _WRONG
    if wanted is int:
        return int(value) if not isinstance(value, str) and value == value // 1 else _WRONG
    if wanted is float:
        return float(value) if not isinstance(value, str) and math.isfinite(value) else _WRONG
    return str(value) if wanted is str else _WRONG


def _convert_sequence(value: Any, origin: type, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, (list, tuple)):
        return _WRONG
    wanted = arguments if origin is tuple else arguments * len(value)
    if len(wanted) != len(value):
        return _WRONG
    converted = [_convert(one, kind) for one, kind in zip(value, wanted, strict=True)]
    return _WRONG if any(one is _WRONG for one in converted) else origin(converted)


def _first(candidates: typing.Iterable[Any]) -> Any:
    return next((one for one in candidates if one is not _WRONG), _WRONG)


def _strictness(wanted: Any) -> int:
    """`str` last: it accepts numbers too, so that `tokenizer.name=123` is a name."""
    return 1 if wanted is str else 0


def _describe(wanted: Any) -> str:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(one) for one in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        return "a list of " + " and ".join(_describe(one) for one in arguments)
    if origin is list:
        return f"a list, each {_describe(arguments[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(wanted, "null" if wanted is type(None) else getattr(wanted, "__name__", str(wanted)))


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def _positive(section: Any, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(value is None or value > 0, f"{prefix}.{name} must be positive, not {value}")


def _check_model(model: ModelConfig) -> None:
    _positive(model, "model", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")
    require(
        model.n_heads % model.n_kv_heads == 0,
        f"model.n_heads={model.n_heads} is not divisible by model.n_kv_heads={model.n_kv_heads}: "
        "each key head serves the same number of query heads",
    )


def _check_train(train: TrainConfig) -> None:
    _positive(train, "train", "length", "steps", "tokens", "batch_tokens", "micro_batches", "lr", "clip")
    _positive(train, "train", "log_every", "validate_every", "validation_tokens", "checkpoint_every")
    require(train.warmup_steps >= 0, f"train.warmup_steps must not be negative, and is {train.warmup_steps}")
    require(train.weight_decay >= 0, f"train.weight_decay must not be negative, and is {train.weight_decay}")
    require(
        0 <= train.final_lr <= 1, f"train.final_lr is a share of train.lr from 0 to 1, not {train.final_lr}"
    )
    require(all(0 <= beta < 1 for beta in train.betas), f"train.betas must lie in [0, 1), not {train.betas}")
    require(train.length >= 2, f"train.length must be at least 2 tokens, not {train.length}")
    require(
        train.batch_tokens % train.length == 0,
        f"train.batch_tokens={train.batch_tokens} is not a multiple of train.length={train.length}: "
        f"try train.batch_tokens={train.length * max(1, round(train.batch_tokens / train.length))}",
    )
    require(
        train.batch % train.micro_batches == 0,
        f"train.micro_batches={train.micro_batches} does not divide the {train.batch} windows of a step",
    )


def _check_eval(evaluation: EvalConfig, train_length: int) -> None:
    _positive(
        evaluation, "eval", "max_length", "targets", "target_tokens", "stride", "tokens", "batch_tokens"
    )
    for length in evaluation.lengths or []:
        require(length > 0, f"eval.lengths must be positive whole numbers, and {length} is not")
    if evaluation.protocol == "paired":
        shortest = min(evaluation.resolved_lengths(train_length))
        block = evaluation.resolved_target_tokens(train_length)
        require(
            shortest >= 2 * block,
            f"length {shortest} is too short for target blocks of {block} tokens (at least {2 * block}): "
            f"score longer lengths, or set eval.target_tokens={max(1, shortest // 2)}",
        )


def _check_run(config: Config) -> None:
    require(config.seed >= 0, f"seed must not be negative, and is {config.seed}")
    if config.threads != "auto":
        require(
            isinstance(config.threads, int) and config.threads > 0,
            f"threads must be auto or a positive whole number, not {config.threads!r}",
        )
    require(
        config.device in ("auto", "cpu") or config.device.split(":")[0] == "cuda",
        f"device must be auto, cpu, cuda or cuda:N, not {config.device!r}",
    )
    files = config.data.source == "files"
    require(
        not files or config.data.path is not None, "data=files needs a folder or a file: say data.path=DIR"
    )
    fraction = config.data.validation_fraction
    require(0 < fraction < 1, f"data.validation_fraction must lie between 0 and 1, not {fraction}")
    hub = config.tokenizer.kind == "hub"
    require(
        not hub or config.tokenizer.name is not None, "tokenizer=hub needs a name: say tokenizer.name=gpt2"
    )


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
