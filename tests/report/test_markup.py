"""Tables for documents in their short form: Markdown, and LaTeX for booktabs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.results import add_run

from pe_bench.report.build import build_tables
from pe_bench.report.columns import to_latex, to_markdown
from pe_bench.report.records import Table
from pe_bench.report.selection import Selection

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


def test_documents_have_the_marks_and_the_legend_of_the_terminal(results: Path) -> None:
    table = only(results)
    rows = rows_of(to_markdown([table]))
    assert rows["encoding"] == ["at 128", "192", "256", "512", "1024", "2048", "works to"]
    assert rows["rope"][2] == "+1.090!"
    assert rows["learned"] == ["1.900", "-", "-", "-", "-", "-", "not at all"]
    legend = "no mark holds, > degrades, ! fails, v improves, ? unclear"
    assert legend in to_markdown([table]) and f"% change against 128 on the same text: {legend}" in to_latex(
        [table]
    )


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
    assert rows["rope"][2:4] == ["2.428", "2.809"]
    assert rows["alibi"][3] == "-1.040v"


def test_with_a_baseline_only_what_is_better_for_sure_is_bold(results: Path) -> None:
    for seed in range(3):
        add_run(results, "fire", dict(zip(LENGTHS, (1.8, 1.9, 2.0, 2.1, 2.2, 2.3), strict=True)), seed=seed)
    table = only(results, "rope")
    differences = [
        replace(line.records[256].baseline, verdict="unclear") if line.records[256].baseline else None
        for line in table.lines
    ]  # pyright: ignore[reportArgumentType]
    lines = [
        replace(line, records={**line.records, 256: replace(line.records[256], baseline=difference)})
        for line, difference in zip(table.lines, differences, strict=True)
    ]
    text = to_markdown([replace(table, lines=tuple(lines))])
    alibi = rows_of(text)["alibi"]
    assert "*" not in alibi[0], "levels are compared with nothing"
    assert alibi[2].startswith("**-") and not alibi[3].startswith("**")
    assert "bold: the lowest that is better than rope for sure" in text


def test_latex_has_minus_signs_a_label_and_the_best_in_bold(results: Path) -> None:
    text = to_latex([only(results, "rope")])
    [alibi] = [row for row in rows_in(text) if row[0] == "alibi"]
    assert alibi[3] == "$-0.664$v", "one difference alone is not the best"
    [label] = re.findall(r"\\label\{(.*)\}", text)
    assert (label, text.count(r"\centering")) == ("tab:tiny-stdlib-128", 1)
    text = to_latex([only(results)])
    assert r"$\mathbf{1.719}$" in text and r"$\mathbf{+0.002}$" in text and "+1.090$!" in text
    assert r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" in text


def test_labels_of_several_tables_differ(results: Path) -> None:
    add_run(results, "rope", {128: 3.0, 256: 3.5}, setting="0ther000")
    labels = re.findall(r"\\label\{(.*)\}", to_latex(build_tables(results)))
    assert len(set(labels)) == 2


def test_an_interval_without_an_end_is_infinite_and_no_word(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.5}, documents=1)
    tables = build_tables(tmp_path)
    assert "| +0.500 | ∞ |" in to_markdown(tables, details=True)
    assert r"& $\infty$ &" in to_latex(tables, details=True)
