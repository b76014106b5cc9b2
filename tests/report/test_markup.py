"""What is bold in documents, and numbers that LaTeX writes in its own way; the goldens have the rest."""

from pathlib import Path

from support.results import add_run

from pe_bench.report.build import build_tables
from pe_bench.report.columns import to_latex, to_markdown
from pe_bench.report.selection import Selection

LENGTHS = (128, 192, 256, 512)
LEVELS = {"alibi": (1.762, 1.764, 1.769, 1.768), "rope": (1.719, 2.428, 2.809, 3.614)}


def cells_of(markdown: str, name: str) -> list[str]:
    [row] = [line for line in markdown.splitlines() if line.startswith(f"| {name} |")]
    return row.strip("| ").split(" | ")[1:]


def test_with_a_baseline_only_what_is_better_for_sure_is_bold_and_only_among_several(tmp_path: Path) -> None:
    for name, levels in LEVELS.items():
        for seed in range(3):
            add_run(tmp_path, name, dict(zip(LENGTHS, levels, strict=True)), seed=seed)
    [table] = build_tables(tmp_path)
    assert "**" not in str(cells_of(to_markdown(build_tables(tmp_path, ["rope-s0-5e77da7a"])), "rope"))
    assert [cell.startswith("**") for cell in cells_of(to_markdown([table]), "alibi")] == [0, 1, 1, 1, 0]
    for seed in range(3):
        add_run(tmp_path, "fire", dict(zip(LENGTHS, (1.8, 2.43, 2.0, 2.1), strict=True)), seed=seed)
    [table] = build_tables(tmp_path, selection=Selection(baseline="rope"))
    text = to_markdown([table])
    assert [cell.startswith("**") for cell in cells_of(text, "alibi")] == [0, 0, 1, 1, 1, 0]
    assert "**" not in str(cells_of(text, "fire")) + str(cells_of(text, "rope"))
    assert "bold: the lowest that is better than rope for sure" in text


def test_an_interval_without_an_end_is_infinite_and_no_word(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.5}, documents=1)
    tables = build_tables(tmp_path)
    assert "| +0.500 | ∞ |" in to_markdown(tables, details=True)
    assert r"& $\infty$ &" in to_latex(tables, details=True)
