"""What is said beside the numbers: notes, what an unclear verdict leaves known, what is bold or infinite."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import Command
from support.results import add_run, edit_rows
from support.tables import BREAKING, line_of, only, printed, where

from pe_bench.report.build import build_tables
from pe_bench.report.columns import to_latex, to_markdown
from pe_bench.report.groups import Selection
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import MIN_DOCUMENTS

LENGTHS = (128, 192, 256, 512)
LEVELS = {"alibi": (1.762, 1.764, 1.769, 1.768), "rope": (1.719, 2.428, 2.809, 3.614)}


def said(folder: Path) -> str:
    return " ".join(printed([only(folder)], 100).split())


def cells_of(markdown: str, name: str) -> list[str]:
    [row] = [line for line in markdown.splitlines() if line.startswith(f"| {name} |")]
    return row.strip("| ").split(" | ")[1:]


def test_a_note_names_the_lines_that_it_is_about_or_a_few_of_them(tmp_path: Path) -> None:
    for seed in (0, 1):
        add_run(tmp_path, "learned", {128: 3.0, 256: None if seed else 3.1}, seed=seed)
    notes = only(tmp_path, by=("seed",)).notes
    assert any("undefined: learned seed=1 at 256" in note for note in notes)
    assert not any("learned seed=0 at 256" in note for note in notes)
    for name in "abcdefg":
        add_run(tmp_path, name, BREAKING)
    assert any(note.startswith("one seed (a, b, c, d and 3 more)") for note in only(tmp_path).notes)


@pytest.mark.parametrize(("documents", "is_said"), [(MIN_DOCUMENTS - 1, True), (MIN_DOCUMENTS, False)])
def test_intervals_over_few_documents_have_a_note_that_says_so(
    tmp_path: Path, documents: int, is_said: bool
) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1}, documents=documents)
    assert (f"few documents ({documents}): intervals over so few say little" in said(tmp_path)) == is_said


@pytest.mark.parametrize(
    ("moved", "said_change", "is_caveat"),
    [(3.5, "by +0.500 where", True), (3.001, "by +0.001 where", False), (2.9999, "by 0.000 where", False)],
)
def test_a_note_says_how_far_the_offset_control_moves_the_level(
    tmp_path: Path, moved: float, said_change: str, is_caveat: bool
) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {256: moved}, control="offset")
    table = only(tmp_path)
    [note] = [note for note in table.notes if note.startswith("offset control: rope")]
    assert said_change in note and (note in table.caveats) == is_caveat
    without_training_length = only(tmp_path, where=where("length=256"))
    assert note in without_training_length.notes


def test_what_differs_between_seeds_is_unclear_of_others_and_known_of_these_models(tmp_path: Path) -> None:
    for seed, change in enumerate((0.02, 0.1, 0.2)):
        add_run(tmp_path, "rope", {32: 3.2, 128: 3.0, 256: 3.0 + change}, seed=seed, spread=0.001)
    cell = line_of(only(tmp_path), "rope").records[256]
    assert (cell.verdict, cell.verdict_of_models) == ("unclear", "degrades")
    assert cell.interval and cell.compared.of_models
    assert cell.interval.low < cell.compared.of_models.low < cell.compared.of_models.high < cell.interval.high
    assert "+0.107>?" in said(tmp_path) and "sure of these models, not of other seeds" in said(tmp_path)
    bound = f"rope at 256 (at most {cell.interval.high:+.3f})"
    assert f"unclear: {bound}; more seeds" in said(tmp_path) and "--targets" not in said(tmp_path)
    details = " ".join(printed([only(tmp_path)], 100, details=True).split())
    assert f"unclear changes: {bound}. Most of this is how seeds differ" in details


def test_the_commands_for_what_is_unclear_score_the_same_rows_on_four_times_the_targets(
    begin: Command, command: Command, folder: Path
) -> None:
    results = folder / "results"
    for encoding, words in (("rope", ["--with", "yarn factor=2"]), ("alibi", ["--half", "both"])):
        assert begin(f"encoding={encoding}", "eval.lengths=[16]", "report.margin=1e-6").code == 0
        more = ["--lengths", "32", *words, "--results-dir", str(results)]
        assert command("eval", encoding, *more).code == 0
    [note] = [note for note in only(results, baseline="rope").notes if note.startswith("unclear")]
    for line in note[note.index("pe-bench ") :].split(" && "):
        assert (outcome := command(*shlex.split(line)[1:])).code == 0, outcome.err
    scored: dict[int, set[tuple[str, int]]] = {}
    for row in (row for run in (results / "runs").iterdir() for row in read_rows(run / "eval.csv")):
        scored.setdefault(row.targets, set()).add((row.scored_with, row.length))
    few, many = sorted(scored)
    assert many == 4 * few and scored[many] == scored[few] and len(scored[few]) == 6


def test_of_several_runs_of_a_name_each_is_named_and_of_a_users_class_none(tmp_path: Path) -> None:
    named = [
        add_run(tmp_path, "rope", {128: 3.0, 256: 3.0}, spread=2.0, setting=each) for each in ("01", "23")
    ]
    for run, table in zip(named, build_tables(tmp_path), strict=True):
        assert f"pe-bench eval {run.name} --results-dir {tmp_path} --targets 24" in "".join(table.notes)
    add_run(tmp_path / "own", "mine", {128: 3.0, 256: 3.0}, spread=2.0, label="mine@1a2b")
    assert "; more seeds or --targets 24" in said(tmp_path / "own")
    notes = " ".join(only(tmp_path / "own").notes)
    assert "by up to half: score them again with --targets 24" in notes


def test_a_model_that_gains_nothing_within_training_reads_nothing(tmp_path: Path) -> None:
    for name, at_quarter in (("rope", 3.2), ("nope", 3.0)):
        add_run(tmp_path, name, {32: at_quarter, 128: 3.0, 256: 3.0}, spread=0.001)
        add_run(tmp_path, name, {256: 3.0}, control="swap", spread=0.001)
    lines = {line.encoding: line for line in only(tmp_path).lines}
    assert lines["nope"].reads_nothing and not lines["rope"].reads_nothing
    assert said(tmp_path).count("reads nothing") == 2, "of one line, and what it means"


@pytest.mark.parametrize("width", [44, 80])
def test_a_narrow_terminal_gets_every_number_of_the_details_in_blocks_that_fit(tmp_path, width, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for a path that is longer than a line stays whole
    levels = {32 * 2**index: 3 + index / 100 for index in range(8)}
    add_run(Path("results"), "rope", levels, peak_memory_mb=700.0)
    text = printed(build_tables(Path("results")), width, details=True)
    assert max(map(len, text.splitlines())) <= width
    assert all(f" {3 + index / 100:.3f}" in text for index in range(8))
    assert all(word in text for word in ("820,000", "verdict", "trained", "seeds", "700", "MB"))
    assert (text.count("encoding  ") == 2) == (width == 80), "two tables, and more blocks where narrower"


@pytest.mark.parametrize("text", ["first\n\\input{/etc/passwd}", "first\r\n% second"])
def test_a_reason_of_several_lines_becomes_one_line_of_a_note_or_comment(tmp_path: Path, text: str) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: None})
    edit_rows(run, lambda row: replace(row, reason=text) if row.status != "ok" else row)
    table = only(tmp_path)
    assert all("\n" not in note and "\r" not in note for note in table.notes)
    for part in to_latex([table]).split(r"\end{table}")[:-1]:
        assert all(line.startswith("%") for line in part.split(r"\begin{table}")[0].split("\n") if line)


def test_with_a_baseline_only_what_is_better_for_sure_is_bold_and_only_among_several(tmp_path: Path) -> None:
    for name, levels in LEVELS.items():
        for seed in range(3):
            add_run(tmp_path, name, dict(zip(LENGTHS, levels, strict=True)), seed=seed)
    [table] = build_tables(tmp_path)
    assert "**" not in str(cells_of(to_markdown(build_tables(tmp_path, ["rope-s0-5e77da7a"])), "rope"))
    assert [cell.startswith("**") for cell in cells_of(to_markdown([table]), "alibi")] == [0, 1, 1, 1, 0]
    for seed in range(3):
        add_run(tmp_path, "fire", dict(zip(LENGTHS, (1.8, 2.43, 2.0, 2.1), strict=True)), seed=seed)
    text = to_markdown(build_tables(tmp_path, selection=Selection(baseline="rope")))
    assert [cell.startswith("**") for cell in cells_of(text, "alibi")] == [0, 0, 1, 1, 1, 0]
    assert "**" not in str(cells_of(text, "fire")) + str(cells_of(text, "rope"))
    assert "bold: the lowest that is better than rope for sure" in text


def test_a_cell_without_a_number_says_why(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1, 512: 3.2})
    add_run(tmp_path, "learned", {128: 3.0, 256: None, 512: None})
    add_run(tmp_path, "alibi", {128: 3.0, 512: 3.0})
    text = said(tmp_path)
    assert "-: not scored: alibi at 256" in text and "alibi at 256, 512" not in text
    assert "undefined: learned at 256, 512: position 255 is past the table of 128" in text


def test_no_mark_is_explained_that_is_not_in_the_table(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1, 512: 3.2}, spread=0.001)
    text = said(tmp_path)
    assert "no mark holds, > degrades" in text
    assert not any(word in text for word in ("! fails", "v improves", "? unclear", "works to 1", "uses"))


def test_latex_has_five_lengths_with_half_intervals_and_markdown_a_command_to_copy(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {length: 3.0 + length / 999 for length in (128, 160, 192, 256, 384, 512, 1024)})
    table = only(tmp_path)
    [heading] = [line for line in to_latex([table]).splitlines() if line.startswith("encoding &")]
    assert heading.count("&") == 7 and " 1,024 " in heading and " 160 " in heading
    assert r"$+0.897 \pm 0.006$!" in to_latex([table]) and "±" not in to_latex([table])
    named = only(tmp_path, lengths=(160, 192, 256, 384, 512, 1024))
    [heading] = [line for line in to_latex([named]).splitlines() if line.startswith("encoding &")]
    assert heading.count("&") == 8
    add_run(tmp_path / "unclear", "rope", {128: 3.0, 256: 3.0}, spread=2.0)
    add_run(tmp_path / "unclear", "alibi", {128: 3.0, 256: 3.0}, spread=2.0)
    markdown = to_markdown([only(tmp_path / "unclear")], details=True)
    assert re.search(r"by up to half: `pe-bench eval [^`]*--targets 24`$", markdown, re.MULTILINE)
