"""What a longer training changes: levels, changes and use of far text over the training tokens.

For studies with `over: tokens`, whose sweeps differ in their training tokens alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.ticker import NullLocator

from pe_bench.commands.reproduce.claims import Measurements, Series
from pe_bench.commands.reproduce.lines import table_lines
from pe_bench.commands.reproduce.study import Study, spell_tokens
from pe_bench.render import paper
from pe_bench.report.records import ContextUse
from pe_bench.report.statistics import MARGIN, Interval, breaks_at
from pe_bench.runs.rows import grouped
from pe_bench.runs.scores import RECALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pe_bench.render.paper import Style

NEAR_TIMES, FAR_TIMES = 2, 8  # times the training length, at which changes are shown
LINEAR_BELOW = 0.1  # bits per byte; the axis of changes is logarithmic above
WIDTH, PANEL = 6.6, 1.9  # inches, of a panel
ABOVE, BETWEEN, BELOW = 0.45, 0.75, 0.4  # inches: below the title, between panels, for the note
UNLEARNED_MARK = "*"  # behind the level of models that have not learned
MIN_ORDERED = 3  # the fewest encodings whose order says something


@dataclass(frozen=True)
class BudgetResult:
    """The results of an encoding after a number of training tokens, in bits per byte.

    A number that was not scored is None.
    """

    encoding: str
    tokens: int  # the number of training tokens
    seeds: int
    level: float  # the level at the training length
    near: Interval | None  # the change at `NEAR_TIMES` times the training length
    far: Interval | None  # the change at `FAR_TIMES` times the training length
    recall: Interval | None  # the change of the recall targets at `NEAR_TIMES` times the training length
    # At `NEAR_TIMES` times the training length: the cost of far text from another document.
    swap: Interval | None
    # At the same length: whether text beyond the training length is used: yes, no, unclear, or empty.
    reads_far: str
    breaks_at: int | None  # the first length, in tokens, that surely degrades or fails
    # At the training length, the models are surely better than token frequencies, and not surely worse than a
    # trigram; otherwise their changes mean nothing.
    has_learned: bool = True


def budget_results(study: Study, scores: Measurements) -> list[BudgetResult]:
    """Return the results of each encoding at each budget, encoding by encoding."""
    budgets_by_key: dict[tuple[str, int], BudgetResult] = {}  # two budgets of a toy may be the same runs
    order_of_encodings: dict[str, int] = {}  # the order of the encodings
    all_series: list[Series] = []
    for sweep in study.sweeps:
        all_series += [Series(encoding, sweep.name) for encoding in sweep.encodings]
    for series in dict.fromkeys(all_series):
        order_of_encodings.setdefault(series.label, len(order_of_encodings))
        budget = budget_result(series, scores)
        if budget is not None:
            budgets_by_key[series.label, budget.tokens] = budget
    return sorted(
        budgets_by_key.values(), key=lambda budget: (order_of_encodings[budget.encoding], budget.tokens)
    )


def budget_result(series: Series, scores: Measurements) -> BudgetResult | None:
    """Return the results of a series, at one budget; None if the training length was not scored."""
    length = scores.length
    trained = scores.rows_at(series, length, "paired")
    if not trained:
        return None
    levels = [row.bits_per_byte for row in trained if row.bits_per_byte is not None]
    if not levels:
        return None
    near = scores.change(series, NEAR_TIMES * length, "paired")
    far = scores.change(series, FAR_TIMES * length, "paired")
    recall = scores.change(series, NEAR_TIMES * length, "paired", RECALL)
    use = scores.context_use(series, NEAR_TIMES * length) or ContextUse()
    has_learned = not scores.unlearned(series)
    return BudgetResult(
        encoding=series.label,
        tokens=trained[0].train_tokens,
        seeds=len(levels),
        level=sum(levels) / len(levels),
        near=near.interval,
        far=far.interval,
        recall=recall.interval,
        swap=use.swap_gain,
        reads_far=use.uses_context if has_learned else "",
        breaks_at=breaks_at(scores.verdicts(series, "paired")),
        has_learned=has_learned,
    )


def first_budget_that_reads_far(budgets: Iterable[BudgetResult]) -> dict[str, int | None]:
    """Return, for each encoding, the smallest budget of training tokens from which it surely reads far.

    The encoding reads far at that budget and at all larger budgets; None if there is no such budget.
    """
    first_budget: dict[str, int | None] = {}
    for encoding, alike in grouped(budgets, lambda budget: budget.encoding).items():
        first_budget[encoding] = None
        for budget in sorted(alike, key=lambda budget: -budget.tokens):
            if budget.reads_far != "yes":
                break
            first_budget[encoding] = budget.tokens
    return first_budget


@dataclass(frozen=True)
class BudgetAgreement:
    """The agreement of two budgets in the order of encodings, by their level at the training length."""

    smaller: int  # training tokens of the smaller budget
    tokens: int  # training tokens of the larger budget
    tau: float  # Kendall's tau (1938): 1 for the same order, -1 for the opposite order
    encodings: int  # the number of encodings that have learned at both budgets


def budget_agreements(budgets: Sequence[BudgetResult]) -> list[BudgetAgreement]:
    """Return the agreement of each larger budget with the smallest budget in the order of encodings.

    The smallest budget is the first at which three encodings have learned. A larger budget is left out if
    fewer than three encodings have learned at both budgets.
    """
    levels_by_tokens: dict[int, dict[str, float]] = {}
    for budget in budgets:
        if budget.has_learned:
            levels_by_tokens.setdefault(budget.tokens, {})[budget.encoding] = budget.level
    ordered = [tokens for tokens in sorted(levels_by_tokens) if len(levels_by_tokens[tokens]) >= MIN_ORDERED]
    found = []
    for tokens in ordered[1:]:
        first = levels_by_tokens[ordered[0]]
        then = levels_by_tokens[tokens]
        shared = [encoding for encoding in first if encoding in then]
        if len(shared) >= MIN_ORDERED:
            pairs = [(first[encoding], then[encoding]) for encoding in shared]
            found.append(BudgetAgreement(ordered[0], tokens, kendall_tau(pairs), len(shared)))
    return found


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's tau between the first and the second numbers of at least two pairs; a tie counts 0."""
    agreeing = 0
    compared = 0
    for (first, then), (other_first, other_then) in combinations(pairs, 2):
        product = (first - other_first) * (then - other_then)
        agreeing += (product > 0) - (product < 0)
        compared += 1
    return agreeing / compared


# Text


def budget_table_lines(budgets: Sequence[BudgetResult], length: int, width: int) -> Iterator[str]:
    """Yield the lines of a table of budgets, its notes, and the budget from which each encoding reads far.

    length: the training length. width: the width of the terminal, in columns.
    """
    near = f"{NEAR_TIMES * length:,}"
    far = f"{FAR_TIMES * length:,}"
    numbers = (f"at {length:,}", near, far, f"recall {near}", "swap", "breaks")
    headings = ("", "tokens", "seeds", *numbers, "reads far")
    yield from table_lines(headings, list(map(_table_cells, budgets)), width, keys=2)
    yield ""
    yield f"{near}, {far}, recall: changes against {length:,} tokens, in bits per byte"
    yield f"swap: what another document's far text costs at {near} tokens"
    yield f"reads far: uses text further back than {length:,} tokens, by the controls at {near}; -: unknown"
    if not all(budget.has_learned for budget in budgets):
        yield f"{UNLEARNED_MARK}: not learned: surely worse than a trigram, so its changes mean nothing"
    for encoding, tokens in first_budget_that_reads_far(budgets).items():
        largest = max(budget.tokens for budget in budgets if budget.encoding == encoding)
        reads = "does not surely read far"
        if tokens:
            reads = f"surely reads far from {spell_tokens(tokens)} on"
        yield f"{encoding}: {reads} (trained on up to {spell_tokens(largest)} tokens)"
    yield from _agreement_lines(budgets, length)


def _agreement_lines(budgets: Sequence[BudgetResult], length: int) -> Iterator[str]:
    """Yield the lines on the agreement of budgets in the order of levels."""
    known = budget_agreements(budgets)
    if not known:
        return
    smaller = spell_tokens(known[0].smaller)
    yield f"Kendall's tau between the order of levels at {length:,} tokens after {smaller}, and the order"
    parts = [f"{spell_tokens(each.tokens)} {each.tau:+.2f}" for each in known]
    counts = sorted(each.encodings for each in known)
    bounds = map(str, (counts[0], counts[-1]))
    encodings = " to ".join(dict.fromkeys(bounds))
    yield f"after {', '.join(parts)} ({encodings} encodings)"


def _table_cells(budget: BudgetResult) -> tuple[str, ...]:
    level = f"{budget.level:.3f}"
    if not budget.has_learned:
        level += UNLEARNED_MARK
    runs = (spell_tokens(budget.tokens), str(budget.seeds))
    means = map(spell_mean, (budget.near, budget.far, budget.recall, budget.swap))
    breaks = f"{budget.breaks_at:,}" if budget.breaks_at else "none"
    return budget.encoding, *runs, level, *means, breaks, budget.reads_far or "-"


def spell_mean(interval: Interval | None) -> str:
    """Return the mean with its sign and three decimals; `-` without an interval."""
    return f"{interval.mean:+.3f}" if interval else "-"


# Picture


@dataclass(frozen=True)
class Panel:
    """A panel of the picture: one number of each budget over the training tokens."""

    title: str
    value: Callable[[BudgetResult], float | None]  # returns the number of a budget; None if it was not scored
    is_change: bool = True  # whether the number is a change; else it is a level


def draw_budgets(budgets: Sequence[BudgetResult], study: Study, path: Path) -> None:
    """Draw levels and changes over the training tokens; the suffix of the path is the file's format."""
    paper.save_picture(lambda: _draw_figure(budgets, study), path)


def _draw_figure(budgets: Sequence[BudgetResult], study: Study) -> "Figure":
    near, far = f"{NEAR_TIMES * study.length:,}", f"{FAR_TIMES * study.length:,}"
    panels = [
        Panel(
            f"level at {study.length:,} tokens, bits per byte", lambda budget: budget.level, is_change=False
        ),
        Panel(f"change at {near}", lambda budget: _mean(budget.near)),
        Panel(f"change at {far}", lambda budget: _mean(budget.far)),
        Panel(f"change at {near}, recall targets", lambda budget: _mean(budget.recall)),
    ]
    note = paper.wrapped(
        [
            f"Changes are against {study.length:,} tokens, the training length: below zero is a gain.",
            f"Rings: text further back than {study.length:,} tokens is surely used.",
        ]
    )
    top = paper.lines_height(study.title, paper.FONT) + ABOVE
    step = PANEL + BETWEEN
    end = top + len(panels) * step
    figure = paper.new_figure(paper.WIDTH, end + BELOW)
    paper.place_text(figure, paper.LEFT, 0, study.title)
    styles = paper.styles_of(budget.encoding for budget in budgets)
    curves = grouped(budgets, lambda budget: budget.encoding)
    for number, panel in enumerate(panels):
        axes = paper.place_axes(figure, paper.LEFT, top + number * step, WIDTH, PANEL)
        _draw_panel(axes, panel, curves, styles)
        if panel is panels[-1]:
            axes.set_xlabel("training tokens")
    paper.place_text(
        figure, paper.LEFT, end - BETWEEN + 0.6, note, fontsize=paper.NOTE_FONT, color=paper.GREY
    )
    return figure


def _draw_panel(
    axes: "Axes", panel: Panel, curves: Mapping[str, Sequence[BudgetResult]], styles: Mapping[str, "Style"]
) -> None:
    """Draw a panel with a curve for each encoding. curves, styles: by encoding, its budgets and its style."""
    axes.set_title(panel.title, loc="left", fontsize=paper.FONT)
    axes.set_xscale("log", base=2)
    if panel.is_change:
        axes.set_yscale("symlog", linthresh=LINEAR_BELOW)
        axes.axhspan(-MARGIN, MARGIN, color=paper.MARGIN_BAND, linewidth=0, zorder=0)
        axes.yaxis.set_major_formatter(lambda tick, _: f"{tick:+g}" if tick else "0")
    axes.yaxis.set_minor_locator(NullLocator())
    for encoding, budgets in curves.items():
        style = styles[encoding]
        curve_points: list[tuple[int, float]] = []
        ringed_points: list[tuple[int, float]] = []
        for budget in budgets:
            value = panel.value(budget)
            if value is not None:
                curve_points.append((budget.tokens, value))
                if budget.reads_far == "yes":
                    ringed_points.append((budget.tokens, value))
        x = [tokens for tokens, _ in curve_points]
        y = [value for _, value in curve_points]
        axes.plot(x, y, color=style.colour, marker=style.marker, linestyle=style.stroke, label=encoding)
        for tokens, value in ringed_points:
            axes.plot(tokens, value, "o", markersize=11, markerfacecolor="none", color=style.colour)
    ticks = sorted({budget.tokens for budget in chain.from_iterable(curves.values())})
    axes.set_xticks(ticks, [spell_tokens(tokens) for tokens in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=paper.RULE)
    if not panel.is_change:
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)


def _mean(interval: Interval | None) -> float | None:
    return interval.mean if interval else None
