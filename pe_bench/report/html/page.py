"""The whole page, from tables and from records of their runs."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pe_bench.plot.style import Style, styles_of
from pe_bench.report.charts.curves import Chart, PlotValues, charts_of
from pe_bench.report.charts.draw import Losses, losses_svg
from pe_bench.report.columns import details_of, short
from pe_bench.report.html.picture import Picture, make_picture
from pe_bench.report.html.probes import probe_sections
from pe_bench.report.html.provenance import summarize
from pe_bench.report.html.style import ANCHOR, LineStyle, line_styles
from pe_bench.report.legend import legend
from pe_bench.report.needles import ProbeTable
from pe_bench.report.records import Line, Table
from pe_bench.runs.folder import RunRecord
from pe_bench.system.grid import Cell, Grid
from pe_bench.system.terminal import in_one_line, one_line

PACKAGE = "pe_bench.report.html"
TITLE = "pe-bench report"
HINT = "a line opens for its 95 % intervals, controls and speed"
MAX_NAMES = 4  # of encodings in the sentence with the result
TALL = 12  # lines; a longer table scrolls under its headings


@dataclass(frozen=True)
class PageLine:
    """A line of a table, which opens for its details; key: what it has in common with its curves."""

    key: str
    label: str
    style: LineStyle
    cells: Sequence[Cell]
    details: Sequence[Grid]


@dataclass(frozen=True)
class Section:
    """A table of the page with its pictures.

    views: levels and changes by length, of which one is shown. reading: what changes how the table is read;
    notes: everything else that there is to say of it.
    """

    table: Table
    result: str
    views: Sequence[Picture]
    positions: Picture | None
    losses: Markup
    grid: Grid
    lines: Sequence[PageLine]
    title: str
    reading: Sequence[str]
    notes: Sequence[str]

    @property
    def is_tall(self) -> bool:
        return len(self.lines) > TALL


def to_html(
    tables: Sequence[Table],
    records: Sequence[RunRecord],
    title: str = TITLE,
    view: PlotValues = "levels",
    probes: Sequence[ProbeTable] = (),
    losses: Losses = MappingProxyType({}),
) -> str:
    """Return the page as text; `view` is what its pictures of levels show at first.

    losses: of training, by the names of runs.

    Style and script are in it, and by its own policy it may ask for nothing else. Whatever comes from a run
    stands on one line and is escaped by the templates.
    """
    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sortable"] = _sortable
    style, script = _resource("style.css"), _resource("script.js")
    if probes:
        style += _resource("probes.css")
    return environment.get_template("page.html.jinja").render(
        title=one_line(title),
        view=view,
        style=style,
        script=script,
        policy=_policy(style, script),
        sections=_sections(tables, losses),
        probes=probe_sections(probes),
        summary=_summary(tables, records),
        provenance=summarize(in_one_line(records)) if records else None,
    )


def describe_result(table: Table) -> str:
    """Return how many lines hold to the longest length, and which."""
    longest = max(table.lengths, default=0)
    if longest <= table.key.train_length:
        return "Nothing was scored beyond the training length."
    held = [line.label for line in table.lines if line.break_point.holds_to == longest]
    unclear = sum(line.break_point.works_to == longest for line in table.lines) - len(held)
    verb = "holds" if len(held) == 1 else "hold"
    names = f": {', '.join(held)}" if 0 < len(held) <= MAX_NAMES else ""
    doubtful = f" {unclear} {'is' if unclear == 1 else 'are'} unclear." if unclear else ""
    times = longest / table.key.train_length
    return (
        f"{len(held) or 'None'} of {len(table.lines)} {verb} to {longest:,} tokens, "
        f"{times:g} times the training length{names}.{doubtful}"
    )


def _sections(tables: Sequence[Table], losses: Losses) -> list[Section]:
    tables = [part for table in tables for part in table.with_recall]
    styles = styles_of(line.label for table in tables for line in table.lines)
    charts = zip(charts_of(tables), charts_of(tables, "change"), strict=True)
    return [
        _section(table, f"{place}", list(dict.fromkeys([levels[0], changes[0]])), levels[1:], styles, losses)
        for place, (table, (levels, changes)) in enumerate(zip(tables, charts, strict=True))
    ]


def _section(
    table: Table,
    prefix: str,
    views: Sequence[Chart],
    positions: Sequence[Chart],
    styles: Mapping[str, Style],
    losses: Losses,
) -> Section:
    grid = short(table)
    *title, _ = grid.title  # without the unit, which the pictures have
    looks = line_styles(styles)
    keys = {line.label: f"{prefix}-{place}" for place, line in enumerate(table.all_lines)}
    drawn = [
        make_picture(chart, table, f"{prefix}-{number}", prefix, styles)
        for number, chart in enumerate((*views, *positions))
    ]
    return Section(
        table=table,
        result=describe_result(table),
        views=[picture for picture in drawn[: len(views)] if picture],
        positions=next(iter(drawn[len(views) :]), None),
        losses=Markup(losses_svg(table.lines, losses, styles, f"{prefix}-losses", keys)),
        grid=grid,
        lines=[
            PageLine(
                keys[line.label],
                line.label,
                ANCHOR if line.is_anchor else looks[line.label],
                cells,
                _details(line, table),
            )
            for line, (_, *cells) in zip(table.all_lines, grid.rows, strict=True)
        ],
        title=" · ".join(title),
        reading=[*grid.notes, HINT],
        notes=[table.title, *legend(table), *(note for note in table.notes if note not in table.caveats)],
    )


def _details(line: Line, table: Table) -> list[Grid]:
    """Return the details of one line, without its name."""
    alone = replace(table, lines=() if line.is_anchor else (line,), anchors=(line,) if line.is_anchor else ())
    grids = [grid.without_empty() for grid in details_of(alone)]
    return [grid.chosen(range(1, len(grid.columns))) for grid in grids]


def _sortable(value: float) -> str:
    """Return a number as the script reads it; empty for what is none and so sorts last."""
    if math.isnan(value):
        return ""
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _summary(tables: Sequence[Table], records: Sequence[RunRecord]) -> str:
    """Return how much there is, and when the last of it was trained."""
    shown = [part for table in tables for part in table.with_recall]
    labels = {line.label for table in tables for line in table.lines}
    counts = {"encoding": len(labels), "run": len(records), "table": len(shown)}
    parts = [f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count]
    dates = [record.date[:10] for record in records if record.date]
    return ", ".join([*parts, *([f"trained until {max(dates)}"] if dates else [])])


def _resource(name: str) -> Markup:
    return Markup(files(PACKAGE).joinpath(name).read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> str:
    """Return a policy by which nothing is fetched, and no other style or script than the page's is used."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
    )
