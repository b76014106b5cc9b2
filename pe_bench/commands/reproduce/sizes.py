"""What a larger model changes: levels, changes, and how far two sizes agree in the order of encodings.

For studies with `over: parameters`, whose sweeps differ in their model and training tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.ticker import NullLocator

from pe_bench.commands.reproduce.budgets import (
    LINEAR_BELOW,
    MIN_ORDERED,
    UNLEARNED_MARK,
    BudgetResult,
    budget_result,
    spell_mean,
)
from pe_bench.commands.reproduce.claims import Measurements, Series
from pe_bench.commands.reproduce.lines import table_lines
from pe_bench.commands.reproduce.papers import Claim
from pe_bench.commands.reproduce.study import Study, Sweep, spell_tokens
from pe_bench.render import paper
from pe_bench.report.statistics import MARGIN, Interval
from pe_bench.runs.rows import grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAR_TIMES, FARTHEST_TIMES = 4, 16  # times the training length, at which changes and orders are shown
ORDERED_AT_TIMES = (1, FAR_TIMES, FARTHEST_TIMES)
WIDTH, HEIGHT = 6.6, 3.2  # inches, of the picture's only panel
ABOVE, BELOW = 0.5, 1.0  # inches


@dataclass(frozen=True)
class SizeResult:
    """The level and the changes of an encoding at one model size, after the training tokens of a sweep."""

    sweep: str
    parameters: int  # the parameters of the model with this encoding
    has_own_tokens: bool  # no other sweep has the model, or its training tokens are not the study's
    budget: BudgetResult
    # The changes at `FAR_TIMES` and at `FARTHEST_TIMES` times the training length, in bits per byte; None if
    # unscored.
    far: Interval | None
    farthest: Interval | None

    @property
    def encoding(self) -> str:
        return self.budget.encoding


def size_results(study: Study, scores: Measurements) -> list[SizeResult]:
    """Return the levels and changes of each encoding at each size, encoding by encoding."""
    sizes: dict[tuple[str, str], SizeResult] = {}
    for sweep in study.sweeps:
        for encoding in study.labels_of(sweep):
            size = _size_result(study, sweep, Series(encoding, sweep.name), scores)
            if size is not None:
                sizes[encoding, sweep.name] = size
    order = list(dict.fromkeys(encoding for encoding, _ in sizes))

    def table_order(size: SizeResult) -> tuple[int, int, int]:
        return order.index(size.encoding), size.parameters, size.budget.tokens

    return sorted(sizes.values(), key=table_order)


def _size_result(study: Study, sweep: Sweep, series: Series, scores: Measurements) -> SizeResult | None:
    """Return the results of a series of the sweep; None if the training length was not scored."""
    budget = budget_result(series, scores)
    if budget is None:
        return None
    rows = scores.rows_at(series, scores.length, "paired")
    other_models = [_model_overrides(each.overrides) for each in study.sweeps if each.name != sweep.name]
    is_only = _model_overrides(sweep.overrides) not in other_models
    far = scores.change(series, FAR_TIMES * scores.length, "paired")
    farthest = scores.change(series, FARTHEST_TIMES * scores.length, "paired")
    return SizeResult(
        sweep=sweep.name,
        parameters=rows[0].parameters,
        has_own_tokens=is_only or sweep.tokens not in (0, study.tokens),
        budget=budget,
        far=far.interval,
        farthest=farthest.interval,
    )


def _model_overrides(overrides: Sequence[str]) -> list[str]:
    return [text for text in overrides if text.startswith("model=")]


# Orders


@dataclass(frozen=True)
class SizeAgreement:
    """The agreement of two sweeps in the order of encodings, by their levels at a length.

    A pair of encodings has a sure order if the 95 % interval of its difference excludes 0 in both sweeps.
    """

    first_sweep: str
    second_sweep: str
    times: int  # the length over the training length
    tau: float  # Kendall's tau (1938): 1 for the same order, -1 for the opposite order
    low: float  # the bounds of tau, if pairs without a sure order may be ordered either way
    high: float
    encodings: int  # the number of compared encodings


def size_agreements(sizes: Sequence[SizeResult], scores: Measurements) -> list[SizeAgreement]:
    """Return the agreement of each two sweeps at each of `ORDERED_AT_TIMES`.

    Two sweeps are compared if at least three encodings have learned in both. Runs that are scored under
    another encoding than their own have no part in the order.
    """
    found = []
    encodings_of_sweeps: dict[str, list[str]] = {}
    for size in sizes:
        if size.budget.has_learned and " -> " not in size.encoding:
            encodings_of_sweeps.setdefault(size.sweep, []).append(size.encoding)
    for first, second in combinations(encodings_of_sweeps, 2):
        shared = [
            encoding for encoding in encodings_of_sweeps[first] if encoding in encodings_of_sweeps[second]
        ]
        if len(shared) < MIN_ORDERED:
            continue
        for times in ORDERED_AT_TIMES:
            agreement = _agreement_of_sweeps(first, second, times, shared, scores)
            if agreement is not None:
                found.append(agreement)
    return found


def _agreement_of_sweeps(
    first: str, second: str, times: int, encodings: Sequence[str], scores: Measurements
) -> SizeAgreement | None:
    """Return how far two sweeps order encodings alike at `times` the training length.

    first, second: the names of the sweeps. None if a sweep has no difference with an interval between two of
    the encodings.
    """
    pairs = list(combinations(encodings, 2))
    agreeing = 0
    lowest = 0
    highest = 0
    for of, than in pairs:
        here = _interval_of_difference(of, than, first, times, scores)
        there = _interval_of_difference(of, than, second, times, scores)
        if here is None or there is None:
            return None
        product = here.mean * there.mean
        point = (product > 0) - (product < 0)
        is_sure = _excludes_zero(here) and _excludes_zero(there)
        agreeing += point
        lowest += point if is_sure else -1
        highest += point if is_sure else 1
    count = len(pairs)
    tau = agreeing / count
    return SizeAgreement(first, second, times, tau, lowest / count, highest / count, len(encodings))


def _interval_of_difference(
    of: str, than: str, sweep: str, times: int, scores: Measurements
) -> Interval | None:
    """Return the interval of one encoding's level minus another's in a sweep; None without scores.

    of, than: the encodings. times: the length over the training length.
    """
    claim = Claim(kind="order", source="", of=of, at=times, than=than, sweep=sweep)
    return scores.difference_of_levels(claim, times * scores.length).interval


def _excludes_zero(interval: Interval) -> bool:
    return interval.low > 0 or interval.high < 0


# Text


def size_table_lines(
    sizes: Sequence[SizeResult], study: Study, scores: Measurements, width: int
) -> Iterator[str]:
    """Yield the lines of a table of sizes, its notes, and how far each two sweeps order encodings alike.

    width: the width of the terminal, in columns.
    """
    far = f"{FAR_TIMES * scores.length:,}"
    farthest = f"{FARTHEST_TIMES * scores.length:,}"
    facts = ("", "sweep", "parameters", "tokens", "seeds")
    headings = (*facts, f"at {scores.length:,}", far, farthest, "reads far")
    yield from table_lines(headings, list(map(_table_cells, sizes)), width, keys=2, left=2)
    yield ""
    yield f"{far}, {farthest}: changes against {scores.length:,} tokens, in bits per byte"
    yield f"reads far: uses text further back than {scores.length:,} tokens; -: unknown; *: not learned"
    scored = {size.sweep for size in sizes}
    absent = [sweep.name for sweep in study.sweeps if sweep.name not in scored]
    if absent:
        yield f"not run: {'; '.join(absent)}"
    found = size_agreements(sizes, scores)
    if found:
        yield "Kendall's tau between the orders of levels; in brackets, its range over unsure pairs:"
    for each in found:
        place = f"{each.first_sweep} | {each.second_sweep} at {each.times}x"
        bounds = f"[{each.low:+.2f}, {each.high:+.2f}]"
        yield f"  {place}: {each.tau:+.2f} {bounds}, {each.encodings} encodings"


def _table_cells(size: SizeResult) -> tuple[str, ...]:
    budget = size.budget
    level = f"{budget.level:.3f}"
    if not budget.has_learned:
        level += UNLEARNED_MARK
    runs = (f"{size.parameters:,}", spell_tokens(budget.tokens), str(budget.seeds))
    changes = map(spell_mean, (size.far, size.farthest))
    return size.encoding, size.sweep, *runs, level, *changes, budget.reads_far or "-"


# Picture


def draw_sizes(sizes: Sequence[SizeResult], study: Study, path: Path) -> None:
    """Draw the change at `FAR_TIMES` over parameters; the suffix of the path is the file's format."""
    paper.save_picture(lambda: _draw_figure(sizes, study), path)


def _draw_figure(sizes: Sequence[SizeResult], study: Study) -> "Figure":
    top = paper.lines_height(study.title, paper.FONT) + ABOVE
    figure = paper.new_figure(paper.WIDTH, top + HEIGHT + BELOW)
    paper.place_text(figure, paper.LEFT, 0, study.title)
    axes = paper.place_axes(figure, paper.LEFT, top, WIDTH, HEIGHT)
    axes.set_title(
        f"change at {FAR_TIMES * study.length:,} tokens, bits per byte", loc="left", fontsize=paper.FONT
    )
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR_BELOW)
    axes.axhspan(-MARGIN, MARGIN, color=paper.MARGIN_BAND, linewidth=0, zorder=0)
    axes.yaxis.set_major_formatter(lambda tick, _: f"{tick:+g}" if tick else "0")
    axes.yaxis.set_minor_locator(NullLocator())
    ticks: list[int] = []
    for parameters in sorted(size.parameters for size in sizes):
        # Encodings of one size have a few parameters more or less.
        if not ticks or parameters > 1.5 * ticks[-1]:
            ticks.append(parameters)
    axes.set_xticks(ticks, [f"{parameters / 1e6:.1g}M" for parameters in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("parameters")
    axes.grid(axis="y", color=paper.RULE)
    styles = paper.styles_of(size.encoding for size in sizes)
    for encoding, alike in grouped(sizes, lambda size: size.encoding).items():
        style = styles[encoding]
        own = [size for size in alike if size.has_own_tokens and size.far]
        others = [size for size in alike if not size.has_own_tokens and size.far]
        x = [size.parameters for size in own]
        y = [size.far.mean for size in own if size.far]
        axes.plot(x, y, color=style.colour, marker=style.marker, linestyle=style.stroke, label=encoding)
        x = [size.parameters for size in others]
        y = [size.far.mean for size in others if size.far]
        axes.plot(x, y, linestyle="", marker=style.marker, markerfacecolor="none", color=style.colour)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
    note = paper.wrapped(
        [
            f"Changes are against {study.length:,} tokens, the training length: below zero is a gain.",
            f"Lines: each size with its own tokens. Hollow: after {spell_tokens(study.tokens)} tokens.",
        ]
    )
    bottom = top + HEIGHT + 0.55
    paper.place_text(figure, paper.LEFT, bottom, note, fontsize=paper.NOTE_FONT, color=paper.GREY)
    return figure
