"""One grid in every format: aligned, folded and cut to fit a terminal, and escaped for documents."""

import io

import pytest
from rich.console import Console

from pe_bench.render.grid import Cell, Column, Grid, plain_grid, show, to_latex, to_markdown
from pe_bench.system.terminal import csv_cell

GRID = Grid(
    [Column("encoding", is_left=True, least=8), Column("256"), Column("works\nto")],
    [
        [
            Cell("rope theta=500000.0"),
            Cell("+0.709", "!", "fails", value=0.709, colour="bold red"),
            Cell("256", "?", value=256),
        ],
        [Cell("a|b"), Cell("-0.013", "v", "improves", True, -0.013), Cell("not at all")],
        [Cell("t5"), Cell("+0.002", value=0.002), Cell("-")],
    ],
    ("a title", "of parts"),
    notes=["what <it> means"],
)


def lines_of(grid: Grid, width: int, hint: str = "") -> list[str]:
    text = io.StringIO()
    show([grid.draw], Console(file=text, width=width, force_terminal=True, color_system=None), hint)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_digits_are_aligned_whether_marked_or_not_and_names_folded_where_there_is_no_room() -> None:
    assert lines_of(GRID, 50) == [
        "a title · of parts",
        "",
        "                                   works",
        "encoding                 256          to",
        "----------------------------------------",
        "rope theta=500000.0  +0.709!        256?",
        "a|b                  -0.013v  not at all",
        "t5                   +0.002            -",
        "",
        "what <it> means",
    ]
    narrow = lines_of(GRID, 30)
    assert max(map(len, narrow)) <= 30 and "rope       +0.709!        256?" in narrow


@pytest.mark.parametrize("width", [14, 20, 26])
def test_a_grid_with_keys_is_cut_into_blocks_that_begin_with_them(width: int) -> None:
    grid = Grid(
        [Column("name", is_left=True), *(Column(f"c{index}") for index in range(6))],
        [[Cell("a"), *(Cell(f"{index}.000") for index in range(6))]],
        keys=1,
    )
    lines = lines_of(grid, width)
    assert max(map(len, lines)) <= width
    assert all(f"{index}.000" in "".join(lines) for index in range(6))
    assert sum(line.startswith("name") for line in lines) == sum(line.startswith("a") for line in lines) > 1


@pytest.mark.parametrize("width", [44, 60])
def test_a_plain_grid_is_cut_into_blocks_rather_than_through_names_and_numbers(width: int) -> None:
    name = "a-run-with-a-long-name"
    rows = [
        [name, "a text that folds", "not finished", "2,000 of 10,000", "64, 128, 256"],
        [name, "rope", "finished", "10", "64"],
    ]
    lines = lines_of(plain_grid(("run", "encoding", "state", "steps", "lengths"), rows), width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert text.count(name) == 2 * text.count("run  ") > 2, "each row has its name"
    assert "2,000 of 10,000" in text and "64, 128, 256" in text


def test_a_hint_is_broken_before_its_command() -> None:
    assert lines_of(GRID, 26, "all: pe-bench report a --all")[-2:] == ["all:", "pe-bench report a --all"]


def test_documents_escape_texts_and_have_the_best_in_bold() -> None:
    assert r"| a\|b | **-0.013v** | not at all |" in to_markdown([GRID])
    assert r"$\mathbf{-0.013}$v & not at all \\" in to_latex([GRID])


def test_a_file_has_raw_values_and_no_formula() -> None:
    assert [csv_cell(value) for value in ("=1", None, 1.5, float("nan"))] == ["'=1", "", 1.5, ""]


def test_a_pipe_has_no_blanks_at_the_ends_and_colour_repeats_the_mark() -> None:
    text = io.StringIO()
    show([GRID.draw], Console(file=text))
    assert all(line == line.rstrip() for line in text.getvalue().splitlines())
    show([GRID.draw], Console(file=text, force_terminal=True, color_system="standard", no_color=False))
    assert "\x1b[1;31m+0.709!" in text.getvalue()


def test_headings_and_captions_are_escaped_as_cells_are() -> None:
    columns = [Column("encoding", is_left=True), Column("vs\nrope_pi|<b>")]
    grid = Grid(columns, [[Cell("a_b"), Cell("1")]], ("100 % of it",), notes=["a & b"])
    latex = to_latex([grid])
    assert r"encoding & vs rope\_pi" in latex and r"a\_b & 1 \\" in latex
    assert r"\caption{100 \% of it. a \& b.}" in latex
    assert r"| encoding | vs rope_pi\|&lt;b> |" in to_markdown([grid])
