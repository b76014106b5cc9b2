"""The types of a configuration, their defaults, and what each section refuses.

The YAML files under `configs/` say the same defaults with comments for people; a test holds
the two together. Nothing heavy is imported here: a mistake must be answered at once.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from pe_bench.errors import UserError, require
from pe_bench.system.terminal import say

Precision = Literal["auto", "float32", "bfloat16"]
ScorePrecision = Literal["float32", "bfloat16"]
Protocol = Literal["paired", "nonoverlapping", "sliding", "task"]
Slice = Literal["all", "recall", "novel", "key"]  # of the targets
Half = Literal["both", "first", "second"]
Controls = Literal["auto", "all", "none", "offset"]
Sharding = Literal["fsdp"]
OptimizerName = Literal["adamw", "muon"]
Tracker = Literal["tensorboard", "wandb", "mlflow"]
MARGIN = 0.01  # bits per byte; see `report.statistics` on what it is worth
FAILURE = 0.25  # bits per byte; the perplexity of a four-byte token doubles
MIN_PAIRED_LENGTH = 2  # tokens: a target and one that it sees
MAX_DEFAULT_BLOCK = 128
MAX_THREADS = 1_024
DEFAULT_LENGTHS = (0.25, 0.5, 1, 1 + 1 / 32, 1.125, 1.25, 1.5, 2, 4, 8, 16)  # times the training length
NAME = re.compile(r"[\w.+-]+")  # what may stand in the name of a run's folder


@dataclass(frozen=True)
class Section:
    """A group of keys, whose numbers are positive but for those that may be zero."""

    section: ClassVar[str]
    may_be_zero: ClassVar[tuple[str, ...]] = ()
    read_by: ClassVar[dict[str, tuple[str, ...]]] = {}  # the kinds of the section that read a key, if not all

    def check(self) -> None:
        """Raise `UserError` for a value that cannot work."""
        for key in fields(self):
            value, name = getattr(self, key.name), f"{self.section}.{key.name}"
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if key.name in self.may_be_zero:
                require(value >= 0, f"{name} must not be negative, and is {value}")
            else:
                require(value > 0, f"{name} must be positive, not {value}")

    def refuse_unused(self, kind_key: str, name: str) -> None:
        """Raise `UserError` for a key without effect in this kind of section, which is called `name`."""
        for key, kinds in self.read_by.items():
            value = getattr(self, key)
            if getattr(self, kind_key) not in kinds and value != getattr(type(self), key):
                key, kind_key = f"{self.section}.{key}", f"{self.section}.{kind_key}"
                way_out = f"remove it, or choose what has {kind_key}={' or '.join(kinds)}"
                raise UserError(f"{key}={value} has no effect with {self.section}={name}: {way_out}", key)


@dataclass(frozen=True)
class ModelConfig(Section):
    section = "model"
    name: str = "tiny"
    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 4
    d_head: int = 32
    d_ff: int = 344
    tie_embeddings: bool = True
    qk_norm: bool = False

    def check(self) -> None:
        super().check()
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"model.n_heads={self.n_heads} is not divisible by model.n_kv_heads={self.n_kv_heads}: "
            "each key head serves the same number of query heads",
        )


@dataclass(frozen=True)
class DataConfig(Section):
    section = "data"
    read_by = {
        **dict.fromkeys(("path", "text_column"), ("files", "hub")),
        **dict.fromkeys(("validation_path", "encoding"), ("files",)),
        **dict.fromkeys(("subset", "revision"), ("hub",)),
        **dict.fromkeys(("newlines", "max_tokens", "validation_fraction"), ("stdlib", "files", "hub")),
    }
    name: str = "stdlib"
    source: Literal["stdlib", "files", "hub", "task"] = "stdlib"
    path: str | None = None
    validation_path: str | None = None
    subset: str | None = None
    revision: str | None = None
    text_column: str = "text"
    newlines: Literal["universal", "keep"] = "universal"
    encoding: str = "utf-8"
    max_tokens: int | None = None
    validation_fraction: float = 0.2

    def check(self) -> None:
        files, hub = self.source == "files", self.source == "hub"
        needs = f"data={self.name} needs"
        require(not files or self.path is not None, f"{needs} a folder or a file: say data.path=DIR")
        require(not hub or self.path is not None, f"{needs} a dataset: say data.path=OWNER/NAME")
        fraction = self.validation_fraction
        require(0 < fraction <= 1, f"data.validation_fraction must lie between 0 and 1, not {fraction}")
        require(
            self.validation_path is None or fraction == DataConfig.validation_fraction,
            f"data.validation_fraction={fraction} has no effect with data.validation_path: remove one",
        )
        try:
            " ".encode(self.encoding)
        except LookupError as error:
            raise UserError(f"data.encoding={self.encoding} is no encoding of text: utf-8 is one") from error
        super().check()
        self.refuse_unused("source", self.name)


@dataclass(frozen=True)
class TokenizerConfig(Section):
    section = "tokenizer"
    read_by = {"name": ("hub", "file"), "revision": ("hub",), "vocab_size": ("bpe",)}
    kind: Literal["bytes", "bpe", "hub", "file"] = "bytes"
    name: str | None = None
    revision: str | None = None
    vocab_size: int | None = None

    def check(self) -> None:
        hub, file = self.kind == "hub", self.kind == "file"
        named = self.name is not None
        require(not hub or named, "tokenizer=hub needs a name: say tokenizer.name=gpt2")
        require(not file or named, "tokenizer=file needs a file: say tokenizer.name=FOLDER/tokenizer.json")
        self.refuse_unused("kind", self.kind)
        super().check()


@dataclass(frozen=True)
class TrainConfig(Section):
    section, may_be_zero = "train", ("warmup_steps", "weight_decay", "final_lr")
    length: int = 128
    steps: int | None = None
    tokens: int = 1_024_000
    batch_tokens: int = 1_024
    micro_batches: int = 1
    processes: int = 1
    sharding: Sharding | None = None
    timeout: int = 600
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
    beside: str | None = None
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
        super().check()
        length, tokens, source = self.length, self.batch_tokens, self.from_run
        message = f"train.from={source}: training goes on from runs alone; pe-bench eval scores checkpoints"
        require(not (source or "").startswith("hf:"), message)
        message = "train.from and train.beside exclude each other: go on from a run, or start anew beside it"
        require(source is None or self.beside is None, message)
        message = "train.only=encoding goes on from a run whose other weights stay: give train.from=RUN"
        require(source is not None or self.only is None, message)
        require(self.final_lr <= 1, f"train.final_lr is a share of train.lr from 0 to 1, not {self.final_lr}")
        require(
            all(0 <= beta < 1 for beta in self.betas), f"train.betas must lie in [0, 1), not {self.betas}"
        )
        require(length >= 2, f"train.length must be at least 2 tokens, not {length}")
        require(
            tokens % length == 0,
            f"train.batch_tokens={tokens} is not a multiple of train.length={length}: "
            f"try train.batch_tokens={length * max(1, round(tokens / length))}",
        )
        parts = f"train.micro_batches={self.micro_batches}"
        if self.processes > 1:
            parts = f"train.processes={self.processes}" + (
                f" times {parts}" if self.micro_batches > 1 else ""
            )
        require(
            self.batch % (self.processes * self.micro_batches) == 0,
            f"{parts} does not divide the {self.batch} windows of a step "
            f"(train.batch_tokens={tokens} / train.length={length})",
        )


@dataclass(frozen=True)
class EvalConfig(Section):
    section, may_be_zero = "eval", ("seed",)
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
    half: Half = "both"
    seed: int = 0
    first_length: int | None = None

    def resolved_lengths(self, train_length: int) -> list[int]:
        """The lengths to score, in order; the training length is always among them.

        Of the default ones those that are too short to score are left out.
        """
        shortest, first = MIN_PAIRED_LENGTH if self.protocol == "paired" else 1, self.first_length
        usual = [round(times * (first or train_length)) for times in DEFAULT_LENGTHS]
        chosen = self.lengths or [length for length in usual if length >= shortest]
        # Of a later stage also a quarter of its length, which tells whether a model reads that far.
        later = [first, max(train_length // 4, shortest)] if first else []
        return sorted({*chosen, *later, train_length})

    def resolved_max_length(self, train_length: int) -> int:
        return self.max_length or 16 * (self.first_length or train_length)

    def resolved_target_tokens(self, train_length: int) -> int:
        """The tokens in a target block: by default a power of two, which has parts for every length."""
        return (
            self.target_tokens
            or 1 << min(MAX_DEFAULT_BLOCK, self.first_length or train_length).bit_length() - 1
        )

    @property
    def unused(self) -> dict[str, str]:
        """Return the keys that scoring does not read, each with the protocols that read it."""
        protocol, of_each = self.protocol, {"nonoverlapping", "sliding"}
        read_with = {
            "targets": {"paired", "task"},
            "max_length": {"paired", *of_each},
            "target_tokens": {"paired"},
            "stride": {"sliding"},
            "tokens": {*of_each, *([protocol] if self.per_position else [])},
        }
        return {key: " or ".join(sorted(of)) for key, of in read_with.items() if protocol not in of}

    def check(self) -> None:
        super().check()
        protocol, controls = self.protocol, self.controls
        require(self.lengths != [], "eval.lengths is empty: name lengths, or null for the default ones")
        for length in self.lengths or []:
            require(length > 0, f"eval.lengths must be positive whole numbers, and {length} is not")
        require(
            controls not in ("all", "offset") or protocol in ("paired", "task"),
            f"eval.controls={controls} has no effect with eval.protocol={protocol}: "
            "remove it, or set eval.protocol=paired",
        )


@dataclass(frozen=True)
class ReportConfig(Section):
    section = "report"
    margin: float = MARGIN

    def check(self) -> None:
        check_margin(self.margin, "report.margin")


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """The checkpoint that a run scores in place of training a model.

    identity: a hash of its files. train_length_from: the key of its configuration that gave `train.length`.
    begin: the token that stands first in each window. layers: how many have the run's encoding; others keep
    theirs. plain: it keeps transformers' own attention. architecture: such as Llama.
    """

    section = "checkpoint"
    source: str
    identity: str
    train_length_from: str
    revision: str | None = None
    begin: int | None = None
    layers: int | None = None
    plain: bool = False
    architecture: str = ""


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

    @property
    def first_length(self) -> int:
        """The training length of the first stage; the default lengths to score are multiples of it."""
        return self.eval.first_length or self.train.length

    def check(self) -> None:
        """Raise `UserError` for what cannot work; each text says the value and the way out."""
        for section in (self.model, self.data, self.tokenizer):
            section.check()
        self._check_task()
        if self.checkpoint is None:
            self.train.check()
        for section in (self.eval, self.report):
            section.check()
        shortest = min(self.eval.resolved_lengths(self.train.length))
        require(
            self.eval.protocol != "paired" or shortest >= MIN_PAIRED_LENGTH,
            f"length {shortest} is too short for eval.protocol=paired: "
            f"choose {MIN_PAIRED_LENGTH} tokens or more",
        )
        require(self.seed >= 0, f"seed must not be negative, and is {self.seed}")
        require(
            self.threads == "auto" or (isinstance(self.threads, int) and 0 < self.threads <= MAX_THREADS),
            f"threads must be auto or a positive whole number up to {MAX_THREADS}, not {self.threads!r}",
        )
        require(
            self.device in ("auto", "cpu") or self.device.split(":")[0] == "cuda",
            f"device must be auto, cpu, cuda or cuda:N, not {self.device!r}",
        )
        require(
            self.train.processes == 1 or ":" not in self.device,
            f"device={self.device} is one GPU, but train.processes={self.train.processes} "
            "needs one for each: say device=cuda",
        )

    def _check_task(self) -> None:
        """Raise `UserError` where only some of the data, the task and the protocol are those of a task."""
        protocol, name = f"eval.protocol={self.eval.protocol}", f"data={self.data.name}"
        if self.data.source != "task":
            require(self.task is None, f"a task has examples of its own: leave {name} out")
            message = f"{protocol} scores answers, and {name} has none: leave it out"
            require(self.eval.protocol != "task", message)
            return
        require(self.task is not None, "data=task needs a task: say task=NAME, such as task=majority")
        message = f"{protocol} scores text, and a task has answers: leave it out"
        require(self.eval.protocol == "task", message)
        require(
            self.tokenizer.kind == "bytes" or self.checkpoint is not None,
            f"a task has tokens of its own: leave tokenizer={self.tokenizer.kind} out",
        )
        message = "a task is not scored by position: leave eval.per_position out"
        require(not self.eval.per_position, message)
        controls = self.eval.controls
        message = f"eval.controls={controls} changes the context of text, which a task lacks: leave it out"
        require(controls in ("auto", "none"), message)


KEYS = tuple(field.name for field in fields(Config) if field.name not in ("search", "checkpoint"))
SECTIONS: dict[str, type[Section]] = {
    kind.section: kind
    for kind in (ModelConfig, DataConfig, TokenizerConfig, TrainConfig, EvalConfig, ReportConfig)
}
# `from` is a word of Python's, and so cannot name a field.
FIELD_OF_KEY = {"train.from": "from_run"}
KEY_OF_FIELD = {field: key for key, field in FIELD_OF_KEY.items()}


def check_margin(margin: float, key: str) -> None:
    """Raise `UserError` for a margin that leaves nothing between holding and failing."""
    message = f"{key} must be above 0 and below {FAILURE} bits per byte (failing), not {margin}"
    require(0 < margin < FAILURE, message)


def warn_unused(evaluations: Sequence[EvalConfig], keys: Sequence[str]) -> None:
    """Say which of the keys that a command names no scoring of its runs reads."""
    first = evaluations[0]
    for key, protocols in first.unused.items():
        value = getattr(first, key)
        is_unused = all(key in evaluation.unused for evaluation in evaluations)
        if f"eval.{key}" in keys and is_unused and value != getattr(EvalConfig, key):
            chosen = f"eval.protocol={first.protocol}"
            say(f"warning: eval.{key}={value} has no effect with {chosen}: it is for {protocols}")
