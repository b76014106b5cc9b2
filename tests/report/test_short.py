"""The short form of a table: one line an encoding, whose marks and two answers can be relied on."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.results import add_run
from support.tables import printed

import pe_bench
from pe_bench.cli.data import plain
from pe_bench.commands.reproduce.claims import Measurements, Series, judge_claim
from pe_bench.commands.reproduce.papers import Claim
from pe_bench.commands.reproduce.study import FinishedStep
from pe_bench.commands.try_change.trying import Outcome, Try
from pe_bench.errors import UserError
from pe_bench.report.build import build_report, build_tables, run_tables
from pe_bench.report.cells import lengths_by_importance, lengths_of_short_table, works_to_cell
from pe_bench.report.columns import to_frame, to_latex, to_markdown
from pe_bench.report.groups import Selection
from pe_bench.report.page import describe_result, to_html
from pe_bench.report.records import BreakPoint
from pe_bench.runs.find import parse_condition
from pe_bench.runs.rows import read_rows

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
LENGTHS = (64, 128, 192, 256, 512, 1024, 2048)
CHANGES: dict[str, tuple[float, list[float | None]]] = {
    "kerple_log": (1.755, [-0.013, -0.021, -0.039, -0.062, -0.062]),
    "alibi": (1.762, [0.002, 0.002, 0.003, 0.03, 0.04]),
    "rope": (1.719, [0.709, 1.09, 1.895, 2.62, 3.3]),
    "learned": (1.9, [None, None, None, None, None]),
}


def add(folder: Path, name: str, level: float, changes: list[float | None], **others: object) -> Path:
    levels = [level + 0.1, level, *(None if change is None else level + change for change in changes)]
    return add_run(folder, name, dict(zip(LENGTHS, levels, strict=True)), spread=0.002, **others)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, (level, changes) in CHANGES.items():
        add(tmp_path, name, level, changes)
    return tmp_path


def cells_of(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).replace("not at all", "never").split()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 200])
def test_a_narrow_terminal_keeps_the_lengths_that_people_ask_for_and_the_answers(
    results: Path, width: int
) -> None:
    add_run(results, "alibi", {2048: 1.9}, control="swap")
    text = printed(build_tables(results), width)
    assert max(map(len, text.splitlines())) <= width
    [headings] = [line for line in text.splitlines() if line.startswith("encoding ")]
    is_narrow = width <= 80
    assert headings.startswith("encoding ") and headings.endswith("context" if is_narrow else "uses context")
    assert (headings.split()[1:3] == ["works", "to"]) == is_narrow, "the answer is seen first"
    words = headings.replace(",", "").split("at 128")[1].split()
    shown = [int(word) for word in words if word.isdecimal()]
    dropped = [length for length in LENGTHS[2:] if length not in shown]
    assert bool(dropped) == (width < 90)
    assert not dropped or f"no room for {', '.join(f'{length:,}' for length in dropped)}" in text
    assert shown == sorted(lengths_by_importance(LENGTHS[2:], 128, (), [192])[: len(shown)])
    assert width < 80 or 192 in shown, "where rope breaks"


def test_a_length_that_was_named_is_shown_before_all_others(results: Path) -> None:
    [table] = build_tables(results, selection=Selection(where=(parse_condition("length=64,128,192,2048"),)))
    heading = printed([table], 80).splitlines()[3].split()
    assert heading[1:6] == ["at", "128", "64", "192", "2,048"]
    assert "64: less context than in training costs by nature" in printed([table], 80)
    [table] = build_tables(results, selection=Selection(lengths=(64, 512)))
    assert cells_of(printed([table], 100), "alibi") == ["1.762", "+0.100", "+0.003", "512", "to", "1,024"]
    with pytest.raises(UserError, match="--lengths 77: nothing was scored at that length"):
        build_tables(results, selection=Selection(lengths=(77,)))
    [run] = (results / "runs").glob("rope-*")
    [table] = run_tables(read_rows(run / "eval.csv"), run, chosen=(64, 512))
    assert lengths_of_short_table(table) == [64, 192, 256, 512, 1024, 2048]
    text = printed([table], 50)
    [heading] = [line.split() for line in text.splitlines() if line.startswith("encoding ")]
    assert {"64", "512"} < set(heading) and "no room for" in text


def test_with_a_baseline_a_length_that_it_lacks_takes_no_column_unless_it_is_named(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 1.8, 256: 1.9, 512: 2.0})
    add_run(tmp_path, "alibi", {128: 1.8, 256: 1.8, 512: 1.8, 2048: 1.8})
    for named, shown in (((), [128, 256, 512]), ((2048,), [128, 2048])):
        [table] = build_tables(tmp_path, selection=Selection(baseline="rope", lengths=named))
        assert lengths_of_short_table(table) == shown


@pytest.mark.parametrize(
    ("swaps", "answer"), [({256: 1.9, 2048: 1.9}, "yes"), ({256: 1.72, 2048: 1.67}, "no"), ({}, None)]
)
def test_one_answer_says_whether_the_context_is_used_at_any_length(
    tmp_path: Path, swaps: dict[int, float], answer: str | None
) -> None:
    for seed in range(3):
        add(tmp_path, "kerple_log", *CHANGES["kerple_log"], seed=seed)
        add(tmp_path, "alibi", *CHANGES["alibi"], seed=seed)
        add_run(tmp_path, "kerple_log", {32: 2.0}, seed=seed, spread=0.002)
        for length, level in swaps.items():
            add_run(tmp_path, "kerple_log", {length: level}, seed=seed, spread=0.002, control="swap")
    text = printed(build_tables(tmp_path))
    assert ("uses context" in text) == (answer is not None)
    if answer is not None:
        assert cells_of(text, "kerple_log")[-1] == answer
        assert cells_of(text, "alibi")[-1] == "-"
        assert "uses context: gains from reading more than 128 tokens back" in text


@pytest.mark.parametrize(
    ("levels", "text", "predicate", "ends"),
    [
        ({128: 1.7, 144: 1.7, 160: 3.0, 2048: 5.0}, "144", "works to 144", (144, 160)),
        ({128: 1.7, 512: 5.0, 2048: 5.0}, "128 to 512", "works at 128 and no longer at 512", (128, 512)),
        ({128: 1.7, 300: 1.7, 1000: 5.0}, "300 to 1,000", "works at 300 and no longer at 1,000", (300, 1000)),
        ({128: 1.7, 256: None}, "128 to 256", "works at 128 and no longer at 256", (128, 256)),
        ({128: 1.7, 160: 5.0}, "128", "works to 128", (128, 160)),
        ({128: 1.7, 256: 1.7}, "256", "works to 256", (256, None)),
        ({64: 1.8, 128: 1.7}, "", "works to an unknown length", (None, None)),
    ],
)
def test_every_view_says_to_the_same_length_how_far_a_model_works(
    tmp_path: Path,
    levels: dict[int, float | None],
    text: str,
    predicate: str,
    ends: tuple[int | None, int | None],
) -> None:
    for seed in range(3):
        add_run(tmp_path, "rope", levels, seed=seed, spread=0.002)
    [table] = build_tables(tmp_path)
    [line] = table.lines
    point = line.break_point
    assert (point.works_to_text, point.works_to, point.stops_by) == (text, *ends)
    shown = printed([table], 200)
    assert cells_of(shown, "rope")[-len(text.split() or "-") :] == (text or "-").split()
    note = f'"{text}": {predicate.replace(" and no longer at", ", not at")}, the next scored length'
    assert (note in shown) == (" to " in text)
    assert re.search(rf"\| {text or '-'} \|$", to_markdown([table]), re.MULTILINE)
    if text:
        assert f">{text}<" in re.sub(r"\s", " ", to_html([table])).replace("> ", ">").replace(" <", "<")
    for_latex = {"": "-- ", "not at all": "not at all "}.get(text, text if " " in text else f"${text}$")
    assert for_latex.replace(",", "{,}" if "$" in for_latex else ",") in to_latex([table])
    frame = to_frame([table]).astype(object)
    of_interface = pe_bench.results(tmp_path).astype(object)
    assert of_interface.equals(frame)
    assert {(row.works_to, row.stops_by) for row in frame.where(frame.notna(), None).itertuples()} == {ends}
    said = plain(table)["lines"][0]["break_point"]
    assert (said["works_to"], said["stops_by"]) == ends
    look = SimpleNamespace(answer="better", seeds=3, bounds=((-1, 1), (-1, 1)), is_sure=True)
    look.at_training = look.at_longest = SimpleNamespace(mean=0.0)
    tried = Try("try", 1, "nope", "rope", "", "", 128, [128, 512], "2026-11-27")
    outcome = Outcome(tried, cast(Any, look), (point, point), 1.0, 0, 1.0, None)
    assert f"  {predicate} (rope {predicate})" in str(outcome).splitlines()
    runs = [run.name for run in (tmp_path / "runs").iterdir()]
    keys = {row.key for run in runs for row in read_rows(tmp_path / "runs" / run / "eval.csv")}
    measured = Measurements(tmp_path, [FinishedStep("", tuple(runs), keys)], 128)
    assert measured.break_point(Series("rope"), "paired").works_to_text == text
    claim = judge_claim(Claim("holds", "a test", "rope", 2), measured)
    assert (f"rope {predicate}" in claim.evidence.split("; ")) == bool(text)


def test_the_table_of_one_call_knows_from_the_runs_other_scores_where_it_breaks(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 1.7, 144: 1.7, 160: 1.7, 256: 3.0, 512: 3.0}, spread=0.002)
    add_run(tmp_path, "rope", {128: 1.7, 192: 3.0}, target_hash="0ther")
    add_run(tmp_path, "rope", {144: 9.0}, protocol="nonoverlapping")
    rows = [row for row in read_rows(run / "eval.csv") if row.protocol == "paired"]
    [table] = run_tables(
        [row for row in rows if row.length in (128, 512) and row.target_hash != "0ther"], run
    )
    assert table.lengths == (128, 512)
    point = table.lines[0].break_point
    assert (point.works_to, point.stops_by, point.breaks_at) == (160, 256, 256)


def test_the_table_of_one_call_has_no_line_of_a_scaling_that_another_call_scored(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {32: 2.0, 128: 1.7, 256: 3.0})
    for scaling in ("yarn factor=auto", "rope_pi factor=auto"):
        add_run(tmp_path, "rope", {32: 2.0, 128: 1.7, 256: 2.0}, scored_with=scaling)
    rows = [row for row in read_rows(run / "eval.csv") if not row.scored_with.startswith("yarn")]
    [table] = run_tables(rows, run)
    assert {line.label for line in table.lines} == {"rope", "rope -> rope_pi factor=auto"}
    assert not any("not scored" in note for note in table.notes)


@pytest.mark.parametrize("name", ["catalogue", "presets", "seeds"])
def test_stored_tables_say_how_far_a_model_works_as_the_program_does(name: str) -> None:
    text = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| encoding .*works to.*\n(?:\|.*\n)+", text, re.MULTILINE)
    assert tables
    for table in tables:
        headings, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        lengths = [int(heading.replace(",", "")) for heading in headings if heading[:1].isdecimal()]
        assert rows
        for row in rows:
            said = row[headings.index("works to")].rstrip("?^")
            if said in ("-", "", "not at all"):
                continue
            ends = [int(end.replace(",", "")) for end in said.split(" to ")]
            following = [length for length in lengths if length > ends[0]]
            stops_by = min(following, default=None)
            assert BreakPoint(works_to=ends[0], stops_by=stops_by).works_to_text == said, row[0]


def test_only_what_fails_at_its_training_length_works_not_at_all(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 1.7, 256: 1.7})
    add_run(tmp_path, "rope", {128: 2.7, 256: 3.7}, scored_with="yarn factor=16.0", forced=True)
    text = printed(build_tables(tmp_path), 200)
    assert cells_of(text, "rope -> yarn factor=16.0 (forced)")[-1] == "never"


def test_the_newest_runs_table_is_shown_and_the_others_are_counted(results: Path) -> None:
    add_run(results, "rope", {128: 3.0, 256: 3.0}, data="wikitext103", data_hash="beef0123456789")
    add_run(results, "rope", {128: 3.0, 256: 3.0}, data="books", data_hash="b00c0123456789")
    report = build_report(results, newest_only=True)
    assert [table.key.data for table in report.tables] == ["books"]
    assert (report.others, report.tables[0].why) == (2, "")
    assert build_report(results).others == 0 and len(build_tables(results)) == 3


def test_the_reason_of_a_length_out_of_reach_is_said_and_at_most_six_notes(results: Path) -> None:
    [table] = build_tables(results)
    assert "past the table of 128" in printed([table], 200)
    caveats = tuple(f"caveat {number}" for number in range(9))
    text = printed([replace(table, caveats=caveats)], 200)
    assert "caveat 2" in text and "caveat 8" not in text and "6 more notes: --details" in text
    alibi = next(line for line in table.lines if line.encoding == "alibi")
    point = replace(alibi.break_point, holds_to=256, works_to=2048)
    unsure = replace(table, lines=(replace(alibi, break_point=point),))
    assert works_to_cell(unsure.lines[0]).mark == "?"
    assert "works to 2,048?: unclear from a shorter length on" in printed([unsure], 100)
    assert "works to 2,048?" in printed([unsure], 100, details=True)
    result = describe_result(unsure)
    assert result.startswith("0 of 1 surely hold") and ", 1 more may" in result
