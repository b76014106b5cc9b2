"""The detailed forms of a table: blocks of text, Markdown, and the frame of a CSV file."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.results import add_run, edit_rows
from support.tables import only, printed_details

from pe_bench.report.build import build_tables
from pe_bench.report.columns import to_latex


@pytest.mark.parametrize("width", [44, 60, 80])
def test_a_narrow_terminal_gets_every_number_in_blocks_that_fit(tmp_path: Path, width: int) -> None:
    add_run(tmp_path, "rope", {32 * 2**index: 3 + index / 100 for index in range(8)}, peak_memory_mb=700.0)
    text = printed_details(build_tables(tmp_path), width)
    assert max(map(len, text.splitlines())) <= width
    for index in range(8):
        assert f" {3 + index / 100:.3f}" in text
    for word in ("820,000", "verdict", "trained", "seeds", "700", "MB"):
        assert word in text
    assert (text.count("encoding  ") == 2) == (width == 80), "two tables, and more blocks where narrower"


@pytest.mark.parametrize("text", ["first\n\\input{/etc/passwd}", "first\r\n% second"])
def test_a_reason_of_several_lines_stays_one(tmp_path: Path, text: str) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: None})
    edit_rows(run, lambda row: replace(row, reason=text) if row.status != "ok" else row)
    table = only(tmp_path)
    assert all("\n" not in note and "\r" not in note for note in table.notes)
    for details in (False, True):
        latex = to_latex([table], details=details).split(r"\end{table}")
        for part in latex[:-1]:
            assert all(line.startswith("%") for line in part.split(r"\begin{table}")[0].split("\n") if line)
