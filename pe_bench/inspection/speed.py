"""How `pe-bench speed` measures: which passes, in turns with the reference, and the rows of speed.csv.

PyTorch is imported where something is timed: a mistyped argument is told before.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pe_bench.config.compose import OVERRIDES_VARIABLE, compose
from pe_bench.config.groups import encoding_names
from pe_bench.config.overrides import parse_override
from pe_bench.errors import UserError, require, text_of
from pe_bench.inspection.resolve import ResolvedEncoding, resolve, split_arguments
from pe_bench.plot.style import DASHES, GREY, RULE, styles_of
from pe_bench.system.files import name_write_errors, write_text
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid
from pe_bench.values import check_type

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from pe_bench.inspection.passes import Pass

REFERENCE = "nope"
SCORE_PRECISION = "eval.precision"
# Sections and keys that say how the model is and what it runs on, and those without effect.
SHARED = ("model", "train", "seed", "precision", "threads", "device", "results_dir")
UNUSED = ("data", "tokenizer", "eval", "report", "experiment", "cache_dir")
# What is measured: of two rows with the same, the later one holds.
KEY = ["encoding", "setting", "model", "length", "pass", "device", "processor", "threads", "dtype"]
REPEATS = 5  # of a pass, at least
MAX_REPEATS = 25
SHORT = 0.5  # seconds: a pass is repeated for so long if that is not more often than `MAX_REPEATS`
LONG = 20.0  # seconds: none begins after so long, though there be fewer than `REPEATS`


@dataclass(frozen=True)
class Request:
    """Encodings to time, overrides, and folders with encodings of a person's own."""

    names: tuple[str, ...]
    overrides: tuple[str, ...]
    search: tuple[Path, ...]
    train: bool
    is_choice: bool = True  # False: all encodings, because none was named

    @property
    def shared(self) -> list[str]:
        """The overrides that the reference gets too: no option of an encoding and no modifier."""
        overrides = [(text, parse_override(text)) for text in self.overrides]
        return [text for text, one in overrides if one.section in SHARED or one.key == SCORE_PRECISION]

    def at(self, length: int) -> list[ResolvedEncoding]:
        """Resolve the reference, then the others, each once. Raises `UserError`."""
        others = resolve([*self.names, *self.overrides, *self._train_overrides(length)], self.search)
        return list({subject.label: subject for subject in (self.reference(length), *others)}.values())

    def reference(self, length: int) -> ResolvedEncoding:
        return resolve([REFERENCE, *self.shared, *self._train_overrides(length)], self.search)[0]

    def _train_overrides(self, length: int) -> list[str]:
        """Return, with --train, the keys of a step of as many windows as `train.batch_tokens` holds."""
        if not self.train:
            return []
        train = compose([f"encoding={REFERENCE}", *self.shared], self.search)["train"]
        windows = max(1, check_type(train["batch_tokens"], int, "train.batch_tokens") // length)
        return [f"train.length={length}", f"train.batch_tokens={windows * length}"]


def read_request(arguments: Sequence[str], train: bool, search: Sequence[Path]) -> Request:
    """Read the arguments; no name means all encodings. Raises `UserError` for one without effect."""
    names, overrides = split_arguments(arguments)
    for text in overrides:
        override = parse_override(text)
        is_precision = override.key == SCORE_PRECISION
        reason = "--train scores nothing" if is_precision else "speed reads random bytes"
        is_used = override.section not in UNUSED or (is_precision and not train)
        require(is_used, f"{text} has no effect: {reason}; remove it")
        reason = "with --train each of --lengths is the training length in turn"
        require(not train or override.key != "train.length", f"{text} has no effect: {reason}; remove it")
    before = os.environ.get(OVERRIDES_VARIABLE, "").split()
    every = tuple(names or encoding_names(search))
    return Request(every, (*before, *overrides), tuple(search), train, is_choice=bool(names))


def with_examples(resolved: ResolvedEncoding) -> ResolvedEncoding:
    """Add an example for each option that the encoding's class requires."""
    return replace(resolved, config=replace(resolved.config, encoding=resolved.spec.with_examples().values))


# Rows


@dataclass(frozen=True)
class Row:
    """The measurement of one encoding at one length. An empty number has a status and a reason."""

    encoding: str
    setting: str  # the command's words that are no option of the encoding
    model: str
    length: int
    kind: str  # `pass` in the file: score, train
    batch: int | None = None  # windows in one pass
    path: str = ""  # of attention; of several layers' joined by +
    status: str = "ok"  # undefined, out_of_memory, not_finite, failed
    reason: str = ""
    milliseconds: float | None = None  # the median
    milliseconds_min: float | None = None
    milliseconds_max: float | None = None
    tokens_per_second: float | None = None
    relative: float | None = None  # to the reference: the median of ratios of neighbours in time
    relative_low: float | None = None  # half of the ratios lie between these two
    relative_high: float | None = None
    peak_memory_mb: float | None = None  # above what was held before the first pass
    gflops_per_second: float | None = None
    repeats: int = 0
    device: str = ""
    processor: str = ""
    threads: int = 0
    dtype: str = ""
    torch: str = ""
    pe_bench: str = ""
    date: str = ""

    @property
    def name(self) -> str:
        return f"{self.encoding} at {self.length:,}"

    @property
    def line(self) -> str:
        """Describe the row to whoever waits."""
        what = f"{self.encoding}, {self.length:,} tokens: "
        if self.milliseconds is None:
            return what + self.status.replace("_", " ")
        relative = "" if self.relative is None else f", {self.relative:.2f} x {REFERENCE}"
        return f"{what}{self.milliseconds:,.1f} ms{relative} ({self.path})"


# `pass` is a keyword of Python, and cannot name a field.
COLUMNS = ["pass" if field.name == "kind" else field.name for field in dataclasses.fields(Row)]


def read_rows(path: Path) -> Any:
    """Return the rows of a file as a table of texts; none without a file. Raises `UserError`."""
    import pandas

    if not path.exists():
        return pandas.DataFrame(columns=COLUMNS, dtype=str)
    try:
        rows = pandas.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): move it away") from error
    odd = ", ".join(sorted({*rows.columns} ^ {*COLUMNS}))
    require(not odd, f"{path} has other columns than this pe-bench writes ({odd}): move it away")
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a file, in place of those that measured the same.

    A lock makes the later of two commands read what the other wrote.
    """
    import pandas

    texts = [["" if value is None else str(value) for value in dataclasses.astuple(row)] for row in rows]
    with name_write_errors(path), FileLock(path.with_name(path.name + ".lock")):
        every = pandas.concat([read_rows(path), pandas.DataFrame(texts, columns=COLUMNS)])
        write_text(path, every.drop_duplicates(KEY, keep="last").to_csv(index=False))


# Measuring


@dataclass(frozen=True)
class Bench:
    """The facts that all rows of a command share."""

    setting: str
    train: bool
    repeats: int | None
    device: torch.device
    threads: int

    def rows(
        self,
        lengths: Sequence[int],
        choose: Callable[[int], Sequence[ResolvedEncoding]],
        watch: Callable[[str], None],
    ) -> Iterator[Row]:
        """Time short lengths first, and at each the reference, whose pass is timed with all others."""
        with suppress(Exception):  # the same pass is about to be measured, and says what is wrong
            # The first pass loads libraries, which cost no encoding.
            self._pass(choose(lengths[0])[0], lengths[0])()
        for length in lengths:
            reference: Pass | None = None
            subjects = choose(length)
            for number, subject in enumerate(subjects):
                watch(f"{length:,} tokens, {number + 1} of {len(subjects)}: {subject.label}")
                row, timed = self.row(subject, length, reference, is_reference=number == 0)
                reference = timed if number == 0 else reference
                yield row

    def row(
        self, subject: ResolvedEncoding, length: int, reference: Pass | None, *, is_reference: bool = False
    ) -> tuple[Row, Pass | None]:
        """Time one encoding; return its row, and the pass if there is one."""
        from pe_bench.system.signals import INTERRUPTIONS

        row = self._empty_row(subject, length)
        try:
            timed = self._pass(subject, length)
            row = replace(row, batch=timed.batch, path=timed.path)
            milliseconds, ratios, memory = time_pass(
                timed, timed if is_reference else reference, self.repeats
            )
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            outcome = outcome_of(error)
            if outcome is None:
                raise
            return replace(row, status=outcome[0], reason=outcome[1]), None
        low, middle, high = quartiles(ratios)
        median = statistics.median(milliseconds)
        numbers = {
            "milliseconds": median,
            "milliseconds_min": min(milliseconds),
            "milliseconds_max": max(milliseconds),
            "tokens_per_second": timed.batch * length / median * 1e3,
            "relative": middle,
            "relative_low": low,
            "relative_high": high,
            "peak_memory_mb": memory,
            "gflops_per_second": timed.flops / median / 1e6,
        }
        rounded = {name: None if value is None else round(value, 4) for name, value in numbers.items()}
        return replace(row, repeats=len(milliseconds), **rounded), timed

    def _pass(self, subject: ResolvedEncoding, length: int) -> Pass:
        from pe_bench.inspection.passes import ScoringPass, TrainingPass

        kind = TrainingPass if self.train else ScoringPass
        return kind(subject.config, subject.spec, length, self.device)

    def _empty_row(self, subject: ResolvedEncoding, length: int) -> Row:
        import torch

        from pe_bench.inspection.passes import dtype_of
        from pe_bench.system.machine import device_name, package_version, processor_name, today

        return Row(
            encoding=subject.label,
            setting=self.setting,
            model=subject.config.model.name,
            length=length,
            kind="train" if self.train else "score",
            device=device_name(self.device),
            processor=processor_name(),
            dtype=str(dtype_of(subject.config, self.train)).removeprefix("torch."),
            threads=self.threads,
            torch=torch.__version__,
            pe_bench=package_version(),
            date=today(),
        )


def time_pass(
    timed: Pass, reference: Pass | None, repeats: int | None = None
) -> tuple[list[float], list[float], float | None]:
    """Return the milliseconds of each pass, their ratios to the reference's just before, and the memory.

    Passes are timed `repeats` times, or as often as is needed. The reference may be the pass itself, or
    missing.
    """
    memory = peak_of(timed)
    milliseconds: list[float] = []
    ratios: list[float] = []
    with timed.in_use():
        is_compared = reference is not None and reference is not timed
        if reference is not None and is_compared:
            reference()
        began = time.perf_counter()
        while is_due(len(milliseconds), time.perf_counter() - began, repeats):
            before = _milliseconds(reference) if reference is not None and is_compared else None
            milliseconds.append(_milliseconds(timed))
            if reference is not None:
                ratios.append(milliseconds[-1] / (before or milliseconds[-1]))
    return milliseconds, ratios, memory


def _milliseconds(timed: Pass) -> float:
    began = time.perf_counter()
    timed()
    return 1e3 * (time.perf_counter() - began)


def is_due(done: int, elapsed: float, repeats: int | None) -> bool:
    """Return whether one more pass is timed, after so many in so many seconds."""
    if repeats is not None:
        return done < repeats
    if done == 0 or elapsed > LONG:
        return done == 0
    return done < REPEATS or (done < MAX_REPEATS and elapsed < SHORT)


def quartiles(ratios: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the median between the quartiles, which need two numbers."""
    if len(ratios) < 2:
        return None, ratios[0] if ratios else None, None
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def outcome_of(error: BaseException) -> tuple[str, str] | None:
    """Return the status and reason of a row without numbers; None if the error is our fault."""
    from pe_bench.encodings import LengthError
    from pe_bench.model.checks import describe_user_code_error
    from pe_bench.system.machine import is_out_of_memory
    from pe_bench.training.trainer import NonFiniteError

    reason = " ".join(text_of(error).split())
    if isinstance(error, LengthError):
        return "undefined", reason
    if isinstance(error, NonFiniteError):
        return "not_finite", reason
    if is_out_of_memory(error):
        return "out_of_memory", reason
    description = describe_user_code_error(error)
    return None if description is None else ("failed", description)


def peak_of(first: Pass) -> float | None:
    """Measure the megabytes that a first pass needs above what was held before it, such as the weights.

    On a GPU of PyTorch's tensors, else of the whole process; None where the system cannot tell. What a first
    pass loads and later ones find is counted too, and is a few megabytes.
    """
    from pe_bench.system.machine import PeakMemory, give_back_free_memory

    gc.collect()
    give_back_free_memory()
    with PeakMemory(first.device) as before:
        pass
    with PeakMemory(first.device) as peak:
        first()
    return None if peak.mb is None or before.mb is None else max(0.0, peak.mb - before.mb)


# The table: the cheapest encoding at the longest length first, with all its lengths

TABLE = ("encoding", "tokens", "attention", "ms", "tokens/s", "x {}", "spread", "MB")
WORDS = ("encoding", "attention")  # columns of words
# Passes of one encoding that differ by this factor were not alone on the machine.
NOISE = 4.0
OF_PASS = {"score": "scoring one window", "train": "a training step"}


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Put the cheapest encoding at the longest length first, and those without a number there last."""
    longest = max(row.length for row in rows)
    costs = {row.encoding: row.relative for row in rows if row.length == longest and row.relative is not None}
    return sorted(rows, key=lambda row: (costs.get(row.encoding, math.inf), row.encoding, row.length))


def title(rows: Sequence[Row]) -> str:
    """Say what was timed, with what, and where."""
    first = rows[0]
    machine = first.processor if first.device == "cpu" else first.device
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    words = (word.removeprefix("model.") for word in first.setting.split() if word.startswith("model."))
    sizes = " ".join(words)
    model = f"{first.model} model{sizes and f' with {sizes}'}"
    return (
        f"{OF_PASS[first.kind]}, {model}, random bytes, {first.dtype}\n"
        f"{machine}, {threads}, torch {first.torch}, pe-bench {first.pe_bench}"
    )


def grid_of(rows: Sequence[Row]) -> Grid:
    """Return the table with its title and notes."""
    columns = [
        Column(column.format(REFERENCE), is_left=column in WORDS, least=MIN_FOLDED if column in WORDS else 0)
        for column in TABLE
    ]
    cells = [list(map(Cell, _texts(row))) for row in ordered(rows)]
    return Grid(columns, cells, title(rows).split("\n"), notes=_notes(rows), keys=2)


def _texts(row: Row) -> list[str]:
    texts = [row.encoding, f"{row.length:,}"]
    if row.milliseconds is None:
        return [*texts, row.status.replace("_", " "), *[""] * 5]
    spread = ""  # around the median within which half of the ratios lie
    if row.relative and row.relative_low is not None and row.relative_high is not None:
        farther = max(row.relative - row.relative_low, row.relative_high - row.relative)
        spread = f"{farther / row.relative:.0%}"
    return [
        *texts,
        row.path,
        number(row.milliseconds),
        f"{row.tokens_per_second:,.0f}",
        "" if row.relative is None else f"{row.relative:.2f}",
        spread,
        "" if row.peak_memory_mb is None else f"{row.peak_memory_mb:,.0f}",
    ]


def number(value: float) -> str:
    """Spell a number with three digits, or with all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _notes(rows: Sequence[Row]) -> list[str]:
    """Explain the columns, and rows without numbers."""
    counts = sorted(row.repeats for row in rows if row.repeats)
    notes = [f"x {REFERENCE}: median of the ratios to a pass of {REFERENCE} just before"]
    if any(row.relative_low is not None for row in rows):
        notes.append("spread: half of these ratios lie within this much of the median")
    if counts:
        several = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else str(counts[0])
        passes = "pass" if counts[-1] == 1 else "passes"
        notes.append(f"ms: median of {several} {passes}, after a warm-up pass")
    notes += _noise(rows)
    for row in [row for row in rows if row.encoding == REFERENCE and row.gflops_per_second][-1:]:
        notes.append(f"{row.encoding}: {number(row.gflops_per_second or 0)} GFLOP/s at {row.length:,} tokens")
    if any(row.peak_memory_mb is not None for row in rows):
        notes.append("MB: peak memory above what was in use before the first pass")
    return [*notes, *sorted({f"{row.name}: {row.reason}" for row in rows if row.reason})]


def _noise(rows: Sequence[Row]) -> list[str]:
    """Return a line if the passes of one row differ by more than encodings do."""
    ends = [(row.milliseconds_min, row.milliseconds_max, row) for row in rows]
    spreads = [(high / low, low, high, row) for low, high, row in ends if low and high is not None]
    worst, low, high, row = max(spreads, key=lambda spread: spread[0], default=(0.0, 0.0, 0.0, rows[0]))
    if worst < NOISE:
        return []
    took = f"passes of {row.name} took {number(low)} to {number(high)} ms, as happens on a busy machine"
    return [f"noisy: {took}{'; try threads=1' if row.threads > 1 else ''}"]


def draw_rows(rows: Sequence[Row], path: Path) -> None:
    """Draw rows into the file `path`, whose suffix is the format."""
    from pe_bench.plot.paper import save_picture

    save_picture(lambda: draw(rows), path)


def draw(rows: Sequence[Row]) -> Figure:
    """Return a figure with a curve for each encoding, where it has a number."""
    from matplotlib.figure import Figure

    numbered = [row for row in ordered(rows) if row.relative is not None]
    figure = Figure(
        figsize=(9.0, max(4.2, 0.2 * len({row.encoding for row in numbered}))), layout="constrained"
    )
    axes = figure.add_subplot()
    for label, style in styles_of(row.encoding for row in numbered).items():
        points = [(row.length, row.relative) for row in numbered if row.encoding == label]
        look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": style.stroke}
        axes.plot(*zip(*points, strict=True), **look, markersize=4, label=f"{label} {points[-1][1]:.3g}")
    lengths = sorted({row.length for row in numbered})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
    axes.set_yscale("log")
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:.3g}")
    axes.axhline(1.0, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)
    axes.grid(axis="y", color=RULE)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel(f"time, relative to {REFERENCE}, log scale")
    axes.set_title(title(rows), loc="left", fontsize="medium")
    figure.legend(loc="outside right center", frameon=False, labelcolor="linecolor", reverse=True)
    return figure
