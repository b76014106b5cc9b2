"""The detailed forms of a table: blocks of text, Markdown, and the frame of a CSV file."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.results import add_run, edit_rows
from support.tables import BREAKING, line_of, only, printed_details

from pe_bench.report.build import build_tables
from pe_bench.report.columns import show, to_latex, to_markdown
from pe_bench.report.export import to_frame


def test_a_pipe_gets_every_number_in_blocks_of_a_hundred_columns_without_blanks_at_the_end(
    tmp_path: Path,
) -> None:
    label = "yarn factor=4 beta_fast=16 beta_slow=2"
    lengths = (32, 64, 128, 192, 256, 512, 1024, 2048)
    add_run(tmp_path, "rope", dict.fromkeys(lengths, 3.0))
    add_run(tmp_path, "rope", {length: 3 + length / 1000 for length in lengths}, scored_with=label)
    text = printed_details(build_tables(tmp_path))
    assert all(f"{3 + length / 1000:.3f}" in text for length in lengths)
    assert "820,000" in text and "…" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [44, 60, 80])
def test_a_narrow_terminal_gets_every_number_in_blocks_that_fit(tmp_path: Path, width: int) -> None:
    add_run(tmp_path, "rope", {32 * 2**index: 3 + index / 100 for index in range(8)}, peak_memory_mb=700.0)
    text = printed_details(build_tables(tmp_path), width)
    assert max(map(len, text.splitlines())) <= width
    for index in range(8):
        assert f" {3 + index / 100:.3f}" in text
    for word in ("820,000", "verdict", "trained", "seeds", "700", "MB: the most that"):
        assert word in text
    assert (text.count("encoding  ") == 2) == (width == 80), "two tables, and more blocks where narrower"


def rows_of(text: str, label: str) -> dict[int, list[str]]:
    """Return the cells of one encoding by their length."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{label} "))
    rows = [line.removeprefix(label).split() for line in lines[first : lines.index("", first)]]
    return {int(length): cells for length, *cells in rows}


def test_verdicts_past_the_training_length_are_spelled_out_and_explained(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    text = printed_details(build_tables(tmp_path))
    rows = rows_of(text, "rope")
    assert [rows[length][2] for length in (64, 256, 512)] == ["+0.200", "+0.100", "+1.300"]
    # Below the training length less context costs by nature, and nothing is judged.
    assert [cells[4:] for cells in rows.values()] == [[], [], ["degrades"], ["fails"]]
    assert "degrades (by more than 0.01), fails (by more than 0.25)" in " ".join(text.split())
    assert "verdict (from the 95 % interval):" in text
    assert "holds" not in text


def test_a_change_has_half_the_width_of_its_interval_beside_it(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    interval = line_of(only(tmp_path), "rope").records[512].interval
    assert interval is not None
    half = rows_of(printed_details(build_tables(tmp_path)), "rope")[512][3]
    assert half == f"{(interval.high - interval.low) / 2:.3f}"


def test_a_long_name_goes_on_beside_the_next_lengths(tmp_path: Path) -> None:
    name = "longrope factors=[1.0, 2.0, 3.0, 4.0] original_length=128"
    add_run(tmp_path, name, BREAKING)
    lines = printed_details(build_tables(tmp_path), 66).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("longrope"))
    assert "+0.200" in lines[first] and lines[first + 1].startswith("  ")
    assert "+1.300" in lines[first + 3] and not lines[first + 4]


def test_colour_repeats_the_verdict(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    file = io.StringIO()
    console = Console(file=file, width=160, force_terminal=True, color_system="standard", no_color=False)
    show([only(tmp_path)], console, details=True)
    assert "\x1b[1;31mfails" in file.getvalue()
    assert "\x1b" not in printed_details(build_tables(tmp_path))


def test_the_frame_is_long_and_keeps_what_is_unknown_empty(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "learned", {128: 3.0, 256: None})
    frame = to_frame(build_tables(tmp_path)).set_index(["encoding", "length"])
    assert len(frame) == 6
    fails = frame.loc[("rope", 512)]
    assert (fails["verdict"], fails["break_point"], fails["seeds"]) == ("fails", "256", 1)
    assert (fails["holds_to"], fails["breaks_at"]) == (128, 256)
    assert fails["change_low"] < fails["change"] < fails["change_high"]
    undefined = frame.loc[("learned", 256)]
    assert undefined["verdict"] == "undefined"
    assert undefined[["bits_per_byte", "perplexity", "change", "change_low"]].isna().all()


def test_the_frame_says_stride_documents_and_targets(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1}, sliding=96)
    add_run(tmp_path, "rope", {128: 3.0})
    frame = to_frame(build_tables(tmp_path))
    assert frame["stride"].fillna(0).tolist() == [0, 96, 96]
    assert frame["stride_rule"].tolist() == ["", "96", "96"]
    assert frame["targets"].tolist() == [96, 96, 96]
    assert frame["documents"].tolist() == [24, 24, 24]
    assert ",96," in frame.to_csv() and "96.0" not in frame.to_csv()


def test_markdown_has_a_row_for_each_length_and_one_for_each_encoding(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "a|b", {128: 3.0, 256: None, 512: 3.0}, spread=0.001, peak_memory_mb=700.0)
    lines = to_markdown(build_tables(tmp_path), details=True).splitlines()
    assert "| encoding | length | bits/byte | ppl | change | ± | verdict | MB |" in lines
    [fails] = [line for line in lines if line.startswith("| rope | 512 | 4.000 |")]
    assert "| +1.300 |" in fails and fails.endswith(" | fails |  |")
    assert r"| a\|b | 256 | undefined |  |  |  |  |  |" in lines
    assert [line.endswith("| 700 |") for line in lines if line.startswith(r"| a\|b | 512")] == [True]
    assert "| encoding | break point | seeds | parameters | trained tokens/s |" in lines
    assert "| rope | 256 | 1 | 820,000 | 20,000 |" in lines
    assert lines[0].startswith("**tiny model")


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


@pytest.mark.parametrize("details", [False, True])
def test_a_label_is_escaped_in_markdown(tmp_path: Path, details: bool) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    edit_rows(
        next((tmp_path / "runs").iterdir()), lambda row: replace(row, encoding="<b>&|", scored_with="<b>&|")
    )
    text = to_markdown(build_tables(tmp_path), details=details)
    row = next(line for line in text.splitlines() if "3.000" in line)
    assert row.startswith(r"| &lt;b>&amp;\| |")


@pytest.mark.parametrize("details", [False, True])
def test_latex_is_a_booktabs_table_with_every_sign_escaped(results: Path, details: bool) -> None:
    add_run(results, "my_100%&$#{~^\\", BREAKING)
    text = to_latex(build_tables(results), details=details)
    lines = text.splitlines()
    name = r"my\_100\%\&\$\#\{\textasciitilde{}\textasciicircum{}\textbackslash{}"
    assert any(line.startswith(f"{name} & 64 & 2.900 " if details else f"{name} & $") for line in lines)
    for table in text.split(r"\end{table}")[:-1]:
        for word in (r"\begin{table}", r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"):
            assert table.count(word) == 1
        [sides] = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}", table)
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(sides) - 1}
