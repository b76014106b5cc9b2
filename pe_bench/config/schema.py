"""The types of a configuration, their defaults, and the checks of each section.

The YAML files under `configs/` have the same defaults with comments for people; a test compares the two. This
file imports no heavy package, so that mistakes are reported at once.
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
Slice = Literal["all", "recall", "novel", "key"]  # the slices of the targets
Half = Literal["both", "first", "second"]
Controls = Literal["auto", "all", "none", "offset"]
Threads = Literal["auto"] | Annotated[int, Range(1, 1_024)]
MARGIN = 0.01  # bits per byte; `report.statistics` explains its size
# Ends the label of a tokenizer that does not give a text back: its levels are nats per token.
LOSES_TEXT = " (loses text)"
FAILURE = 0.25  # bits per byte; the perplexity of a four-byte token doubles
MIN_PAIRED_LENGTH = 2  # tokens: a target and a token before it
MAX_DEFAULT_BLOCK_TOKENS = 128
DEFAULT_LENGTHS = (0.25, 0.5, 1, 1 + 1 / 32, 1.125, 1.25, 1.5, 2, 4, 8, 16)  # times the training length
MACHINE_KEYS = ("threads", "device", "cache_dir")  # they change no result, like Hydra's own keys
NAME = re.compile(r"[\w.+-]+")  # characters for the name of a run's folder
# The section `Config.hf_model` in the files of runs, which older runs have under this name too.
HF_SECTION = "checkpoint"
# Fields with another name than their key: `from` is a keyword of Python and cannot name a field.
FIELD_OF_KEY = {"train.from": "from_run", HF_SECTION: "hf_model"}
KEY_OF_FIELD = {field: key for key, field in FIELD_OF_KEY.items()}


@dataclass(frozen=True)
class ModelConfig:
    """The section `model`: the sizes of the decoder. configs/model/tiny.yaml explains each key."""

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
        """Raise `UserError` for values that do not fit together."""
        message = f"model.n_heads={self.n_heads} is not divisible by model.n_kv_heads={self.n_kv_heads}"
        is_divisible = self.n_heads % self.n_kv_heads == 0
        require(is_divisible, f"{message}: each key head serves the same number of query heads")


@dataclass(frozen=True)
class DataConfig:
    """The section `data`: the text. configs/data/files.yaml explains each key."""

    name: str = "stdlib"
    source: Literal["stdlib", "files", "hub", "task"] = "stdlib"
    path: str | None = None
    validation_path: str | None = None
    subset: str | None = None  # the configuration of a dataset on the Hub
    revision: str | None = None
    text_column: str = "text"
    newlines: Literal["universal", "keep"] = "universal"  # universal: every line end is read as a line feed
    encoding: str = "utf-8"
    max_tokens: AtLeast1 | None = None
    validation_fraction: Fraction = 0.2
    validation_documents: AtLeast1 = 1

    def check(self) -> None:
        needs = {
            "files": "a folder or a file: say data.path=DIR",
            "hub": "a dataset: say data.path=OWNER/NAME",
        }
        missing = needs.get(self.source) if self.path is None else None
        require(missing is None, f"data={self.name} needs {missing}")
        message = f"data.path={self.path} is not read with data={self.name}: say data=files, or leave it out"
        is_read = self.path is None or self.source in needs
        require(is_read, message)
        try:
            " ".encode(self.encoding)
        except LookupError as error:
            raise UserError(f"data.encoding={self.encoding} is no encoding of text: utf-8 is one") from error


@dataclass(frozen=True)
class TokenizerConfig:
    """The section `tokenizer`: how text becomes tokens. configs/tokenizer/*.yaml explain each key."""

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
    """The section `train`. configs/train.yaml explains each key."""

    length: AtLeast2 = 128
    steps: Natural | None = None  # 0 for a Hugging Face model
    tokens: AtLeast1 = 1_024_000
    batch_tokens: AtLeast1 = 1_024
    micro_batches: AtLeast1 = 1
    processes: AtLeast1 = 1
    sharding: Literal["fsdp"] | None = None
    timeout: AtLeast1 = 600  # seconds without a sign of another process, after which the run ends
    optimizer: Literal["adamw", "muon"] = "muon"
    lr: Positive = 5e-3
    encoding_lr: Positive | None = None
    final_lr: Share = 0.1
    warmup_steps: Natural = 100
    weight_decay: NotNegative = 0.1
    betas: tuple[Share, Share] = (0.9, 0.95)
    clip: Positive = 1.0  # the largest norm of a step's gradient
    log_every: AtLeast1 = 10
    validate_every: AtLeast1 = 200
    validation_tokens: AtLeast1 = 32_768
    checkpoint_every: AtLeast1 = 200
    from_run: str | None = None  # the parent run, from whose weights training starts
    beside: str | None = None  # the run beside which tables show this run
    # The name under which the run of `from_run` or `beside` was trained, if its folder has another name now.
    source: str | None = None
    only: Literal["encoding"] | None = None  # which parameters are trained; None for all

    @property
    def total_steps(self) -> int:
        """The number of steps: `steps` if given, else as many as `tokens` needs."""
        if self.steps is not None:
            return self.steps
        return math.ceil(self.tokens / self.batch_tokens)

    @property
    def batch(self) -> int:
        """The number of windows in one step."""
        return self.batch_tokens // self.length

    @property
    def validation_windows(self) -> int:
        """The number of windows in one validation."""
        return max(1, self.validation_tokens // self.length)

    def check(self) -> None:
        require(self.steps != 0, "train.steps must be a whole number of at least 1, not 0")
        require(max(self.betas) < 1, f"train.betas must be below 1, not {self.betas}")
        message = "train.from and train.beside exclude each other: go on from a run, or start anew beside it"
        require(self.from_run is None or self.beside is None, message)
        message = "train.only=encoding goes on from a run whose other weights stay: give train.from=RUN"
        require(self.from_run is not None or self.only is None, message)

    def check_batch(self) -> None:
        """Raise `UserError` if the batch is not made of whole windows, an equal number in each part."""
        message = f"train.batch_tokens={self.batch_tokens} is not a multiple of train.length={self.length}"
        is_multiple = self.batch_tokens % self.length == 0
        require(is_multiple, f"{message}: give one")
        message = f"train.processes={self.processes} times train.micro_batches={self.micro_batches} does not "
        windows = f"divide the {self.batch} windows of a step (train.batch_tokens / train.length)"
        parts = self.processes * self.micro_batches
        require(self.batch % parts == 0, message + windows)


@dataclass(frozen=True)
class EvalConfig:
    """The section `eval`: what is scored. configs/train.yaml explains each key."""

    lengths: list[AtLeast1] | None = None
    max_length: AtLeast1 | None = None
    protocol: Protocol = "paired"
    targets: AtLeast1 = 128
    target_tokens: AtLeast1 | None = None
    stride: AtLeast1 | None = None
    controls: Controls = "auto"
    per_position: bool = False  # whether position curves are scored
    tokens: AtLeast1 = 65_536
    batch_tokens: AtLeast1 = 4_096
    precision: Literal["float32", "bfloat16"] = "float32"
    half: Half = "both"  # the half of the validation documents that is scored
    seed: Natural = 0
    first_length: AtLeast1 | None = None  # the training length of a later stage's first stage

    def resolved_lengths(self, train_length: int) -> list[int]:
        """The lengths to score, in order, the training length among them.

        Default lengths that are too short to score are left out.
        """
        shortest = MIN_PAIRED_LENGTH if self.protocol == "paired" else 1
        first = self.first_length
        usual = [round(times * (first or train_length)) for times in DEFAULT_LENGTHS]
        chosen = self.lengths or [length for length in usual if length >= shortest]
        # A later stage is also scored at a quarter of its length, to see gains from far text.
        later = [first, max(quarter_of(train_length), shortest)] if first else []
        return sorted({*chosen, *later, train_length})

    def resolved_max_length(self, train_length: int) -> int:
        """The length up to which all lengths have the same targets.

        By default it is 16 times the training length, of the first stage if there are several.
        """
        return self.max_length or 16 * (self.first_length or train_length)

    def resolved_target_tokens(self, train_length: int) -> int:
        """The tokens of a target block: by default a power of two, which short windows score in parts."""
        room = min(MAX_DEFAULT_BLOCK_TOKENS, self.first_length or train_length)
        return self.target_tokens or largest_power_of_two(room)


def quarter_of(train_length: int) -> int:
    """Return a quarter of the training length.

    A model is judged beyond its training length only if it improves from this length to it.
    """
    return round(train_length / 4)


def largest_power_of_two(most: int) -> int:
    """Return the largest power of two that is not above `most`; `most` is 1 or more."""
    return 1 << most.bit_length() - 1


@dataclass(frozen=True)
class ReportConfig:
    """The section `report`: how results are judged."""

    margin: float = MARGIN  # a change of up to this many bits per byte counts as none


# The version of a Hugging Face model's identity: raised when the same files get other scores than before.
# From 2 on, a text begins with all tokens of the tokenizer's template, a scaling grows from the length that
# transformers reads, and the identity covers all files that are read. From 3 on, the control `window` leaves
# the first tokens visible.
HF_IDENTITY_VERSION = 3
BY_COMMAND = "the command"  # `HfModelConfig.train_length_from` for a length that the command gave


@dataclass(frozen=True)
class HfModelConfig:
    """The Hugging Face model that a run scores, in place of training a model."""

    source: str  # the address: hf:FOLDER with an absolute path, or hf:OWNER/NAME
    identity: str  # a hash of its files
    train_length_from: str  # the key of the model's configuration that gave `train.length`
    revision: str | None = None
    begin: int | list[int] | None = None  # the id, or the ids, of the first tokens of each window
    layers: int | None = None  # the number of layers with the run's encoding; other layers keep their own
    plain: bool = False  # the model keeps the attention of transformers
    architecture: str = ""  # such as Llama
    without_attention: int = 0  # the number of layers without attention
    unused_scaling: str | None = None  # a scaling in the model's configuration that no layer uses
    identity_version: int = 1  # HF_IDENTITY_VERSION at the time of scoring; older scores may differ
    # The training length, if changes are measured from another `train.length`.
    train_length: int | None = None
    rounding: str | None = None  # the types to which the weights of a GGUF file were rounded

    @property
    def first_token_ids(self) -> list[int]:
        """Return the ids of the tokens with which every window begins."""
        if isinstance(self.begin, list):
            return self.begin
        return [] if self.begin is None else [self.begin]


@dataclass(frozen=True)
class Config:
    """The configuration of one run, without interpolations, and with every value in its type."""

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
    tag: str | None = None  # a label of the run's experiment; no part of the run's name
    hf_model: HfModelConfig | None = None  # no key: the section of runs that score a Hugging Face model
    search: tuple[Path, ...] = ()  # no key: the folders of --config-dir, with files of encodings
    # No key: the keys that a command gives, which keep their values in place of a parent's.
    given: tuple[str, ...] = field(default=(), compare=False)

    @property
    def first_length(self) -> int:
        """The training length of the first stage; the default lengths to score are multiples of it."""
        return self.eval.first_length or self.train.length

    @property
    def trained_length(self) -> int:
        """The length at which the weights were trained, for scalings."""
        stated = None if self.hf_model is None else self.hf_model.train_length
        return stated or self.train.length

    def check(self, *, is_trained: bool = True) -> None:
        """Raise `UserError` for values that cannot work, with a way out.

        is_trained: the model is trained, so that the batch is checked too.
        """
        for section in (self.model, self.data, self.tokenizer):
            section.check()
        check_margin(self.report.margin, "report.margin")
        if self.hf_model is None:
            self.train.check()
            if is_trained:
                self.train.check_batch()
            self._require_training_text()
        protocol = self.eval.protocol
        task = (self.task or {}).get("name", "null")
        are_for_task = {self.task is not None, self.data.source == "task", protocol == "task"}
        message = f"data={self.data.name} and eval.protocol={protocol} do not fit task={task}"
        way_out = "say task=NAME, such as task=majority, and leave the two others out"
        require(len(are_for_task) == 1, f"{message}: {way_out}")
        shortest = min(self.eval.resolved_lengths(self.train.length))
        message = f"length {shortest} is too short for eval.protocol=paired: choose 2 tokens or more"
        require(protocol != "paired" or shortest >= MIN_PAIRED_LENGTH, message)
        _check_part(self.encoding, "encoding")
        _check_name(self.encoding.get("name"), "encoding.name")
        is_name = self.tag is None or NAME.fullmatch(self.tag)
        require(bool(is_name), f"tag={self.tag}: a tag may contain only letters, digits and . + - _")

    def _require_training_text(self) -> None:
        """Raise `UserError` if all documents are for validation; a dataset of the Hub may have its own."""
        is_cut = self.data.source in ("stdlib", "files") and self.data.validation_path is None
        message = "data.validation_fraction=1 leaves no text to train on: give less than 1"
        require(not is_cut or self.data.validation_fraction < 1, message)


FIELDS_NOT_IN_FILES = ("search", "given")  # fields of `Config` that a configuration's file does not have
# Fields of `Config` that no key of a command sets.
FIELDS_WITHOUT_KEYS = (*FIELDS_NOT_IN_FILES, "hf_model")
KEYS = tuple(field.name for field in fields(Config) if field.name not in FIELDS_WITHOUT_KEYS)
CONFIG_TYPES = get_type_hints(Config)
SECTIONS: dict[str, Any] = {name: kind for name, kind in CONFIG_TYPES.items() if is_dataclass(kind)}


def keys_of_sections() -> Iterator[str]:
    """Yield every key of a section, such as `train.length`."""
    for name, section in SECTIONS.items():
        for field_name in section.__match_args__:
            yield KEY_OF_FIELD.get(field_name, f"{name}.{field_name}")


def check_margin(margin: float, key: str) -> None:
    """Raise `UserError` for a margin that is not between 0 and the change that counts as failing."""
    message = f"{key} must be above 0 and below {FAILURE} bits per byte (failing), not {margin}"
    require(0 < margin < FAILURE, message)


def _check_part(part: Mapping[str, Any], key: str) -> None:
    """Raise `UserError` for an encoding or a modifier without a class or with an unfit modifier."""
    if not isinstance(name := part.get("class"), str):
        raise UserError(f"{key}.class must be text such as file.py:Class, not {shown(name)}")
    modifiers = check_type(part.get("modifiers") or {}, dict, f"{key}.modifiers")
    for name, modifier in modifiers.items():
        _check_name(name, "a modifier's name")
        own_key = f"{key}.modifiers.{name}"
        _check_part(check_type(modifier, dict, own_key), own_key)


def _check_name(name: Any, key: str) -> None:
    """Raise `UserError` for the name of an encoding or a modifier that cannot be in a folder's name."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        message = f"{key} must be letters, digits and the signs . + - _, not {shown(name)}"
        raise UserError(f"{message}: it names the run's folder")
