"""The detailed forms of a table: blocks of text, Markdown, and the frame of a CSV file."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.results import add_run, edit_rows
from support.tables import BREAKING, line_of, only, printed_details

from pe_bench.report.export import to_frame
from pe_bench.report.markup import to_latex, to_markdown
from pe_bench.report.tables.build import build_tables
from pe_bench.report.text import show


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
    add_run(tmp_path, "rope", {32 * 2**index: 3 + index / 100 for index in range(8)})
    text = printed_details(build_tables(tmp_path), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for index in range(8):
        assert f" {3 + index / 100:.3f}" in text
    for word in ("820,000", "verdict", "trained", "seeds"):
        assert word in text
    assert text.count("encoding ") >= 2


def test_a_wide_terminal_gets_one_block(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {32 * 2**index: 3.0 for index in range(8)})
    assert printed_details(build_tables(tmp_path), 200).count("encoding ") == 1


def rows_of(text: str, label: str) -> dict[str, list[str]]:
    """Return the cells of each row of one encoding, by the row's name."""
    lines = text.splitlines()
    [first] = [number for number, line in enumerate(lines) if line.startswith(label)]
    found = {}
    for line in [lines[first].removeprefix(label), *lines[first + 1 : lines.index("", first)]]:
        name = next(
            name for name in ("bits/byte", "change", "95 % from", "to", "verdict", "vs") if name in line
        )
        found[name] = line.split(name, 1)[1].split()
    return found


def test_verdicts_past_the_training_length_are_spelled_out_and_explained(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    text = printed_details(build_tables(tmp_path))
    rows = rows_of(text, "rope")
    assert rows["change"] == ["+0.200", "+0.100", "+1.300"]
    # Below the training length less context costs by nature, and nothing is judged.
    assert rows["verdict"] == ["degrades", "fails"]
    assert "degrades (by more than 0.01), fails (by more than 0.25)" in " ".join(text.split())
    assert "verdict (from the 95 % interval):" in text
    assert "holds" not in text


def test_facts_of_an_encoding_take_one_line_where_a_terminal_is_narrow(tmp_path: Path) -> None:
    lengths = (16, 32, 64, 128, 256, 512, 1024)
    add_run(tmp_path, "rope", dict.fromkeys(lengths, 3.0), peak_memory_mb=700.0)
    [table] = build_tables(tmp_path)
    console = Console(file=io.StringIO(), width=70, force_terminal=True, color_system=None)
    show([table], console, details=True)
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    [facts] = [line for line in lines if line.startswith("rope") and "820,000" in line]
    assert lines[lines.index(facts) + 1].strip() == ""
    assert "MB at 1024: the most that the whole process held" in " ".join(" ".join(lines).split())


def test_a_change_has_its_interval_below_it(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    rows = rows_of(printed_details(build_tables(tmp_path)), "rope")
    cell = line_of(only(tmp_path), "rope").cells[512]
    assert cell.interval is not None
    assert rows["95 % from"][-1] == f"{cell.interval.low:+.3f}"
    assert rows["to"][-1] == f"{cell.interval.high:+.3f}"


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


def test_markdown_has_one_row_for_each_encoding(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "a|b", {128: 3.0, 256: None, 512: 3.0}, spread=0.001)
    lines = to_markdown(build_tables(tmp_path), details=True).splitlines()
    headings = (
        "encoding | 64 | 128 (trained) | 256 | 512 | break point | seeds | parameters | tokens/s | MB at 512"
    )
    assert f"| {headings} |" in lines
    cells = "2.900 (+0.200) | 2.700 | 2.800 (+0.100 degrades) | 4.000 (+1.300 fails)"
    assert f"| rope | {cells} | 256 | 1 | 820,000 | 20,000 |  |" in lines
    [escaped] = [line for line in lines if line.startswith(r"| a\|b |")]
    assert "|  | 3.000 | undefined | 3.000 (" in escaped
    assert lines[0].startswith("**tiny model")


def test_memory_is_that_of_the_longest_length_or_left_out(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1}, peak_memory_mb=700.0)
    add_run(tmp_path, "learned", {128: 3.0, 256: None}, peak_memory_mb=400.0)
    lines = {
        line.split(" | ")[0]: line for line in to_markdown(build_tables(tmp_path), details=True).splitlines()
    }
    assert lines["| encoding"].endswith("| MB at 256 |")
    assert lines["| rope"].endswith("| 700 |")
    assert lines["| learned"].endswith("|  |")


@pytest.mark.parametrize("text", ["first\n\\input{/etc/passwd}", "first\r\n% second"])
def test_a_reason_of_several_lines_stays_one(tmp_path: Path, text: str) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: None})
    edit_rows(run, lambda row: replace(row, reason=text) if row.status != "ok" else row)
    table = only(tmp_path)
    assert all("\n" not in note and "\r" not in note for note in table.notes)
    for details in (False, True):
        latex = to_latex([table], details=details).splitlines()
        assert all(line.startswith("%") for line in latex[: latex.index(r"\begin{table}")])


@pytest.mark.parametrize("details", [False, True])
def test_a_label_is_escaped_in_markdown(tmp_path: Path, details: bool) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    edit_rows(
        next((tmp_path / "runs").iterdir()), lambda row: replace(row, encoding="<b>&|", scored_with="<b>&|")
    )
    text = to_markdown(build_tables(tmp_path), details=details)
    [row] = [line for line in text.splitlines() if "3.000" in line]
    assert row.startswith(r"| &lt;b>&amp;\| |")


@pytest.mark.parametrize("details", [False, True])
def test_latex_is_a_booktabs_table_with_every_sign_escaped(results: Path, details: bool) -> None:
    add_run(results, "my_100%&$#{~^\\", BREAKING)
    text = to_latex(build_tables(results), details=details)
    lines = text.splitlines()
    for word in (
        r"\begin{table}",
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ):
        assert lines.count(word) == 1
    [row] = [line for line in lines if line.startswith("my")]
    name = r"my\_100\%\&\$\#\{\textasciitilde{}\textasciicircum{}\textbackslash{}"
    assert row.startswith(f"{name} & 2.900 (+0.200)" if details else f"{name} & $")
    [columns] = [re.sub("@{}", "", line)[16:-1] for line in lines if line.startswith(r"\begin{tabular}")]
    [headings] = [line for line in lines if line.startswith("encoding")]
    assert headings.count(" & ") == row.count(" & ") == len(columns) - 1
    assert all(line.startswith("%") for line in lines[: lines.index(r"\begin{table}")])
