"""The picture of a study: its curves, or where encodings break against the tokens that they trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pe_bench.plot.file import save_picture
from pe_bench.plot.placing import apply_scale, lines_height, place_axes, place_text
from pe_bench.plot.scale import scale_of_lengths
from pe_bench.plot.style import FONT, LEFT, NOTE_FONT, WIDTH, styles_of
from pe_bench.report.charts.figure import plot_tables
from pe_bench.report.statistics import breaks_at
from pe_bench.report.tables.build import build_tables
from pe_bench.report.tables.selection import Selection
from pe_bench.runs.conditions import Condition
from pe_bench.runs.rows import TASK
from pe_bench.studies.definition import Study
from pe_bench.studies.measurements import Measurements, Series

PANEL_WIDTH, PANEL_HEIGHT = 6.0, 3.2  # inches
NO_VERDICT = ("frequencies", "task")  # a model that is worse than a trigram has one
NOTE = "hollow: does not surely break up to the longest length; none: no better than token frequencies"


@dataclass(frozen=True)
class Break:
    """The break point of an encoding after a training; where it has none, the longest length."""

    tokens: int
    length: int
    is_known: bool


def draw_study(study: Study, found: Measurements, results_dir: Path, path: Path) -> None:
    """Draw break points against training tokens where a study has several budgets, else its curves."""
    rows = [row for own in found.rows.values() for row in own if row.protocol in ("paired", TASK)]
    if len({sweep.tokens for sweep in study.sweeps}) > 1:
        points, lengths = break_points(study, found), sorted({row.length for row in rows})
        longer = [length for length in lengths if length > found.length]
        save_picture(lambda: _draw(study, points, longer), path)
        return
    # Other studies may have scored the same runs at other lengths and under other encodings.
    where = tuple(
        Condition(column, "=", tuple(sorted({str(getattr(row, column)) for row in rows})))
        for column in ("target_hash", "length", "scored_with")
    )
    runs = sorted({row.run for row in rows})
    plot_tables(build_tables(results_dir, runs, selection=Selection(where=where)), path)


def break_points(study: Study, found: Measurements) -> dict[str, list[Break]]:
    """Return the break points of each encoding that has learned, in the order of training tokens."""
    points: dict[str, list[Break]] = {}
    for sweep in study.sweeps:
        for name in sweep.encodings:
            series = Series(name, sweep.name)
            verdicts = {} if found.unlearned(series) in NO_VERDICT else found.verdicts(series, "paired")
            tokens = {row.train_tokens for row in found.rows[sweep.name]}
            if verdicts and len(tokens) == 1:
                length = breaks_at(verdicts)
                point = Break(tokens.pop(), length or max(verdicts), length is not None)
                points.setdefault(name, []).append(point)
    return {name: sorted(own, key=lambda point: point.tokens) for name, own in points.items()}


def _draw(study: Study, points: dict[str, list[Break]], lengths: Sequence[int]) -> Figure:
    title = f"{study.name}: break point by training tokens"
    top = lines_height(title, FONT) + 0.15
    figure = Figure(figsize=(WIDTH, top + PANEL_HEIGHT + 0.85))
    FigureCanvasAgg(figure)
    place_text(figure, LEFT, 0.0, title)
    axes = place_axes(figure, LEFT, top, PANEL_WIDTH, PANEL_HEIGHT)
    styles = styles_of(points)
    for place, (name, own) in enumerate(points.items()):
        style, size = styles[name], 11 - 3 * min(place, 2)  # smaller marks lie on larger ones
        where = [point.tokens for point in own], [point.length for point in own]
        axes.plot(*where, color=style.colour, linestyle=style.stroke, linewidth=1.4, label=name)
        for point in own:
            face = style.colour if point.is_known else "none"
            marker = {"color": style.colour, "markerfacecolor": face, "markersize": size}
            axes.plot(point.tokens, point.length, style.marker, **marker)
    _set_axes(axes, sorted({point.tokens for own in points.values() for point in own}), lengths)
    if points:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    place_text(figure, LEFT, top + PANEL_HEIGHT + 0.6, NOTE, fontsize=NOTE_FONT)
    return figure


def _set_axes(axes: Axes, tokens: Sequence[int], lengths: Sequence[int]) -> None:
    if tokens:
        apply_scale(axes, "x", scale_of_lengths(tokens), tokens, [f"{count:,}" for count in tokens])
    apply_scale(axes, "y", scale_of_lengths(lengths), lengths, [f"{length:,}" for length in lengths])
    axes.set_xlabel("training tokens, log scale")
    axes.set_ylabel("breaks at (tokens, log scale)")
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
