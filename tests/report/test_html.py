"""The page of a report: whole, escaped, and alone."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
from support.pages import HOSTILE, some_records, some_tables
from support.results import add_run

from pe_bench.report.html.element import Html, element
from pe_bench.report.html.page import to_html
from pe_bench.report.html.scale import scale_of_lengths, scale_of_levels, spread_apart, ticks
from pe_bench.report.html.style import COLOURS, STROKES, looks_of
from pe_bench.report.html.table import break_order
from pe_bench.report.legend import legend
from pe_bench.report.tables.break_point import BreakPoint
from pe_bench.report.tables.build import build_tables
from pe_bench.runs.provenance import Environment, RunRecord

VOID = ("meta", "link", "br")


class Page(HTMLParser):
    """The elements of a page with the text inside each; fails where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[int] = []
        self.names: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes.append(dict(attrs))
        self.texts.append("")
        if tag not in VOID:
            self.open.append(len(self.names) - 1)

    def handle_endtag(self, tag):
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

    def attributes_of(self, tag: str, class_: str = "") -> list[dict[str, str | None]]:
        return [self.attributes[place] for place in self.places(tag, class_)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return some_tables(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def page(tables):
    return Page(to_html(tables, some_records()))


def test_a_cell_says_level_change_interval_verdict_difference_and_use(tables, page):
    table = tables[0]
    line = next(line for line in table.lines if line.encoding == "sinusoidal")
    row = next(text for text in page.find("tr") if text.startswith("sinusoidal"))
    cell = line.cells[1024]
    assert f"{cell.bits_per_byte:.3f}" in row and f"{cell.change:+.3f} fails" in row
    assert f"{cell.interval.low:+.3f} to {cell.interval.high:+.3f}" in row
    assert "vs rope −0.300\N{NO-BREAK SPACE}better" in row
    assert "uses context: yes" in row and "beats window: no" in row


def test_no_verdict_is_given_below_the_training_length(tables, page):
    cells = [cell for table in tables for line in table.lines for cell in line.cells.values()]
    assert all(cell.verdict in ("degrades", "fails") for cell in cells if cell.length == 64)
    beyond = [cell for cell in cells if cell.length > 128 and cell.levels]
    assert len(page.places("span", "verdict")) == len(beyond)


def test_tables_that_may_not_be_compared_are_sections_with_their_reason_notes_and_legend(tables, page):
    assert len(tables) == 2
    sections = [text for text in page.find("section") if "How this was made" not in text]
    for table, section in zip(tables, sections, strict=True):
        assert table.why and table.why in section and table.title in section
        assert all(note in section for note in table.notes)
        assert all(line in section for line in legend(table))


def test_every_point_of_a_curve_has_its_values(tables, page):
    labels = [
        attributes["aria-label"]
        for attributes in page.attributes_of("path", "marker")
        if "aria-label" in attributes
    ]
    cell = next(line for line in tables[0].lines if line.encoding == "sinusoidal").cells[1024]
    text = next(label for label in labels if label.startswith("sinusoidal at 1024 tokens\n"))
    assert f"{cell.bits_per_byte:.3f} bits/byte, perplexity " in text
    assert f"change {cell.change:+.3f} (95 %: {cell.interval.low:+.3f} to " in text
    assert "\nfails\n" in text
    finite = sum(len(line.cells) for table in tables for line in table.lines) - 1  # learned at 1024
    positions = sum(len(line.positions) for table in tables for line in table.lines)
    assert len(labels) == finite + positions


def test_the_training_length_is_marked(page):
    assert page.find("text").count("training length 128") == 3  # two tables, and the positions of one


def test_a_line_breaks_where_the_targets_change(tmp_path):
    add_run(tmp_path, "rope", {128: 2.0, 256: 2.1})
    add_run(tmp_path, "rope", {128: 2.0, 4096: 3.0}, target_hash="other")
    (table,) = build_tables(tmp_path)
    curves = page_of([table]).attributes_of("path", "curve")
    drawn = [curve["d"] for curve in curves if curve["d"] != "M0 6H26"]
    assert [d.count("L") for d in drawn] == [1, 0]


def page_of(tables, records=()) -> Page:
    return Page(to_html(tables, records))


def test_positions_are_drawn_where_there_are_any_and_carry_no_verdict(tables, page):
    captions = page.find("figcaption")
    assert len(captions) == 3 and "carries no verdict" in captions[1]
    without = [
        replace(table, lines=tuple(replace(line, positions=()) for line in table.lines)) for table in tables
    ]
    assert len(page_of(without).find("figcaption")) == 2


def test_text_of_rows_is_escaped_wherever_it_stands(tables):
    table = tables[0]
    line = replace(table.lines[0], encoding=HOSTILE, scored_with=HOSTILE)
    cells = {
        length: replace(cell, status=HOSTILE, reason=HOSTILE, levels=())
        for length, cell in line.cells.items()
    }
    group = replace(table.group, data=HOSTILE, model=HOSTILE)
    hostile = replace(
        table,
        lines=(line, replace(line, cells=cells, run=HOSTILE)),
        notes=(HOSTILE,),
        why=HOSTILE,
        group=group,
        baseline=HOSTILE,
    )
    environment = Environment(*[HOSTILE] * 8)
    record = replace(
        some_records()[0],
        run=HOSTILE,
        commands=(HOSTILE,),
        needs=(HOSTILE,),
        trained=environment,
        date=HOSTILE,
    )
    text = to_html([hostile], [record], title=HOSTILE)
    assert HOSTILE not in text
    page = Page(text)
    assert page.names.count("script") == 1 and page.names.count("img") == 0
    assert not [name for attributes in page.attributes for name in attributes if name.startswith("on")]
    assert page.find("h1") == [HOSTILE]


def test_the_page_asks_for_nothing_else(page):
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


def test_style_and_script_are_in_the_package():
    for name in ("style.css", "script.js"):
        assert files("pe_bench.report.html").joinpath(name).is_file()


def test_the_page_is_the_same_when_written_twice(tables):
    assert to_html(tables, some_records()) == to_html(tables, some_records())


def test_colours_are_those_of_the_pictures_and_every_line_looks_like_no_other(tables):
    from pe_bench.plot.style import COLOURS as PICTURE_COLOURS

    style = files("pe_bench.report.html").joinpath("style.css").read_text(encoding="utf-8")
    light = style.split("@media")[0]
    assert re.findall(r"--colour\d: (#\w+);", light) == [colour.lower() for colour in PICTURE_COLOURS]
    assert len(PICTURE_COLOURS) == COLOURS and f"stroke{STROKES - 1}" in style
    line = tables[0].lines[0]
    many = replace(
        tables[0], lines=tuple(replace(line, encoding=str(i), scored_with=str(i)) for i in range(60))
    )
    assert len(set(looks_of([many]).values())) == 60


def relative_luminance(colour: str) -> float:
    """WCAG 2's, of #rrggbb or #rgb."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    channels = np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_have_the_contrast_that_is_asked_for_text(theme):
    style = files("pe_bench.report.html").joinpath("style.css").read_text(encoding="utf-8")
    blocks = [
        dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    colours = blocks[0] if theme == "light" else blocks[0] | blocks[1]
    for name in ("ink", "soft", "accent", "improves", "holds", "degrades", "fails", "unclear"):
        for ground in ("paper", "raised"):
            low, high = sorted(relative_luminance(colours[one]) for one in (name, ground))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (theme, name, ground)


def test_how_it_was_made_says_commands_data_and_versions_once(page):
    made = next(text for text in page.find("section") if "How this was made" in text)
    for said in (
        "pe-bench train -m encoding=rope,alibi seed=0,1 precision=float32",
        "AMD EPYC",
        "4f1d2c9ab012",
    ):
        assert made.count(said) == 1, said
    assert "da7a0123456789" in made and "no command for rope-s1-x: lost" in made
    assert made.count("pe-bench train -m encoding=rope,alibi,t5") == 1 and "4 runs" in made
    assert "needed beside pe-bench: mine.py" in made


def test_two_thousand_runs_make_a_page_of_less_than_two_megabytes(tables):
    first = some_records()[0]
    records: list[RunRecord] = [
        replace(first, run=f"rope-s{i}-1a2b3c4d", repeat=f"pe-bench train encoding=rope seed={i} x=1")
        for i in range(2000)
    ]
    text = to_html(tables, records)
    assert len(text) < 2_000_000 and text.count("AMD EPYC") == 1


def test_no_tables_and_no_records_are_a_page_too():
    assert page_of([]).find("h1") == ["pe-bench report"]


def test_a_table_without_a_finite_number_has_no_picture(tmp_path):
    add_run(tmp_path, "learned", {128: None, 256: None})
    page = page_of(build_tables(tmp_path))
    assert page.find("figure") == [] and "undefined" in page.find("tbody")[0]


def test_what_is_no_markup_is_text():
    assert (
        element("b", "<i>", Html("<u></u>"), title='"', data_x=None)
        == '<b title="&quot;">&lt;i&gt;<u></u></b>'
    )


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (BreakPoint("at", 192), BreakPoint("at", 512)),
        (BreakPoint("by", 192), BreakPoint("at", 256)),
        (BreakPoint("at", 2048), BreakPoint("unclear", 256)),
        (BreakPoint("unclear", 256), BreakPoint("none", 256)),
        (BreakPoint("none", 256), BreakPoint("none", 2048)),
    ],
)
def test_break_points_sort_from_the_earliest_to_none(earlier, later):
    one, other = break_order(earlier), break_order(later)
    assert one is not None and other is not None and one < other
    assert break_order(BreakPoint()) is None


def test_levels_far_apart_get_a_logarithmic_axis_and_round_ticks():
    near, far = scale_of_levels([2.0, 5.9], 400, 0), scale_of_levels([2.0, 6.1], 400, 0)
    assert (near.log, far.log) == (False, True)
    assert scale_of_levels([], 1, 0).low == 0 - 0.05
    assert ticks(scale_of_levels([2.61, 3.42], 400, 0)) == pytest.approx([2.6, 2.8, 3.0, 3.2, 3.4])
    assert ticks(far) == [2, 3, 4, 5, 6]
    for levels in ([2.0, 2.0], [1e-4, 30.0], [0.0, 1e6], [2.0, 2.0001]):
        found = ticks(scale_of_levels(levels, 400, 0))
        assert 2 <= len(found) <= 7, levels


def test_lengths_are_logarithmic_and_stay_inside():
    scale = scale_of_lengths([32, 128, 512], 0, 100)
    assert scale(128) == pytest.approx(50) and 0 < scale(32) < scale(512) < 100


@pytest.mark.parametrize("wanted", [[5.0, 5.0, 5.0], [99.0, 98.0, 0.0], [0.0, 1.0, 2.0, 3.0], [50.0]])
def test_labels_are_spread_apart_in_their_order_and_inside(wanted):
    places = spread_apart(wanted, 10, 0, 100)
    assert sorted(range(len(wanted)), key=lambda i: wanted[i]) == sorted(
        range(len(wanted)), key=lambda i: places[i]
    )
    assert all(b - a >= 10 for a, b in zip(sorted(places), sorted(places)[1:], strict=False))
    assert min(places) >= 0 and max(places) <= 100


def test_runs_without_a_command_are_told_together():
    lost = [replace(some_records()[-1], run=f"rope-s{seed}-x") for seed in range(3)]
    assert "no command for rope-s0-x and 2 more: lost" in to_html([], lost)
