"""The types of a configuration, their defaults, and what each section refuses.

The YAML files under `configs/` say the same defaults with comments for people; a test holds
the two together. Nothing heavy is imported here: a mistake must be answered at once.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pe_bench.errors import UserError, require
from pe_bench.values import (
    AtLeast1,
    AtLeast2,
    Fraction,
    Natural,
    NotNegative,
    Positive,
    Range,
    Share,
    check_type,
    shown,
)

Precision = Literal["auto", "float32", "bfloat16"]
Protocol = Literal["paired", "nonoverlapping", "sliding", "task"]
Slice = Literal["all", "recall", "novel", "key"]  # of the targets
Half = Literal["both", "first", "second"]
Controls = Literal["auto", "all", "none", "offset"]
Threads = Literal["auto"] | Annotated[int, Range(1, 1_024)]
MARGIN = 0.01  # bits per byte; see `report.statistics` on what it is worth
# Ends the label of a tokenizer that does not give a text back: its levels are nats per token.
LOSES_TEXT = " (loses text)"
FAILURE = 0.25  # bits per byte; the perplexity of a four-byte token doubles
MIN_PAIRED_LENGTH = 2  # tokens: a target and one that it sees
MAX_DEFAULT_BLOCK = 128
DEFAULT_LENGTHS = (0.25, 0.5, 1, 1 + 1 / 32, 1.125, 1.25, 1.5, 2, 4, 8, 16)  # times the training length
MACHINE_KEYS = ("threads", "device", "cache_dir")  # beside Hydra's keys; none changes a result
NAME = re.compile(r"[\w.+-]+")  # what may stand in the name of a run's folder
FIELD_OF_KEY = {"train.from": "from_run"}  # `from` is a word of Python's, and cannot name a field
KEY_OF_FIELD = {field: key for key, field in FIELD_OF_KEY.items()}


@dataclass(frozen=True)
class ModelConfig:
    name: str = "tiny"
    d_model: AtLeast1 = 128
    n_layers: AtLeast1 = 4
    n_heads: AtLeast1 = 4
    n_kv_heads: AtLeast1 = 4
    d_head: AtLeast1 = 32
    d_ff: AtLeast1 = 344
    tie_embeddings: bool = True
    qk_norm: bool = False

    def check(self) -> None:
        """Raise `UserError` for values that do not fit, as the `check` of each section does."""
        message = f"model.n_heads={self.n_heads} is not divisible by model.n_kv_heads={self.n_kv_heads}"
        is_divisible = self.n_heads % self.n_kv_heads == 0
        require(is_divisible, f"{message}: each key head serves the same number of query heads")


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
    encoding: str = "utf-8"
    max_tokens: AtLeast1 | None = None
    validation_fraction: Fraction = 0.2
    validation_documents: AtLeast1 = 1

    def check(self) -> None:
        needs = {
            "files": "a folder or a file: say data.path=DIR",
            "hub": "a dataset: say data.path=OWNER/NAME",
        }
        has_path = self.path is not None or self.source not in needs
        require(has_path, f"data={self.name} needs {needs.get(self.source)}")
        message = f"data.path={self.path} is not read with data={self.name}: say data=files, or leave it out"
        require(self.path is None or self.source in needs, message)
        try:
            " ".encode(self.encoding)
        except LookupError as error:
            raise UserError(f"data.encoding={self.encoding} is no encoding of text: utf-8 is one") from error


@dataclass(frozen=True)
class TokenizerConfig:
    kind: Literal["bytes", "bpe", "hub", "file"] = "bytes"
    name: str | None = None
    revision: str | None = None
    vocab_size: AtLeast1 | None = None

    def check(self) -> None:
        examples = {"hub": "gpt2", "file": "FOLDER/tokenizer.json"}
        has_name = self.name is not None or self.kind not in examples
        message = f"tokenizer={self.kind} needs a name: say tokenizer.name={examples.get(self.kind)}"
        require(has_name, message)


@dataclass(frozen=True)
class TrainConfig:
    length: AtLeast2 = 128
    steps: Natural | None = None  # 0 for a checkpoint
    tokens: AtLeast1 = 1_024_000
    batch_tokens: AtLeast1 = 1_024
    micro_batches: AtLeast1 = 1
    processes: AtLeast1 = 1
    sharding: Literal["fsdp"] | None = None
    timeout: AtLeast1 = 600
    optimizer: Literal["adamw", "muon"] = "muon"
    lr: Positive = 5e-3
    encoding_lr: Positive | None = None
    final_lr: Share = 0.1
    warmup_steps: Natural = 100
    weight_decay: NotNegative = 0.1
    betas: tuple[Share, Share] = (0.9, 0.95)
    clip: Positive = 1.0
    log_every: AtLeast1 = 10
    validate_every: AtLeast1 = 200
    validation_tokens: AtLeast1 = 32_768
    checkpoint_every: AtLeast1 = 200
    from_run: str | None = None
    beside: str | None = None
    source: str | None = None
    only: Literal["encoding"] | None = None

    @property
    def total_steps(self) -> int:
        """`steps` where it is set, else as many as `tokens` need."""
        return self.steps if self.steps is not None else math.ceil(self.tokens / self.batch_tokens)

    @property
    def batch(self) -> int:
        """Windows in one step."""
        return self.batch_tokens // self.length

    def check(self) -> None:
        require(self.steps != 0, "train.steps must be a whole number of at least 1, not 0")
        require(max(self.betas) < 1, f"train.betas must be below 1, not {self.betas}")
        message = "train.from and train.beside exclude each other: go on from a run, or start anew beside it"
        require(self.from_run is None or self.beside is None, message)
        message = "train.only=encoding goes on from a run whose other weights stay: give train.from=RUN"
        require(self.from_run is not None or self.only is None, message)
        message = f"train.batch_tokens={self.batch_tokens} is not a multiple of train.length={self.length}"
        require(self.batch_tokens % self.length == 0, f"{message}: give one")
        message = f"train.processes={self.processes} times train.micro_batches={self.micro_batches} does not "
        windows = f"divide the {self.batch} windows of a step (train.batch_tokens / train.length)"
        require(self.batch % (self.processes * self.micro_batches) == 0, message + windows)


@dataclass(frozen=True)
class EvalConfig:
    lengths: list[AtLeast1] | None = None
    max_length: AtLeast1 | None = None
    protocol: Protocol = "paired"
    targets: AtLeast1 = 128
    target_tokens: AtLeast1 | None = None
    stride: AtLeast1 | None = None
    controls: Controls = "auto"
    per_position: bool = False
    tokens: AtLeast1 = 65_536
    batch_tokens: AtLeast1 = 4_096
    precision: Literal["float32", "bfloat16"] = "float32"
    half: Half = "both"
    seed: Natural = 0
    first_length: AtLeast1 | None = None

    def resolved_lengths(self, train_length: int) -> list[int]:
        """The lengths to score, in order; the training length is always among them.

        Of the default ones those that are too short to score are left out.
        """
        shortest = MIN_PAIRED_LENGTH if self.protocol == "paired" else 1
        first = self.first_length
        usual = [round(times * (first or train_length)) for times in DEFAULT_LENGTHS]
        chosen = self.lengths or [length for length in usual if length >= shortest]
        # Of a later stage also a quarter of its length, which tells whether a model reads that far.
        later = [first, max(quarter_of(train_length), shortest)] if first else []
        return sorted({*chosen, *later, train_length})

    def resolved_max_length(self, train_length: int) -> int:
        return self.max_length or 16 * (self.first_length or train_length)

    def resolved_target_tokens(self, train_length: int) -> int:
        """The tokens in a target block: by default a power of two, which has parts for every length."""
        room = min(MAX_DEFAULT_BLOCK, self.first_length or train_length)
        return self.target_tokens or largest_power_of_two(room)


def quarter_of(train_length: int) -> int:
    """Return the length from which a model must gain up to its training length, for gains beyond to count."""
    return round(train_length / 4)


def largest_power_of_two(most: int) -> int:
    """Return the largest power of two up to a number of at least 1."""
    return 1 << most.bit_length() - 1


@dataclass(frozen=True)
class ReportConfig:
    margin: float = MARGIN


# Of the rule that gives a checkpoint's identity: raised where the same files have other scores than before.
# From 2 on, a text begins with all tokens of the tokenizer's template, a scaling grows from the length that
# transformers reads, and no file is read that the identity does not cover. From 3 on, the control `window`
# leaves the first tokens visible.
CHECKPOINT_IDENTITY = 3
BY_COMMAND = "the command"  # says at what length a checkpoint was trained, in the place of its configuration


@dataclass(frozen=True)
class CheckpointConfig:
    """The checkpoint that a run scores in place of training a model.

    identity: a hash of its files. train_length_from: the key of its configuration that gave `train.length`.
    begin: the tokens that stand first in each window, or the only one. layers: how many have the run's
    encoding; others keep theirs. plain: it keeps transformers' own attention. architecture: such as Llama.
    without_attention: how many layers have none. unused_scaling: a scaling of rotations in its configuration
    by which no layer turns. identity_version: of the rule that gave the identity; scores of an older one may
    differ from today's. train_length: at which it was trained, where `train.length` is another length that
    changes are measured from. rounding: the types that the weights of a GGUF file were rounded to.
    """

    source: str
    identity: str
    train_length_from: str
    revision: str | None = None
    begin: int | list[int] | None = None
    layers: int | None = None
    plain: bool = False
    architecture: str = ""
    without_attention: int = 0
    unused_scaling: str | None = None
    identity_version: int = 1
    train_length: int | None = None
    rounding: str | None = None

    @property
    def begins(self) -> list[int]:
        if isinstance(self.begin, list):
            return self.begin
        return [] if self.begin is None else [self.begin]


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
    seed: Natural = 0
    precision: Precision = "auto"
    threads: Threads = "auto"
    device: str = "auto"
    results_dir: str = "results"
    cache_dir: str | None = None
    tracker: Literal["tensorboard", "wandb", "mlflow"] | None = None
    tag: str | None = None  # of an experiment that the run belongs to, and no part of its name
    checkpoint: CheckpointConfig | None = None  # no key: the section of runs that score a checkpoint
    search: tuple[Path, ...] = ()  # no key: the folders of --config-dir, in which an encoding's file may lie

    @property
    def first_length(self) -> int:
        """The training length of the first stage; the default lengths to score are multiples of it."""
        return self.eval.first_length or self.train.length

    @property
    def trained_length(self) -> int:
        """The length that the weights were trained at, from which scalings follow."""
        stated = None if self.checkpoint is None else self.checkpoint.train_length
        return stated or self.train.length

    def check(self) -> None:
        """Raise `UserError` for what cannot work; each text says the value and the way out."""
        for section in (self.model, self.data, self.tokenizer):
            section.check()
        check_margin(self.report.margin, "report.margin")
        if self.checkpoint is None:
            self.train.check()
        protocol = self.eval.protocol
        task = (self.task or {}).get("name", "null")
        require(
            (self.task is not None) == (self.data.source == "task") == (protocol == "task"),
            f"data={self.data.name} and eval.protocol={protocol} do not fit task={task}: "
            "say task=NAME, such as task=majority, and leave the two others out",
        )
        shortest = min(self.eval.resolved_lengths(self.train.length))
        message = f"length {shortest} is too short for eval.protocol=paired: choose 2 tokens or more"
        require(protocol != "paired" or shortest >= MIN_PAIRED_LENGTH, message)
        _check_part(self.encoding, "encoding")
        _check_name(self.encoding.get("name"), "encoding.name")
        is_name = self.tag is None or NAME.fullmatch(self.tag) is not None
        require(is_name, f"tag={self.tag}: a tag has letters, digits and the signs . + - _ alone")


KEYS = tuple(field.name for field in fields(Config) if field.name not in ("search", "checkpoint"))
SECTIONS: dict[str, Any] = {name: kind for name, kind in get_type_hints(Config).items() if is_dataclass(kind)}


def keys_of_sections() -> Iterator[str]:
    """Yield every key of a section, such as `train.length`."""
    for name, section in SECTIONS.items():
        yield from (KEY_OF_FIELD.get(key, f"{name}.{key}") for key in section.__match_args__)


def check_margin(margin: float, key: str) -> None:
    """Raise `UserError` for a margin that leaves nothing between holding and failing."""
    message = f"{key} must be above 0 and below {FAILURE} bits per byte (failing), not {margin}"
    require(0 < margin < FAILURE, message)


def _check_part(part: Mapping[str, Any], key: str) -> None:
    """Raise `UserError` for an encoding or a modifier without a class, and for modifiers of unfit names."""
    if not isinstance(name := part.get("class"), str):
        raise UserError(f"{key}.class must be text such as file.py:Class, not {shown(name)}")
    for name, modifier in check_type(part.get("modifiers") or {}, dict, f"{key}.modifiers").items():
        _check_name(name, "a modifier's name")
        _check_part(check_type(modifier, dict, f"{key}.modifiers.{name}"), f"{key}.modifiers.{name}")


def _check_name(name: Any, key: str) -> None:
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        message = f"{key} must be letters, digits and the signs . + - _, not {shown(name)}"
        raise UserError(f"{message}: it names the run's folder")
