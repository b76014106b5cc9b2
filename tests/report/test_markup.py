"""Tables for documents in their short form: Markdown, and LaTeX that fits a column of text."""

import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from fontTools.ttLib import TTFont
from support.results import add_run

from pe_bench.report.latex_width import TEXT_WIDTH, TYPES, WIDTHS
from pe_bench.report.markup import to_latex, to_markdown
from pe_bench.report.tables.build import build_tables
from pe_bench.report.tables.selection import Selection
from pe_bench.report.tables.table import Table

LENGTHS = (128, 192, 256, 512, 1024, 2048)
LEVELS = {
    "alibi": (1.762, 1.764, 1.769, 1.768, 1.768, 1.772),
    "rope": (1.719, 2.428, 2.809, 3.614, 4.339, 5.019),
    "learned": (1.9, None, None, None, None, None),
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, levels in LEVELS.items():
        for seed in range(3):
            add_run(tmp_path, name, dict(zip(LENGTHS, levels, strict=True)), seed=seed)
    return tmp_path


def only(results: Path, baseline: str | None = None) -> Table:
    [table] = build_tables(results, selection=Selection(baseline=baseline))
    return table


def rows_of(markdown: str) -> dict[str, list[str]]:
    """The cells of each line of a Markdown table by its name."""
    rows = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("|")]
    return {name: cells for name, *cells in rows}


def rows_in(latex: str) -> list[list[str]]:
    return [line.removesuffix(r" \\").split(" & ") for line in latex.splitlines() if line.endswith(r"\\")]


def test_markdown_has_a_level_then_changes_with_half_of_their_intervals(results: Path) -> None:
    table = only(results)
    interval = table.lines[1].cells[256].interval
    assert interval is not None
    rows = rows_of(to_markdown([table]))
    assert rows["encoding"] == ["at 128", "192", "256", "512", "1024", "2048", "works to"]
    assert rows["rope"][2] == f"+1.090 ± {(interval.high - interval.low) / 2:.3f}"
    assert rows["learned"] == ["1.900", "-", "-", "-", "-", "-", "not at all"]


def test_the_lowest_of_each_column_is_bold_and_nothing_else(results: Path) -> None:
    rows = rows_of(to_markdown([only(results)]))
    bold = {name: [place for place, cell in enumerate(cells) if "**" in cell] for name, cells in rows.items()}
    assert {name: places for name, places in bold.items() if places} == {
        "rope": [0],
        "alibi": [1, 2, 3, 4, 5],
    }


def test_one_line_has_nothing_to_be_better_than(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.5})
    text = to_markdown(build_tables(tmp_path))
    assert "**" not in "".join(rows_of(text)["rope"])


def test_the_baselines_levels_are_no_differences_and_never_the_best(results: Path) -> None:
    rows = rows_of(to_markdown([only(results, "rope")]))
    assert rows["rope"][1:3] == ["2.428", "2.809"]
    assert rows["alibi"][2].startswith("-1.040 ± ")


def test_with_a_baseline_only_what_is_better_for_sure_is_bold(results: Path) -> None:
    for seed in range(3):
        add_run(results, "fire", dict(zip(LENGTHS, (1.8, 1.9, 2.0, 2.1, 2.2, 2.3), strict=True)), seed=seed)
    table = only(results, "rope")
    differences = [
        replace(line.cells[256].baseline, verdict="unclear") if line.cells[256].baseline else None
        for line in table.lines
    ]  # pyright: ignore[reportArgumentType]
    lines = [
        replace(line, cells={**line.cells, 256: replace(line.cells[256], baseline=difference)})
        for line, difference in zip(table.lines, differences, strict=True)
    ]
    text = to_markdown([replace(table, lines=tuple(lines))])
    alibi = rows_of(text)["alibi"]
    assert "*" not in alibi[0], "levels are compared with nothing"
    assert alibi[1].startswith("**-") and not alibi[2].startswith("**")
    assert "bold: the lowest that is better than rope for sure" in text


def test_latex_has_minus_signs_a_label_and_the_best_in_bold(results: Path) -> None:
    text = to_latex([only(results, "rope")])
    [alibi] = [row for row in rows_in(text) if row[0] == "alibi"]
    assert re.fullmatch(r"\$-0\.664 \\pm 0\.\d+\$", alibi[2]), "one difference alone is not the best"
    [label] = re.findall(r"\\label\{(.*)\}", text)
    assert (label, text.count(r"\centering")) == ("tab:tiny-stdlib-128", 1)
    text = to_latex([only(results)])
    assert r"$\mathbf{1.719}$" in text and r"$\mathbf{+0.002 \pm 0.00" in text
    assert "±" not in text.split(r"\begin{table}")[1]


def test_labels_of_several_tables_differ(results: Path) -> None:
    add_run(results, "rope", {128: 3.0, 256: 3.5}, setting="0ther000")
    labels = re.findall(r"\\label\{(.*)\}", to_latex(build_tables(results)))
    assert len(set(labels)) == 2


def test_an_interval_without_an_end_is_infinite_and_no_word(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.5}, documents=1)
    assert "± ∞" in to_markdown(build_tables(tmp_path))
    assert r"\pm \infty$" in to_latex(build_tables(tmp_path))


# The width of a column of text


def font() -> TTFont:
    """Computer Modern at ten points, which matplotlib brings along."""
    return TTFont(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "cmr10.ttf")


def width_in_font(text: str, size: float) -> float:
    found = font()
    names, widths = found.getBestCmap(), found["hmtx"].metrics
    return sum(widths[names[ord(sign)]][0] for sign in text) / found["head"].unitsPerEm * size


@pytest.mark.parametrize(
    "text",
    ["0123456789", "encoding", "kerple log", "not at all", "context", "unclear", "sinusoidal", "2,048"],
)
def test_the_estimate_is_the_fonts_own_width_or_a_little_more(text: str) -> None:
    [normal, *_] = TYPES
    assert 1.0 <= normal.width(text) / width_in_font(text, 10) <= 1.12


def test_every_sign_is_at_least_as_wide_as_in_the_font() -> None:
    found = font()
    names, widths = found.getBestCmap(), found["hmtx"].metrics
    narrow = {
        sign: widths[names[ord(sign)]][0] * 10_000 / found["head"].unitsPerEm
        for sign, width in WIDTHS.items()
        if ord(sign) in names and widths[names[ord(sign)]][0] * 10_000 / found["head"].unitsPerEm > width + 5
    }
    assert narrow == {}


def width_of(latex: str) -> float:
    """The width of a short table's grid in points, by the font's own metrics, bold a sixth wider."""
    [type_] = [type_ for type_ in TYPES if f"{type_.command}\\setlength" in latex]
    columns = zip(*rows_in(latex), strict=True)

    def width(cell: str) -> float:
        plain = re.sub(r"\\mathbf\{(.*)\}", r"\1", cell.strip("$")).replace(r" \pm ", "  +  ")
        plain = re.sub(r"\\[a-z]+(\{\})?|\$", "m", plain.replace(r"\_", "m"))
        bold = 7 / 6 if "mathbf" in cell else 1.0
        return width_in_font(plain.replace("_", "m").replace(" ", "i"), type_.size * type_.scale) * bold

    widths = [max(map(width, column)) for column in columns]
    return sum(widths) + 2 * type_.column_space * (len(widths) - 1)


@pytest.mark.parametrize(
    "name", ["t5", "rope_dynamic_ntk", "longrope factors=[1.0, 1.0, 2.0, 2.0] base=500000"]
)
def test_latex_fits_a_column_of_text(results: Path, name: str) -> None:
    add_run(results, name, dict(zip(LENGTHS, LEVELS["rope"], strict=True)))
    add_run(results, "alibi", {2048: 1.9}, control="swap")
    text = to_latex(build_tables(results))
    assert width_of(text) <= TEXT_WIDTH
    headings = next(row for row in rows_in(text) if row[0] == "encoding")
    assert headings[1:3] == ["at 128", "192"] and headings[-3:] == ["2048", "to", "context"]
    dropped = [length for length in LENGTHS if str(length) not in " ".join(headings)]
    assert f"% no room for {', '.join(map(str, dropped))}" in text


def test_a_small_table_is_in_the_size_of_the_text_with_every_length(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.5})
    text = to_latex(build_tables(tmp_path))
    assert r"\normalsize\setlength" in text and "no room" not in text
