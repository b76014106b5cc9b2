"""What a report says: tables of lines, and of each line a record at each length that it was scored at."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pe_bench.config.schema import LOSES_TEXT
from pe_bench.report.statistics import MARGIN, Interval
from pe_bench.runs.find import CHECKPOINT, TRIGRAM, is_checkpoint
from pe_bench.runs.rows import ALL, HALF, PROBE, TASK, Row

BEFORE_AN_OPTION = re.compile(r"\s+(?=[\w.]+=)")  # of a label, whose values may hold spaces
PlotValues = Literal["levels", "change"]  # that pictures draw
NEAR = 1.25  # times a length that works: a length up to there needs no mention
CHECKPOINTS = "checkpoints"  # in place of a model's name, of several

# What a line's weights have not learned at their training length: they are surely worse than the trigram of
# the same tokens (trigram), not even surely better than token frequencies (frequencies), or have not surely
# learned their task (task).
Unlearned = Literal["", "trigram", "frequencies", "task"]


@dataclass(frozen=True)
class Measure:
    """The quantity of a table's levels. name: in a row of details; unit: on an axis; meaning: in a title."""

    name: str
    unit: str
    meaning: str
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
    """A mean over seeds and documents with its 95 % interval, or why it has none; mostly of a difference."""

    mean: float | None = None  # in bits per byte, or of a task a share of examples
    interval: Interval | None = None
    missing: str = ""  # why the mean or the interval is missing
    segments: int = 1  # into how many each document was cut for the interval
    of_models: Interval | None = (
        None  # for these models alone, whatever other seeds would give; not for one seed
    )
    of_seeds: tuple[Interval, ...] = ()  # of each seed's model; empty for one seed
    target_hash: str = ""  # of the set of targets, whose number is `targets`
    targets: int = 0
    # On a difference from a baseline: better, same, worse or unclear; empty without an interval.
    verdict: str = ""


@dataclass(frozen=True)
class ContextUse:
    """The answers of the controls at one length about the context beyond the training length.

    uses_context: yes, no or unclear; empty where it cannot be judged, and `missing` says why.
    beats_window: yes, no or unclear; n/a where the encoding is windowed itself, empty without the control.
    swap_gain, window_gain: bits per byte that are lost when the far context is another document's, and
    when every layer sees only as many tokens as in training.
    """

    uses_context: str = ""
    beats_window: str = ""
    swap_gain: Interval | None = None
    window_gain: Interval | None = None
    missing: str = ""


@dataclass(frozen=True)
class Answers:
    """Shares of a task's answers at a length, from 0 to 1.

    exact: of examples all of whose answers are right. accuracy: of right answers. chance: when guessing.
    """

    exact: Interval
    accuracy: Interval
    chance: float


@dataclass(frozen=True)
class Record:
    """A line at a length: its levels, and the change with its verdict.

    levels: bits per byte, or the share of a task's examples that are right, one for each seed, in the order
    of the runs' names; level is their mean, and target_hash, targets and documents are theirs. Unknown
    numbers are None. compared: the change against the training length, on the largest set that all seeds
    have; changes: that of each seed. baseline: the difference from the table's baseline, in bits per byte,
    negative is better; None if the table has no baseline, or this is it. use: None if no control was scored.
    """

    length: int
    status: str = "ok"
    reason: str = ""
    levels: tuple[float, ...] = ()
    level: float | None = None
    perplexity: float | None = None
    compared: Number = Number()
    changes: tuple[float, ...] = ()
    verdict: str = ""  # undefined without a number, empty without an interval or below the training length
    verdict_of_models: str = ""  # for these models alone; empty for one seed, as is the next
    verdicts_of_seeds: tuple[str, ...] = ()
    target_hash: str = ""
    targets: int = 0
    documents: int = 0
    stride: int | None = None
    peak_memory_mb: float | None = None
    baseline: Number | None = None
    use: ContextUse | None = None
    answers: Answers | None = None  # of a task

    @property
    def change(self) -> float | None:
        return self.compared.mean

    @property
    def interval(self) -> Interval | None:
        return self.compared.interval


@dataclass(frozen=True)
class BreakPoint:
    """A length and what it says of the break point.

    kind: it breaks `at` the length, or there or before (`by`, after an unclear one); it is `unclear` from the
    length on; it does not break up to the length (`none`); or nothing is known. holds_to: the last length up
    to which it surely holds. works_to: the last one before it breaks, or surely breaks these models or each
    of them, or cannot be scored; other unclear lengths are included. Both are the training length where the
    next one breaks, and 0 where that breaks itself, as it may with an encoding that was not trained; None
    where no longer one was judged. stops_by: the first length after `works_to` that was judged, to which it
    does not work; None where it works to the longest.
    """

    kind: Literal["at", "by", "unclear", "none", "unknown"] = "unknown"
    length: int | None = None
    holds_to: int | None = None
    works_to: int | None = None
    stops_by: int | None = None

    @property
    def works_to_text(self) -> str:
        """Return the interval in which it stops working, as every view shows it.

        That is the last length that works, and the first that does not unless that is near. Empty if no
        length was judged.
        """
        if self.works_to is None:
            return ""
        if self.works_to == 0:
            return "not at all"
        return f"{self.works_to:,} to {self.stops_by:,}" if self.has_gap else f"{self.works_to:,}"

    @property
    def predicate(self) -> str:
        """Return the same as the predicate of a sentence about an encoding."""
        if self.works_to is None:
            return "works to an unknown length"
        if self.works_to == 0:
            return "does not work at the training length"
        if self.has_gap:
            return f"works at {self.works_to:,} and no longer at {self.stops_by:,}"
        return f"works to {self.works_to:,}"

    @property
    def has_gap(self) -> bool:
        """Return whether the first length that does not work is far from the last one that does."""
        return bool(self.works_to) and self.stops_by is not None and self.stops_by > NEAR * self.works_to

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
        """Return the first length that degrades or fails."""
        return self.length if self.kind in ("at", "by") else None


@dataclass(frozen=True)
class Position:
    """Tokens that were scored at one range of places in their window: text of its own at each, no verdict.

    context: tokens that such a target sees, on average. levels: bits per byte, one for each seed.
    """

    context: float
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """One encoding, its seeds together; one record for each length that it was scored at.

    run: set only if runs of one encoding share a seed, so that each is a line. runs: all its runs. by: what
    else tells the line from others, such as train.lr=0.003. rows: those of its levels. reads_nothing: it
    surely gains nothing from a quarter to all of its training length. positions: by rising context, empty if
    they were not scored. forced: it was scored with an encoding that is not compatible with the trained one.
    knows_length: it is given the final length of each text. unlearned: what it has not learned to beat.
    is_anchor: it is an n-gram model, not an encoding. longest: for later stages, the longest length that they
    were trained at, from which the break point and the use of context are judged; else 0. has_short_label: no
    other line of its table has its short label.
    """

    encoding: str
    scored_with: str
    run: str
    seeds: int
    parameters: int
    tokens_per_second: float
    records: dict[int, Record]
    runs: tuple[str, ...]
    rows: Sequence[Row] = field(default=(), repr=False)
    by: str = ""
    break_point: BreakPoint = BreakPoint()
    reads_nothing: bool = False
    positions: tuple[Position, ...] = ()
    forced: bool = False
    knows_length: bool = False
    unlearned: Unlearned = ""
    is_anchor: bool = False
    longest: int = 0
    has_short_label: bool = False

    @property
    def is_ranked(self) -> bool:
        return not self.is_anchor and not self.unlearned

    @property
    def label(self) -> str:
        """Return the name to show, with the seed and the hash of its run where it is one of many."""
        run = re.sub(r".*-(?=s\d+-.)", "", self.run)
        name = short_label_of(self) if self.has_short_label else label_of(self)
        return " ".join(filter(None, (name, self.by, run and f"({run})")))


def label_of(scored: Row | Line) -> str:
    """Return the name: of the encoding, and of what it was scored with where that is another."""
    return _label(scored, scored.scored_with)


def short_label_of(scored: Row | Line) -> str:
    """Return the name, with options that the encoding and what it was scored with share only once."""
    name, *options = BEFORE_AN_OPTION.split(scored.scored_with)
    shared = BEFORE_AN_OPTION.split(scored.encoding)[1:]
    own = [option for option in options if option not in shared]
    return _label(scored, " ".join([name, *own]))


def _label(scored: Row | Line, scored_with: str) -> str:
    if scored.scored_with == scored.encoding:
        return scored.encoding
    label = f"{scored.encoding} -> {scored_with}"
    return f"{label} (forced)" if scored.forced else label


def common_targets(lines: Iterable[Line], length: int) -> str:
    """Return the hash of the targets on which levels at a length are compared; empty without any level.

    Most lines that are scored as they were trained have them, or most lines if none of those has a level. Of
    several such sets, the larger is taken.
    """
    records: dict[bool, list[Record]] = {True: [], False: []}
    for line in lines:
        record = line.records.get(length)
        if record is not None and record.levels and not line.is_anchor:
            records[line.scored_with == line.encoding].append(record)
    sets = Counter((record.targets, record.target_hash) for record in records[True] or records[False])
    return max(sets, key=lambda each: (sets[each], each), default=(0, ""))[1]


def name_of_checkpoint(model: str, size: str) -> str:
    name = model.removeprefix(CHECKPOINT)
    return f"{name} ({size})" if size else name


class Note(NamedTuple):
    """A sentence below a table.

    is_caveat: it changes how the short form is read, and stands there too, or `short` in its place.
    """

    text: str
    is_caveat: bool = True
    short: str = ""


@dataclass(frozen=True)
class TableKey:
    """The values that all rows of a table have in common."""

    model: str
    data: str
    data_hash: str
    tokenizer: str
    train_length: int
    steps: int  # 0 where lines differ in them
    setting: str
    protocol: str
    stride_rule: str  # half or a number, of the sliding protocol
    score_dtype: str
    model_sizes: str = ""  # its parameters, such as 0.8M or 0.3M to 0.8M; of a checkpoint: Llama, 0.26M
    changed: str = ""  # how the model differs from the shipped one of its name, such as 2 layers of 96
    training: str = ""  # what is chosen of the optimizer, such as optimizer=muon
    slice: str = ALL  # the part of the targets that all numbers are of
    judge: str = ""  # the run that chose them, where one did
    half: str = ""  # first or second, where only that half of the documents was scored

    @property
    def loses_text(self) -> bool:
        return self.tokenizer.endswith(LOSES_TEXT)

    @property
    def loss(self) -> Measure:
        """Return the measure of losses."""
        return NATS if self.loses_text else BITS

    @property
    def is_of_checkpoints(self) -> bool:
        return self.model == CHECKPOINTS or is_checkpoint(self.model)

    @property
    def model_text(self) -> str:
        """Return the model with its size: `tiny model (0.8M)`, or `tiny, changed (2 layers of 96, 0.3M)`."""
        if self.model == CHECKPOINTS:
            return self.model
        if self.is_of_checkpoints:
            return f"checkpoint {name_of_checkpoint(self.model, self.model_sizes)}"
        if self.changed:
            return f"{self.model}, changed ({self.changed}, {self.model_sizes})"
        return f"{self.model} model ({self.model_sizes})"

    def title(self, seeds_of_lines: Iterable[int]) -> list[str]:
        """Return the facts that all lines share, in parts: model, text, training, seeds, scoring."""
        data = [self.data, self.tokenizer]
        trained = f"trained at {self.train_length:,} tokens"
        if self.is_of_checkpoints:
            trained = f"measured from {self.train_length:,} tokens"
            tokenizer = "their tokenizer" if self.model == CHECKPOINTS else "its tokenizer"
            if self.loses_text:
                tokenizer += LOSES_TEXT
            data = [self.data, tokenizer]
        if self.protocol == TASK:
            data = [f"task {self.data}"]
        if self.steps:
            trained += f", {self.steps:,} steps"
        if self.training:
            trained += f" with {self.training}"
        parts = [self.model_text, *data, trained, self._seeds_text(seeds_of_lines)]
        if self.half:
            parts.append(f"eval.half={self.half}")
        if self.protocol not in ("paired", TASK, PROBE):
            parts.append(self._protocol_text)
        if self.score_dtype != "float32":
            parts.append(f"scores in {self.score_dtype}")
        return list(filter(None, parts))

    def _seeds_text(self, seeds_of_lines: Iterable[int]) -> str:
        """Return the fewest and the most seeds of a line: `1 to 3 seeds`; empty for a model without seeds."""
        seeds = set(seeds_of_lines)
        if not seeds:
            return "no scores"
        if seeds == {1}:
            return "" if self.is_of_checkpoints else "1 seed"
        fewest = min(seeds)
        most = max(seeds)
        return f"{fewest} seeds" if fewest == most else f"{fewest} to {most} seeds"

    @property
    def _protocol_text(self) -> str:
        """Return the protocol with its stride, if it has one."""
        if not self.stride_rule:
            return f"{self.protocol} protocol"
        stride = "half the length" if self.stride_rule == HALF else self.stride_rule
        return f"{self.protocol} protocol, stride {stride}"


@dataclass(frozen=True)
class Table:
    """Encodings that may be compared, the best first.

    ranked_at: the length whose levels rank the lines, None where they are in another order. why: why this
    is not the only table, empty where it is. notes: whole lines to read below it; caveats: those of them that
    the short form has too. baseline: the label of the line that the others are compared with. chosen: lengths
    that the user named, and that the short form shows before all others. margin: bits per byte, of the
    verdicts. anchors: models that cost no training, which are neither ranked nor judged. share: of the
    targets that are in the slice. lacking: which runs do not know the slice; a caveat too. recall: the same
    lines on that slice; none where this is a slice, or none was kept.
    """

    key: TableKey
    lengths: tuple[int, ...]
    lines: tuple[Line, ...]
    ranked_at: int | None
    why: str = ""
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    baseline: str = ""
    chosen: tuple[int, ...] = ()
    margin: float = MARGIN
    anchors: tuple[Line, ...] = ()
    share: float = 1.0
    lacking: str = ""
    recall: "Table | None" = None

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
        return (*self.lines, *self.anchors)

    @property
    def shown_anchors(self) -> tuple[Line, ...]:
        """Return the anchors that people see: the trigram only where a model is no better, or is compared."""
        return tuple(line for line in self.anchors if line.encoding != TRIGRAM or self._needs(line))

    @property
    def shown_lines(self) -> tuple[Line, ...]:
        return (*self.lines, *self.shown_anchors)

    def _needs(self, trigram: Line) -> bool:
        """Return whether a model is not better than the trigram at the training length."""
        if trigram.label == self.baseline or any(line.unlearned for line in self.lines):
            return True
        length = self.key.train_length
        counted = trigram.records.get(length)
        if counted is None or counted.level is None:
            return False
        records = [line.records[length] for line in self.lines if length in line.records]
        levels = [record.level for record in records if self.has_common_targets(record)]
        return any(level is not None and level >= counted.level for level in levels)

    def has_common_targets(self, record: Record) -> bool:
        """Return whether a record's level is of the targets on which levels at its length are compared."""
        return record.target_hash == common_targets(self.lines, record.length)

    def has_targets_of_levels(self, change: Number) -> bool:
        """Return whether a change is of the same targets as the levels at the training length."""
        shown = common_targets(self.lines, self.key.train_length)
        return change.target_hash in ("", shown) or not shown

    def is_drawn(self, record: Record, target_hash: str) -> bool:
        """Return whether a number of a record is a point of a curve.

        target_hash: the targets of the number. Its curve is of the targets of the levels at the training
        length, and may go on with others past the longest length that was scored on those.
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
