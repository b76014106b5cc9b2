"""The page of a report: valid, escaped, and self-contained."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from support.pages import some_tables

from pe_bench.render.paper import COLOURS, STROKES, styles_of
from pe_bench.report.curves import chart_of, chart_over_position
from pe_bench.report.page import describe_result, to_html

VOID = ("meta", "link", "br", "input")


class Page(HTMLParser):
    """The text of a page by the elements that it is in; fails where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[int] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.handle_data(" ")
        assert self.elements[self.open.pop()][0] == tag

    def handle_data(self, data):
        for index in self.open:
            self.texts[index] += data

    def find(self, tag: str) -> list[str]:
        """Return the texts of the elements, on one line each."""
        elements = zip(self.elements, self.texts, strict=True)
        return [" ".join(text.split()) for (name, _), text in elements if name == tag]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return some_tables(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def page(tables):
    return Page(to_html(tables))


def line_of(page: Page, name: str) -> str:
    """Return the text of a line of the first table, with its details."""
    return next(line for line in page.find("tbody") if line.startswith(f"{name} "))


def test_a_line_says_how_far_it_works_its_level_and_its_differences_and_opens_for_the_rest(tables, page):
    line = next(line for line in tables[0].lines if line.encoding == "sinusoidal")
    cell, better = line.records[1024], " −0.300b better"
    shown = line_of(page, "sinusoidal")
    assert shown.startswith(f"sinusoidal 3.100{3 * better} 128 to 256 yes "), "a level has no mark"
    assert line_of(page, "rope").startswith("rope 2.600 (0) (0) (0) "), "the baseline itself"
    for said in (
        f"{cell.level:.3f}",
        f"{cell.change:+.3f}",
        f"{(cell.interval.high - cell.interval.low) / 2:.3f} fails",
        "−0.300 0.100 better yes no 130",
        f"≤ 256 2 {line.parameters:,} 800",
    ):
        assert said in shown, said
    assert "1,024 undefined" in line_of(page, "learned")
    assert "undefined: learned at 1,024: position 1023 is past the table of 128" in page.find("section")[0]


def test_the_page_says_at_its_top_how_many_hold_and_loads_nothing_else(tables, page):
    (header,) = page.find("header")
    assert "1 of 4 surely hold to 1,024 tokens, 8 times the training length: alibi." in header
    short = replace(tables[0], lengths=(64, 128))
    assert describe_result(short) == "Nothing was scored beyond the training length."
    first, *others = (replace(line, unlearned="trigram") for line in tables[0].lines)
    one, none = (
        replace(tables[0], lines=lines) for lines in ((first, *tables[0].lines[1:]), (first, *others))
    )
    assert describe_result(one).endswith(". 1 more did not learn enough to be ranked.")
    assert describe_result(none) == "No line has learned enough to be ranked."
    for _, values in page.elements:
        loaded = [values.get(name) or "" for name in ("src", "href", "action", "srcset")]
        assert all(not value or value.startswith(("#", "data:")) for value in loaded)
    assert not re.search(r"url\(|@import|//\w", page.find("style")[0])
    assert not re.search(r"fetch|import|XMLHttp|https?:", page.find("script")[0])
    [policy] = [v["content"] for _, v in page.elements if v.get("http-equiv") == "Content-Security-Policy"]
    assert f"{policy}".startswith("default-src 'none'")


def test_every_point_of_a_curve_has_its_values(tables, page):
    labels = [
        f"{values['aria-label']}"
        for tag, values in page.elements
        if tag == "use" and values.get("class") == "marker" and "aria-label" in values
    ]
    cell = next(line for line in tables[0].lines if line.encoding == "sinusoidal").records[1024]
    text = next(label for label in labels if label.startswith("sinusoidal at 1,024 tokens\n"))
    assert f"\nbits/byte {cell.level:.3f}\nppl " in text and "\nverdict fails\n" in text
    assert f"\nchange {cell.change:+.3f} ± {(cell.interval.high - cell.interval.low) / 2:.3f}\n" in text
    charts = (
        chart
        for table in tables
        for chart in (chart_of(table), chart_of(table, "change"), chart_over_position(table))
    )
    assert len(labels) == sum(len(chart.points) for chart in charts)


def test_lines_have_the_same_style_as_in_the_pictures():
    style = files("pe_bench.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    light = style.split("@media")[0]
    assert re.findall(r"--colour\d: (#\w+);", light) == [colour.lower() for colour in COLOURS]
    assert f"stroke{len(STROKES) - 1}" in style and f"stroke{len(STROKES)}" not in style
    assert len(set(styles_of(str(number) for number in range(60)).values())) == 60


def test_the_training_losses_of_all_runs_are_curves_that_belong_to_their_lines(tables, page):
    one = replace(tables[0], lines=tables[0].lines[:1])
    losses = {run: [(step, 3.0 - 0.01 * step) for step in range(100)] for run in one.lines[0].runs}
    text = to_html([one], losses=losses)
    curves = re.findall(r'<g class="line colour\d stroke0" data-line="0-0">', text)
    assert len(curves) == 5, "three pictures, and two runs"
    caption = "Training loss of each run by step, nats per token"
    assert caption in Page(text).find("figcaption") and caption not in page.find("figcaption")


def test_the_title_that_a_program_gives_a_page_is_text() -> None:
    page = to_html([], title="<script>a & b")
    assert page.count("&lt;script&gt;a &amp; b") == 2 and "<script>a" not in page


def test_the_margin_of_a_change_has_a_colour_of_the_page(tables) -> None:
    page = to_html(tables)
    assert "#f0f0f0" not in page and 'fill="var(--raised)"' in page


def luminance(colour: str) -> float:
    """Return the relative luminance of #rgb or #rrggbb, as WCAG 2.1 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("is_dark", [False, True])
def test_words_have_the_contrast_to_their_ground_that_wcag_asks_for(is_dark: bool) -> None:
    style = files("pe_bench.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w+);", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    colours = light | dark if is_dark else light
    for name in ("ink", "soft", "accent", "improves", "holds", "degrades", "fails", "unclear"):
        for ground in ("paper", "raised"):
            low, high = sorted(luminance(colours[each]) for each in (name, ground))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)
