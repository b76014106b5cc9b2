"""A table of encodings that may be compared, and a report of several."""

from dataclasses import dataclass

from pe_bench.report.measure import Measure, measure_of
from pe_bench.report.statistics import MARGIN
from pe_bench.report.tables.lines import Line
from pe_bench.runs.rows import ALL, HALF, TASK

PROTOCOLS = {"paired": 0, "nonoverlapping": 1, "sliding": 2}  # the order of their tables


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
    model_sizes: str = ""  # that are not those of the model's name, such as d_model=96
    training: str = ""  # what is chosen of the optimizer, such as optimizer=muon
    slice: str = ALL  # the part of the targets that all numbers are of
    judge: str = ""  # the run that chose them, where one did
    slice_hash: str = ""  # of which targets these are, where other tables have others under this name

    @property
    def sort_key(self) -> tuple[object, ...]:
        last = ("protocol", "stride_rule", "score_dtype")
        values = [value for name, value in vars(self).items() if name not in last]
        protocol, stride = (
            PROTOCOLS.get(self.protocol, 3),
            int(self.stride_rule) if self.stride_rule.isdecimal() else 0,
        )
        return (*values, protocol, stride, self.score_dtype != "float32", self.score_dtype)

    @property
    def is_task(self) -> bool:
        return self.protocol == TASK


@dataclass(frozen=True)
class Table:
    """Encodings that may be compared, the best first.

    ranked_at: the length whose levels rank the lines, None where they are in another order. why: why this
    is not the only table, empty where it is. notes: whole lines to read below it; caveats: those of them that
    the short form has too.
    """

    key: TableKey
    lengths: tuple[int, ...]
    lines: tuple[Line, ...]
    ranked_at: int | None
    why: str
    notes: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    baseline: str = ""  # the label of the line that the others are compared with
    asked: tuple[
        int, ...
    ] = ()  # lengths that the user named, and that the short form shows before all others
    margin: float = MARGIN  # bits per byte, of the verdicts
    anchors: tuple[Line, ...] = ()  # models that cost no training, which are neither ranked nor judged
    share: float = 1.0  # of the targets that are in the slice
    lacking: str = ""  # which runs do not know the slice; a caveat too
    recall: "Table | None" = (
        None  # the same lines on that slice; none where this is a slice, or none was kept
    )

    @property
    def measure(self) -> Measure:
        """Return what the levels are."""
        return measure_of(self.key.protocol)

    @property
    def is_task(self) -> bool:
        return self.key.is_task

    @property
    def all_lines(self) -> tuple[Line, ...]:
        return (*self.lines, *self.anchors)

    @property
    def with_recall(self) -> "tuple[Table, ...]":
        return (self,) if self.recall is None else (self, self.recall)

    @property
    def title(self) -> str:
        return ", ".join(self.title_parts)

    @property
    def title_parts(self) -> tuple[str, str]:
        """Return the title in two parts: model and data, and how it was trained and scored."""
        key = self.key
        steps = f" for {key.steps} steps" if key.steps else ""
        rule = "half the length" if key.stride_rule == HALF else key.stride_rule
        stride = f", stride {rule}" if rule else ""
        coarse = f", scores in {key.score_dtype}" if key.score_dtype != "float32" else ""
        sizes = f" with {key.model_sizes}" if key.model_sizes else ""
        training = f" with {key.training}" if key.training else ""
        part = "" if key.slice == ALL else f", targets: {slice_name(self)}"
        data = f"data {key.data} ({key.data_hash[:8]}), tokenizer {key.tokenizer}"
        if self.is_task:
            data = f"task {key.data} ({key.data_hash[:8]})"
        return (
            f"{key.model} model{sizes}, {data}",
            f"trained at length {key.train_length}{steps}{training}, "
            f"{key.protocol} protocol{stride}{coarse}{part}",
        )


def slice_name(table: Table) -> str:
    """Return which targets a table of a slice is of, and how many: `recall (21 % of all)`."""
    key = table.key
    name = f"{key.slice} of {key.judge}" if key.judge else key.slice
    which = f"; hash {key.slice_hash}" if key.slice_hash else ""
    return f"{name} ({100 * table.share:.2g} % of all{which})"
