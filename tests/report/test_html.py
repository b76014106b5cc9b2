"""The page of a report: valid, escaped, and self-contained."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from support.pages import some_records, some_tables

from pe_bench.plot.paper import COLOURS, MARKERS, STROKES, styles_of
from pe_bench.report.curves import chart_of, chart_over_position
from pe_bench.report.page import MARKER_PATHS, describe_result, to_html
from pe_bench.report.records import Line, Table

VOID = ("meta", "link", "br", "input")


class Page(HTMLParser):
    """The elements of a page with the text inside each; fails where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[int] = []
        self.names: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.depths: list[int] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes.append(dict(attrs))
        self.texts.append("")
        self.depths.append(len(self.open))
        if tag not in VOID:
            self.open.append(len(self.names) - 1)

    def handle_endtag(self, tag):
        if tag in ("th", "td", "dt"):
            self.handle_data(" ")
        assert self.names[self.open.pop()] == tag

    def handle_data(self, data):
        for place in self.open:
            self.texts[place] += data

    def find(self, tag: str, class_: str = "") -> list[str]:
        return [self.texts[place] for place in self.places(tag, class_)]

    def places(self, tag: str, class_: str = "") -> list[int]:
        return [
            place
            for place, (name, attributes) in enumerate(zip(self.names, self.attributes, strict=True))
            if name == tag and set(class_.split()) <= set((attributes.get("class") or "").split())
        ]

    def cells_in(self, body: int) -> list[str]:
        """The cells of the first two rows of a body of a table."""
        depth_of = {place: self.depths[place] for place in (*self.places("th"), *self.places("td"))}
        end = next(
            (
                place
                for place in self.places("tbody")
                if place > body and self.depths[place] == self.depths[body]
            ),
            len(self.names),
        )
        return [
            self.texts[place]
            for place, depth in sorted(depth_of.items())
            if body < place < end and depth == self.depths[body] + 2
        ]

    def attributes_of(self, tag: str, class_: str = "") -> list[dict[str, str | None]]:
        return [self.attributes[place] for place in self.places(tag, class_)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return some_tables(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def page(tables):
    return Page(to_html(tables, some_records()))


def lines_of(page: Page) -> dict[str, list[str]]:
    """The cells of each line of the page's tables by its name, those of its details after the others."""
    found = {}
    for place in page.places("tbody"):
        if "data-line" in page.attributes[place]:
            cells = [" ".join(text.split()) for text in page.cells_in(place)]
            found.setdefault(cells[0], cells)
    return found


def without_baseline(table: Table) -> Table:
    def without(line: Line) -> Line:
        return replace(
            line, records={length: replace(cell, baseline=None) for length, cell in line.records.items()}
        )

    return replace(table, baseline="", lines=tuple(map(without, table.lines)))


def test_a_line_says_how_far_it_works_its_level_and_its_differences(tables, page):
    table = tables[0]
    line = next(line for line in table.lines if line.encoding == "sinusoidal")
    shown = lines_of(page)["sinusoidal"]
    better = ["−0.300v better"] * 3
    assert shown[:6] == ["sinusoidal", "3.100", *better, "not at all"], "a level has no mark"
    assert lines_of(page)["alibi"][5] == "1,024"
    assert lines_of(page)["learned"][4] == "-"
    assert lines_of(page)["rope"][1:5] == ["2.600", "2.600", "3.100", "4.600"], "the baseline itself"
    changes = lines_of(page_of([without_baseline(table)]))
    assert changes["sinusoidal"][1:4] == ["3.100", "+1.100! fails", "+1.200! fails"]
    assert line.records[1024].use is not None and shown[6] == "yes"


def test_a_line_opens_for_levels_intervals_verdicts_and_speed(tables, page):
    line = next(line for line in tables[0].lines if line.encoding == "sinusoidal")
    cell, details = line.records[1024], lines_of(page)["sinusoidal"][7]
    for said in (
        f"{cell.bits_per_byte:.3f}",
        f"{cell.change:+.3f}",
        f"{(cell.interval.high - cell.interval.low) / 2:.3f} fails",
        "−0.300 0.100 better yes no 130",
        f"≤ 256 2 {line.parameters:,} 800",
    ):
        assert said in details, said
    assert "1024 undefined" in lines_of(page)["learned"][7]
    assert "undefined: learned at 1024: position 1023 is past the table of 128" in page.find("section")[0]


def test_the_page_says_at_its_top_how_many_hold(tables, page):
    (header,) = page.find("header")
    assert "1 of 4 holds to 1,024 tokens, 8 times the training length: alibi." in header
    short = replace(tables[0], lengths=(64, 128))
    assert describe_result(short) == "Nothing was scored beyond the training length."


def test_every_point_of_a_curve_has_its_values(tables, page):
    labels = [
        attributes["aria-label"]
        for attributes in page.attributes_of("use", "marker")
        if "aria-label" in attributes
    ]
    cell = next(line for line in tables[0].lines if line.encoding == "sinusoidal").records[1024]
    text = next(label for label in labels if label.startswith("sinusoidal at 1024 tokens\n"))
    assert f"\nbits/byte {cell.bits_per_byte:.3f}\nppl " in text
    assert f"\nchange {cell.change:+.3f} ± {(cell.interval.high - cell.interval.low) / 2:.3f}\n" in text
    assert "\nverdict fails\n" in text
    charts = [
        chart
        for table in tables
        for chart in (chart_of(table), chart_of(table, "change"), chart_over_position(table))
    ]
    assert len(labels) == sum(len(chart.points) for chart in charts)


def page_of(tables, records=()) -> Page:
    return Page(to_html(tables, records))


def test_the_page_loads_nothing_else(page):
    for attributes in page.attributes:
        for name in ("src", "href", "action", "srcset"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:"))
    style, script = page.find("style")[0], page.find("script")[0]
    assert not re.search(r"url\(|@import|//\w", style)
    assert not re.search(r"fetch|import|XMLHttp|https?:", script)
    (policy,) = [
        a["content"] for a in page.attributes_of("meta") if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy and policy.startswith("default-src 'none'")


def test_lines_have_the_same_style_as_in_the_pictures():
    style = files("pe_bench.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    light = style.split("@media")[0]
    assert re.findall(r"--colour\d: (#\w+);", light) == [colour.lower() for colour in COLOURS]
    assert f"stroke{len(STROKES) - 1}" in style and f"stroke{len(STROKES)}" not in style
    assert set(MARKER_PATHS) == set(MARKERS)
    assert len(set(styles_of(str(number) for number in range(60)).values())) == 60


def test_the_commands_that_made_the_report_are_listed_once_each(page):
    section = next(text for text in page.find("section") if "Reproduce this report" in text)
    for said in ("pe-bench train -m encoding=rope,alibi,t5", "4 runs", "AMD EPYC", "4f1d2c9ab012"):
        assert section.count(said) == 1, said
    assert "da7a0123456789" in section and "no command for rope-s1-x: lost" in section
    assert "no command for mine: none was kept" in section


def test_the_training_losses_of_all_runs_are_curves_that_belong_to_their_lines(tables, page):
    one = replace(tables[0], lines=tables[0].lines[:1])
    losses = {run: [(step, 3.0 - 0.01 * step) for step in range(100)] for run in one.lines[0].runs}
    text = to_html([one], [], losses=losses)
    assert len(re.findall(r'<g class="line colour\d stroke0" data-line="0-0">', text)) == 5, (
        "three pictures, and two runs"
    )
    caption = "Training loss of each run by step, nats per token"
    assert caption in Page(text).find("figcaption") and caption not in page.find("figcaption")
