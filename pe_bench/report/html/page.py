"""The whole page, from tables and from records of the runs behind them."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

from pe_bench.report.html.curves import level_picture, position_picture
from pe_bench.report.html.element import Html, element
from pe_bench.report.html.provenance import made_section
from pe_bench.report.html.style import Look, looks_of
from pe_bench.report.html.table import render_table
from pe_bench.report.legend import legend
from pe_bench.report.tables.build import Table
from pe_bench.runs.provenance import RunRecord

TITLE = "pe-bench report"
CELLS = (
    "cells: bits per byte (with the number of seeds where it is not all), the change against the training "
    "length with its verdict and 95 % interval; MB: at the peak over all lengths"
)


def to_html(tables: Sequence[Table], provenance: Sequence[RunRecord], title: str = TITLE) -> str:
    """The page as text. Style and script are in it, and it may ask for nothing else, by its own policy."""
    looks = looks_of(tables)
    style, script = _resource("style.css"), _resource("script.js")
    head = element(
        "head",
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">'),
        Html('<meta name="color-scheme" content="light dark">'),
        Html('<link rel="icon" href="data:,">'),
        element("title", title),
        element("style", style),
    )
    body = element(
        "body",
        element(
            "header", element("h1", title), element("p", _summary(tables, provenance)), _contents(tables)
        ),
        element(
            "main",
            *(_table_section(table, place, looks) for place, table in enumerate(tables)),
            made_section(provenance),
        ),
        element("div", id="tip", hidden="", aria_hidden="true"),
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _table_section(table: Table, place: int, looks: Mapping[str, Look]) -> Html:
    name = str(place)
    notes = [CELLS, *legend(table), *table.notes]
    return element(
        "section",
        element("h2", table.title),
        element("p", table.why, class_="why") if table.why else Html(),
        level_picture(table, name, looks),
        render_table(table, name, looks),
        element("ul", *(element("li", note) for note in notes), class_="notes"),
        position_picture(table, name, looks),
        id=f"table-{place + 1}",
    )


def _summary(tables: Sequence[Table], provenance: Sequence[RunRecord]) -> str:
    encodings = {line.label for table in tables for line in table.lines}
    counts = {"line": len(encodings), "run": len(provenance), "table": len(tables)}
    return ", ".join(
        f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count
    )


def _contents(tables: Sequence[Table]) -> Html:
    """Links to the tables, where there are several."""
    if len(tables) < 2:
        return Html()
    links = [
        element("li", element("a", table.title, href=f"#table-{place}"))
        for place, table in enumerate(tables, start=1)
    ]
    return element("nav", element("ol", *links), aria_label="Tables")


def _resource(name: str) -> Html:
    return Html(files("pe_bench.report.html").joinpath(name).read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> str:
    """Nothing is fetched, and no other style or script than the page's own is used."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
    )
