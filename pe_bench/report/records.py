"""The contents of a report: tables of lines, and for each line a record at each scored length."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pe_bench.config.schema import LOSES_TEXT
from pe_bench.report.statistics import MARGIN, Interval
from pe_bench.runs.find import HF_PREFIX, TRIGRAM, is_hf_name
from pe_bench.runs.rows import ALL, HALF, PROBE, TASK, Row
from pe_bench.system.cost import count

# The space before an option of a label, whose values may hold spaces.
BEFORE_AN_OPTION = re.compile(r"\s+(?=[\w.]+=)")
PlotValues = Literal["levels", "change"]  # the numbers that pictures draw
NEAR_RATIO = 1.25  # over the last length that works: the next length is named only if it is further away
SEVERAL_HF_MODELS = "Hugging Face models"  # stands for the name of the model where there are several

# Why weights count as not learned at their training length: they are surely worse than the trigram of the
# same tokens (trigram), not even surely better than token frequencies (frequencies), or not sure to solve
# their task (task).
Unlearned = Literal["", "trigram", "frequencies", "task"]


@dataclass(frozen=True)
class Measure:
    """The quantity of a table's levels."""

    name: str  # the name in a heading
    unit: str  # the unit on an axis
    meaning: str  # the words in a title
    higher_is_better: bool = False


BITS = Measure("bits/byte", "bits per byte", "bits per byte (lower is better)")
NATS = Measure("nats/token", "nats per token", "nats per token (lower is better)")
EXACT = Measure(
    "exact",
    "exact match",
    "exact match: the share of examples all of whose answers are right (higher is better)",
    higher_is_better=True,
)


@dataclass(frozen=True)
class Number:
    """A mean over seeds and documents with its 95 % interval, or the reason why there is none."""

    mean: float | None = None  # the mean in bits per byte; of a task, in shares of examples
    interval: Interval | None = None
    missing: str = ""  # why the mean or the interval is missing
    segments: int = 1  # the number of parts into which each document was cut for the interval
    # The interval for only these models, not for other seeds; None for one seed.
    of_models: Interval | None = None
    of_seeds: tuple[Interval, ...] = ()  # the interval of each seed's model alone; empty for one seed
    target_hash: str = ""  # the hash of the set of targets
    targets: int = 0  # the size of the set
    # On a difference from a baseline: better, same, worse or unclear; empty without an interval.
    verdict: str = ""


@dataclass(frozen=True)
class ContextUse:
    """The answers of the controls at one length about the context beyond the training length.

    Gains are in bits per byte: the level of a control minus the level without it.
    """

    uses_context: str = ""  # yes, no or unclear; empty where use cannot be judged
    beats_window: str = ""  # yes, no or unclear; n/a for a windowed encoding, empty without the control
    swap_gain: Interval | None = None  # the gain over far context from another document
    window_gain: Interval | None = None  # the gain over layers that see only as many tokens as in training
    missing: str = ""  # why `uses_context` is empty


@dataclass(frozen=True)
class Answers:
    """Shares of a task's examples and answers that are right at a length, from 0 to 1."""

    exact: Interval  # the share of examples without a wrong answer
    accuracy: Interval  # the share of right answers
    chance: float  # the accuracy of guessing


@dataclass(frozen=True)
class Record:
    """A line at a length: its levels, and the change with its verdict. Unknown numbers are None."""

    length: int
    status: str = "ok"  # as in `Row`
    reason: str = ""  # why there is no level
    # Bits per byte, or shares of a task's right examples: one for each seed, in the order of the runs' names.
    levels: tuple[float, ...] = ()
    level: float | None = None  # the mean of the levels
    perplexity: float | None = None
    compared: Number = Number()  # the change against the training length, on the largest set of all seeds
    changes: tuple[float, ...] = ()  # the change of each seed
    verdict: str = ""  # undefined without a number, empty without an interval or below the training length
    verdict_of_models: str = ""  # the verdict for only these models, not for other seeds; empty for one seed
    verdicts_of_seeds: tuple[str, ...] = ()  # empty for one seed
    target_hash: str = ""  # the hash of the levels' targets; `targets` and `documents` are of the same set
    targets: int = 0
    documents: int = 0
    stride: int | None = None
    peak_memory_mb: float | None = None
    # The difference from the table's baseline; None in a table without one, and for the baseline itself.
    baseline: Number | None = None
    use: ContextUse | None = None  # None if no control was scored
    answers: Answers | None = None  # the answers of a task

    @property
    def change(self) -> float | None:
        return self.compared.mean

    @property
    def interval(self) -> Interval | None:
        return self.compared.interval


@dataclass(frozen=True)
class BreakPoint:
    """The length at which a line breaks, and the lengths up to which it holds and works.

    `holds_to` and `works_to` are the training length if the next length breaks, 0 if the training length
    breaks itself, as it may with an encoding that was not trained, and None if no longer length was judged,
    or if a task breaks at the shortest scored length and was not scored at the training length.
    """

    # at: the line breaks at `length`; by: there or at an unclear length before; unclear: from there on;
    # none: the line does not break up to there.
    kind: Literal["at", "by", "unclear", "none", "unknown"] = "unknown"
    length: int | None = None
    holds_to: int | None = None  # the last length up to which the line surely holds
    # The last length before the line breaks, or surely breaks these models or each of them, or cannot be
    # scored; other unclear lengths count as working.
    works_to: int | None = None
    stops_by: int | None = None  # the next length after `works_to`; None if there is none, or no verdict

    @property
    def works_to_text(self) -> str:
        """Return the last length that works: `256`.

        If the next scored length that does not work is far away, return both: `256 to 512`.

        Empty if no length was judged.
        """
        if self.works_to is None:
            return ""
        if self.works_to == 0:
            return "not at all"
        works = f"{self.works_to:,}"
        return f"{works} to {self.stops_by:,}" if self.has_gap else works

    @property
    def predicate(self) -> str:
        """Return `works_to_text` as the predicate of a sentence about an encoding."""
        if self.works_to is None:
            return "works to an unknown length"
        if self.works_to == 0:
            return "does not work at the training length"
        if self.has_gap:
            return f"works at {self.works_to:,} and no longer at {self.stops_by:,}"
        return f"works to {self.works_to:,}"

    @property
    def has_gap(self) -> bool:
        """Return whether the first length that does not work is far from the last length that works."""
        if not self.works_to or self.stops_by is None:
            return False
        return self.stops_by > NEAR_RATIO * self.works_to

    def __str__(self) -> str:
        if self.length is None:
            return self.kind
        texts = {
            "at": f"{self.length:,}",
            "by": f"≤ {self.length:,}",
            "unclear": f"none; unclear from {self.length:,}",
            "none": f"none up to {self.length:,}",
        }
        return texts[self.kind]

    @property
    def breaks_at(self) -> int | None:
        """Return the first length that degrades or fails; None without such a length."""
        return self.length if self.kind in ("at", "by") else None


@dataclass(frozen=True)
class Position:
    """The levels of targets in one range of places of their window; each range has text of its own."""

    context: float  # tokens that a target of the range sees, on average
    levels: tuple[float, ...]  # bits per byte, one for each seed


@dataclass(frozen=True)
class Line:
    """One encoding, its seeds together; one record for each length that it was scored at."""

    encoding: str  # the label of the trained encoding
    scored_with: str  # the label of the encoding under which the weights were scored
    run: str  # set only if runs of one encoding share a seed, so that each run is a line
    seeds: int  # the number of seeds
    parameters: int
    tokens_per_second: float  # in training, the mean of the runs
    records: dict[int, Record]  # by length
    runs: tuple[str, ...]  # the names of all its runs
    rows: Sequence[Row] = field(default=(), repr=False)  # the rows of the levels
    by: str = ""  # other values that tell the line from others, such as train.lr=0.003
    break_point: BreakPoint = BreakPoint()
    reads_nothing: bool = False  # surely no gain from a quarter to all of the training length
    positions: tuple[Position, ...] = ()  # in order of rising context; empty if positions were not scored
    forced: bool = False  # scored with an encoding that is not compatible with the trained one
    knows_length: bool = False  # the encoding is given the final length of each text
    unlearned: Unlearned = ""  # the anchor or the task that the weights have not learned to beat
    is_anchor: bool = False  # an n-gram model, not an encoding
    # For later stages, the longest length that they were trained at: the break point and the use of context
    # are judged from there. Else 0.
    longest: int = 0
    # The first stage of a later stage has no score here, so changes are from the line's own level.
    lacks_first_stage: bool = False
    has_short_label: bool = False  # no other line of the table has the same short label

    @property
    def is_ranked(self) -> bool:
        return not self.is_anchor and not self.unlearned

    @property
    def label(self) -> str:
        """Return the name to show; if each run is a line, with the seed and the hash of the run."""
        name = short_label_of(self) if self.has_short_label else label_of(self)
        parts = [name, self.by]
        if self.run:
            run = re.sub(r".*-(?=s\d+-.)", "", self.run)
            parts.append(f"({run})")
        return " ".join(filter(None, parts))


def label_of(scored: Row | Line) -> str:
    """Return the name of the trained encoding, and of the encoding of the scores if it is another."""
    return _label_with(scored, scored.scored_with)


def short_label_of(scored: Row | Line) -> str:
    """Return `label_of`, with an option that the trained and the scored encoding share written only once."""
    name, *options = BEFORE_AN_OPTION.split(scored.scored_with)
    shared = BEFORE_AN_OPTION.split(scored.encoding)[1:]
    own = [option for option in options if option not in shared]
    return _label_with(scored, " ".join([name, *own]))


def _label_with(scored: Row | Line, scored_with: str) -> str:
    """Return the name of the trained encoding and, if the scores have another encoding, `scored_with`."""
    if scored.scored_with == scored.encoding:
        return scored.encoding
    label = f"{scored.encoding} -> {scored_with}"
    return f"{label} (forced)" if scored.forced else label


def common_targets(lines: Iterable[Line], length: int) -> str:
    """Return the hash of the targets on which levels at a length are compared; empty without any level.

    They are the targets of most lines that are scored as they were trained, or of most lines if no such line
    has a level. Of several such sets, the larger is taken.
    """
    records_by_training: dict[bool, list[Record]] = {True: [], False: []}
    for line in lines:
        record = line.records.get(length)
        if record is not None and record.levels and not line.is_anchor:
            records_by_training[line.scored_with == line.encoding].append(record)
    chosen = records_by_training[True] or records_by_training[False]
    sets = Counter((record.targets, record.target_hash) for record in chosen)
    _, target_hash = max(sets, key=lambda each: (sets[each], each), default=(0, ""))
    return target_hash


def hf_model_name(model: str, size: str) -> str:
    name = model.removeprefix(HF_PREFIX)
    return f"{name} ({size})" if size else name


class Note(NamedTuple):
    """A sentence below a table."""

    text: str
    is_caveat: bool = True  # the sentence changes how numbers are read, and is below the short form too
    short: str = ""  # the text below the short form, if it differs


@dataclass(frozen=True)
class TableKey:
    """The values that all rows of a table have in common."""

    model: str
    data: str
    data_hash: str
    tokenizer: str
    train_length: int
    steps: int  # the training steps; 0 if lines differ in them
    setting: str  # a hash of the values that rows must share to be compared
    protocol: str
    stride_rule: str  # the stride of the sliding protocol: half, or a number
    score_dtype: str
    model_sizes: str = ""  # its parameters, such as 0.8M or 0.3M to 0.8M; of an `hf:` model: Llama, 0.26M
    changed: str = ""  # how the model differs from the shipped model of its name, such as 2 layers of 96
    training: str = ""  # unusual values of training and of the task, such as optimizer=adamw
    slice: str = ALL  # the slice of the targets on which all numbers are measured
    judge: str = ""  # the run whose scores chose the targets of the slice `key`; else empty
    half: str = ""  # first or second, if only this half of the documents was scored

    @property
    def loses_text(self) -> bool:
        return self.tokenizer.endswith(LOSES_TEXT)

    @property
    def loss(self) -> Measure:
        """Return the measure of levels of text: bits per byte, or nats per token if tokens lose text."""
        return NATS if self.loses_text else BITS

    @property
    def is_of_hf_models(self) -> bool:
        return self.model == SEVERAL_HF_MODELS or is_hf_name(self.model)

    @property
    def model_text(self) -> str:
        """Return the model with its size: `tiny model (0.8M)`, or `tiny, changed (2 layers of 96, 0.3M)`."""
        if self.model == SEVERAL_HF_MODELS:
            return self.model
        if self.is_of_hf_models:
            return f"Hugging Face model {hf_model_name(self.model, self.model_sizes)}"
        if self.changed:
            return f"{self.model}, changed ({self.changed}, {self.model_sizes})"
        return f"{self.model} model ({self.model_sizes})"

    def title(self, seed_counts: Iterable[int]) -> list[str]:
        """Return the facts that all lines share, in parts: model, text, training, seeds, scoring.

        seed_counts: the number of seeds of each line.
        """
        data = [self.data, self.tokenizer]
        trained = f"trained at {self.train_length:,} tokens"
        if self.is_of_hf_models:
            trained = f"measured from {self.train_length:,} tokens"
            tokenizer = "their tokenizer" if self.model == SEVERAL_HF_MODELS else "its tokenizer"
            if self.loses_text:
                tokenizer += LOSES_TEXT
            data = [self.data, tokenizer]
        if self.protocol == TASK:
            data = [f"task {self.data}"]
        if self.steps:
            trained += f", {count(self.steps, 'step')}"
        if self.training:
            trained += f" with {self.training}"
        parts = [self.model_text, *data, trained, self._seeds_text(seed_counts)]
        if self.half:
            parts.append(f"eval.half={self.half}")
        if self.protocol not in ("paired", TASK, PROBE):
            parts.append(self._protocol_text)
        if self.score_dtype != "float32":
            parts.append(f"scores in {self.score_dtype}")
        return list(filter(None, parts))

    def _seeds_text(self, seed_counts: Iterable[int]) -> str:
        """Return the fewest and the most seeds of a line: `1 to 3 seeds`; empty for a model without seeds."""
        counts = set(seed_counts)
        if not counts:
            return "no scores"
        if counts == {1}:
            return "" if self.is_of_hf_models else "1 seed"
        fewest = min(counts)
        most = max(counts)
        if fewest == most:
            return f"{fewest} seeds"
        return f"{fewest} to {most} seeds"

    @property
    def _protocol_text(self) -> str:
        """Return the protocol, with its stride if the protocol has a stride."""
        if not self.stride_rule:
            return f"{self.protocol} protocol"
        stride = "half the length" if self.stride_rule == HALF else self.stride_rule
        return f"{self.protocol} protocol, stride {stride}"


@dataclass(frozen=True)
class Table:
    """Encodings that may be compared, the best first."""

    key: TableKey
    lengths: tuple[int, ...]  # the lengths with a record, the shortest first
    lines: tuple[Line, ...]
    ranked_at: int | None  # the length whose levels rank the lines; None in another order
    why: str = ""  # why there are other tables; empty for the only table
    notes: tuple[str, ...] = ()  # sentences below the details
    caveats: tuple[str, ...] = ()  # sentences below the short form
    baseline: str = ""  # the label of the line that the others are compared with
    chosen: tuple[int, ...] = ()  # lengths that the user named: the short form shows them before all others
    margin: float = MARGIN  # the margin for verdicts, in bits per byte
    anchors: tuple[Line, ...] = ()  # models that cost no training, neither ranked nor judged
    share: float = 1.0  # the share of the targets that are in the slice
    lacking: str = ""  # a note on the runs that do not know the slice
    recall: "Table | None" = None  # the same lines on the slice `recall`, if it was kept; None in a slice

    @property
    def is_task(self) -> bool:
        return self.key.protocol == TASK

    @property
    def measure(self) -> Measure:
        """Return the measure of the levels."""
        return EXACT if self.is_task else self.key.loss

    @property
    def records(self) -> list[Record]:
        """Return the records of all encodings, line by line."""
        return [record for line in self.lines for record in line.records.values()]

    @property
    def all_lines(self) -> tuple[Line, ...]:
        """Return the lines of encodings, then the lines of anchors."""
        return (*self.lines, *self.anchors)

    @property
    def shown_anchors(self) -> tuple[Line, ...]:
        """Return the anchors that people see: the trigram only if a model is no better, or as a baseline."""
        anchors = []
        for line in self.anchors:
            if line.encoding != TRIGRAM or self._needs_trigram(line):
                anchors.append(line)
        return tuple(anchors)

    @property
    def shown_lines(self) -> tuple[Line, ...]:
        """Return the lines of encodings, then the anchors that people see."""
        return (*self.lines, *self.shown_anchors)

    def _needs_trigram(self, trigram: Line) -> bool:
        """Return whether the trigram is the baseline, or a model no better at the training length."""
        if trigram.label == self.baseline or any(line.unlearned for line in self.lines):
            return True
        length = self.key.train_length
        counted = trigram.records.get(length)
        if counted is None or counted.level is None:
            return False
        for line in self.lines:
            record = line.records.get(length)
            if record is None or record.level is None or not self.has_common_targets(record):
                continue
            if record.level >= counted.level:
                return True
        return False

    def has_common_targets(self, record: Record) -> bool:
        """Return whether a record's level is of the targets on which levels at its length are compared."""
        return record.target_hash == common_targets(self.lines, record.length)

    def has_targets_of_levels(self, change: Number) -> bool:
        """Return whether a change is of the same targets as the levels at the training length."""
        shown = common_targets(self.lines, self.key.train_length)
        return change.target_hash in ("", shown) or not shown

    def is_drawn(self, record: Record, target_hash: str) -> bool:
        """Return whether a record's level or change is a point of a curve. target_hash: the number's targets.

        A curve is of the targets of the levels at the training length. Past the longest length that was
        scored on these, it may go on with other targets.
        """
        if target_hash != common_targets(self.lines, record.length):
            return False
        first = common_targets(self.lines, self.key.train_length)
        if self.is_task or target_hash == first or not first:
            return True
        longest = max(each.length for each in self.records if each.target_hash == first)
        return record.length > longest

    @property
    def title(self) -> list[str]:
        """Return the facts that all lines share, in parts; the last part is the meaning of the numbers."""
        parts = self.key.title(line.seeds for line in self.lines)
        if self.key.slice != ALL:
            parts.append(f"targets: {self.slice_name}")
        return [*parts, self.measure.meaning]

    @property
    def slice_name(self) -> str:
        """Return the name of a table's slice, and its share of the targets: `recall (21 % of all)`."""
        targets = self.key.slice
        if self.key.judge:
            targets += f" of {self.key.judge}"
        return f"{targets} ({100 * self.share:.2g} % of all)"
