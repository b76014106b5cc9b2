"""The report as one page that needs nothing else: no network, no other file, no other program."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import chain
from types import MappingProxyType
from typing import Any

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup

from pe_bench.render.grid import Grid
from pe_bench.render.paper import Style, styles_of
from pe_bench.report.cells import number_text
from pe_bench.report.columns import detail_grids, point_text, short_grid
from pe_bench.report.curves import POSITION_LABEL, Chart, Curve, Point, chart_of, chart_over_position
from pe_bench.report.draw import Losses, chart_svg, css_classes, losses_svg
from pe_bench.report.notes import legend
from pe_bench.report.probes import ProbeTable, grid_of
from pe_bench.report.records import Line, Table
from pe_bench.runs.find import COPYING, TRIGRAM
from pe_bench.runs.rows import ALL
from pe_bench.runs.scores import RECALL
from pe_bench.system.terminal import one_line

TEMPLATES_PACKAGE = "pe_bench.report"
LINE_HINT = "a line opens for its 95 % intervals, controls and speed"
MAX_NAMES = 4  # the most encodings to name in the sentence with the result
MAX_UNSCROLLED_LINES = 12  # lines; a longer table scrolls under its headings


def to_html(
    tables: Sequence[Table],
    probes: Sequence[ProbeTable] = (),
    losses: Losses = MappingProxyType({}),
    title: str = "pe-bench report",
) -> str:
    """Return the report as the text of an HTML page. losses: the training losses of runs, by their names.

    The page contains its style and script, and its content security policy forbids all requests. Every text
    of a run is one line, and is escaped by the templates.
    """
    templates = Templates(
        loader=PackageLoader(TEMPLATES_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _template_text("style.css"), _template_text("script.js")
    lines = chain.from_iterable(table.lines for table in tables)
    styles = styles_of(line.label for line in lines)
    return templates.get_template("page.html.jinja").render(
        title=one_line(title),
        style=style,
        script=script,
        policy=_content_security_policy(style, script),
        sections=[_section_values(table, f"{number}", styles, losses) for number, table in enumerate(tables)],
        probes=[grid_of(table) for table in probes],
    )


def describe_result(table: Table) -> str:
    """Return sentences on how many lines hold to the longest length, and on the gains on recall targets.

    For the table of the slice `recall`, only the gains; empty for other slices.
    """
    if table.key.slice != ALL:
        return _describe_recall(table)
    recall = "" if table.recall is None else _describe_recall(table.recall)
    return " ".join(filter(None, [_describe_holding(table), recall]))


def _describe_recall(table: Table) -> str:
    """Return the gains of copying and of the best line on recall targets; empty if unknown."""
    longest = max(table.lengths, default=0)
    recall_gains: dict[str, float] = {}
    for line in table.shown_lines:
        record = line.records.get(longest)
        if line.encoding == TRIGRAM or record is None or record.change is None:
            continue
        recall_gains[line.label] = -record.change
    copying_gain = recall_gains.pop(COPYING, 0.0)
    is_recall = table.key.slice == RECALL
    if not is_recall or copying_gain <= 0 or not recall_gains:
        return ""
    best = max(recall_gains, key=recall_gains.__getitem__)
    gain = f"{number_text(copying_gain)} {table.key.loss.unit}"
    copying = f"On recall targets copying gains {gain} at {longest:,} tokens"
    return f"{copying}; {best} gains {number_text(recall_gains[best])}."


def _describe_holding(table: Table) -> str:
    """Return sentences on the encodings that hold to the longest length, and on those that may."""
    longest = max(table.lengths, default=0)
    if longest <= table.key.train_length:
        return "Nothing was scored beyond the training length."
    ranked = [line for line in table.lines if line.is_ranked]
    if not ranked:
        return "No line has learned enough to be ranked."
    held = [line.label for line in ranked if line.break_point.holds_to == longest]
    working = sum(line.break_point.works_to == longest for line in ranked)
    unclear = working - len(held)
    times = longest / table.key.train_length
    text = f"{len(held)} of {len(ranked)} surely hold to {longest:,} tokens, "
    text += f"{times:g} times the training length"
    if 0 < len(held) <= MAX_NAMES:
        text += f": {', '.join(held)}"
    if unclear:
        text += f", {unclear} more may"
    text += "."
    not_learned = len(table.lines) - len(ranked)
    if not_learned:
        text += f" {not_learned} more did not learn enough to be ranked."
    return text


def _section_values(table: Table, prefix: str, styles: Mapping[str, Style], losses: Losses) -> dict[str, Any]:
    """Return the values of a table's section, by their names in the template.

    prefix: the beginning of the ids of its lines and pictures. Each line has its cells, and the details that
    open below it. The value `reading` has the notes on how to read the table, `notes` has all other notes.
    """
    grid = short_grid(table)
    line_ids: dict[str, str] = {}
    classes_of_lines: dict[str, str] = {}
    lines = []
    for number, (line, row) in enumerate(zip(table.shown_lines, grid.rows, strict=True)):
        line_ids[line.label] = f"{prefix}-{number}"
        classes_of_lines[line.label] = "anchor" if line.is_anchor else css_classes(styles[line.label])
        lines.append((line.label, row[1:], _details_of_line(line, table)))
    charts = [chart_of(table), chart_over_position(table)]
    if not table.is_task:
        charts.insert(1, chart_of(table, "change"))
    pictures = []
    for number, chart in enumerate(charts):
        if chart.points:
            picture = _picture(chart, f"{prefix}-{number}", line_ids, styles)
            pictures.append((chart, picture))
    losses_picture = losses_svg(table, losses, styles, f"{prefix}-losses", line_ids)
    below = [note for note in table.notes if note not in table.caveats]
    return {
        "table": table,
        "key_of": line_ids,
        "classes": classes_of_lines,
        "result": describe_result(table),
        "pictures": pictures,
        "losses": Markup(losses_picture),
        "grid": grid,
        "lines": lines,
        "is_tall": len(grid.rows) > MAX_UNSCROLLED_LINES,
        "title": " · ".join(table.title[:-1]),  # without the unit, which the pictures have
        "reading": [*grid.notes, LINE_HINT],
        "notes": [*legend(table), *below],
    }


def _details_of_line(line: Line, table: Table) -> list[Grid]:
    """Return the two grids of the detailed form for one line, without the column of names."""
    grids = [grid.without_empty() for grid in detail_grids(table, [line])]
    return [grid.with_columns(range(1, len(grid.columns))) for grid in grids]


def _picture(
    chart: Chart, picture_id: str, line_ids: Mapping[str, str], styles: Mapping[str, Style]
) -> Markup:
    """Return a chart as an SVG element with texts at its points; the arguments are as in `chart_svg`."""
    texts = []
    for curve in chart.curves:
        texts.append([_point_text(curve, point, chart) for point in curve.points])
    return Markup(chart_svg(chart, styles, picture_id, line_ids, texts))


def _point_text(curve: Curve, point: Point, chart: Chart) -> str:
    """Return the text of a point on the page: its curve, place and numbers, each on a line."""
    if chart.x_label == POSITION_LABEL:
        level = f"{number_text(point.value)} {chart.table.key.loss.name}"
        return f"{curve.label}\n{point.x:,.0f} tokens before it\n{level}"
    line = next(line for line in chart.table.lines if line.label == curve.label)
    return point_text(line, line.records[int(point.x)], chart.table)


def _template_text(name: str) -> Markup:
    """Return the text of a file in the folder of templates."""
    return Markup(files(TEMPLATES_PACKAGE).joinpath("templates", name).read_text(encoding="utf-8"))


def _content_security_policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this style and script, and pictures in data: URLs."""
    return f"default-src 'none'; img-src data:; style-src {_csp_hash(style)}; script-src {_csp_hash(script)}"


def _csp_hash(text: str) -> str:
    """Return the source expression of a content security policy that allows only this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
