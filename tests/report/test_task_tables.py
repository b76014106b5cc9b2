"""Verdicts on answers, and a table of a task from rows that are made up."""

from pathlib import Path

import numpy as np
import pytest
from support.results import CHANCE, add_task_run
from support.tables import interval, printed

from pe_bench.report.build import build_tables
from pe_bench.report.columns import to_frame, to_latex, to_markdown
from pe_bench.report.groups import Selection
from pe_bench.report.page import to_html
from pe_bench.report.records import Answers
from pe_bench.report.verdicts import answers_from_shares, judge_answers

TRAINED = 32


def table(results_dir: Path, **options: object):
    [found] = build_tables(results_dir, selection=Selection(**options))  # pyright: ignore[reportArgumentType]
    return found


@pytest.mark.parametrize(
    ("exact", "accuracy", "verdict"),
    [
        ((0.91, 1.0), (0.98, 1.0), "solves"),
        ((0.89, 1.0), (0.98, 1.0), "unclear"),
        ((0.0, 0.1), (0.06, 0.2), "partial"),
        ((0.0, 0.1), (0.06, 0.099), "chance"),
        ((0.0, 0.1), (0.04, 0.2), "partial"),
        ((0.5, 0.92), (0.5, 0.95), "unclear"),
    ],
)
def test_a_verdict_is_a_sure_claim(
    exact: tuple[float, float], accuracy: tuple[float, float], verdict: str
) -> None:
    assert judge_answers(Answers(interval(*exact), interval(*accuracy), CHANCE)) == verdict


def test_an_interval_of_shares_stays_within_0_and_1_and_grows_with_what_seeds_differ() -> None:
    for count, verdict in ((10, "unclear"), (128, "solves")):
        right = np.ones((3, count))
        assert judge_answers(answers_from_shares(right, right, CHANCE)) == verdict
    right = np.repeat([[1.0], [1.0], [0.0]], 128, axis=1)
    found = answers_from_shares(right, right, CHANCE).exact
    assert (found.low, found.high) == (0.0, 1.0)
    alike = answers_from_shares(right[:2], right[:2], CHANCE).exact
    assert 0.95 < alike.low < 1 == alike.high


def test_each_length_has_a_verdict_by_itself_and_the_first_that_is_not_solved_is_the_break_point(
    tmp_path: Path,
) -> None:
    add_task_run(tmp_path, "rope", {16: 1.0, TRAINED: 1.0, 64: 1.0, 128: 0.5, 256: 0.0})
    [line] = table(tmp_path).lines
    verdicts = {length: cell.verdict for length, cell in line.records.items()}
    assert verdicts == {16: "", TRAINED: "solves", 64: "solves", 128: "partial", 256: "chance"}
    assert (line.break_point.breaks_at, line.break_point.works_to) == (128, 64)
    assert [cell.change for cell in line.records.values()] == [None] * 5


def test_a_task_without_a_score_at_the_training_length_has_no_working_length_unless_it_is_solved(
    tmp_path: Path,
) -> None:
    add_task_run(tmp_path, "nope", {64: 0.0, 128: 0.0})
    add_task_run(tmp_path, "rope", {64: 1.0, 128: 0.0})
    points = {line.encoding: line.break_point for line in table(tmp_path).lines}
    assert {name: point.works_to for name, point in points.items()} == {"nope": None, "rope": 64}
    assert "works at 32" not in printed([table(tmp_path)])


def test_what_is_not_learned_at_the_training_length_has_no_verdict_past_it_and_no_rank(
    tmp_path: Path,
) -> None:
    add_task_run(tmp_path, "nope", {TRAINED: 0.7, 64: 0.6, 128: 0.0})
    add_task_run(tmp_path, "rope", {TRAINED: 1.0, 64: 0.5, 128: 0.0})
    found = table(tmp_path)
    assert [line.encoding for line in found.lines] == ["rope", "nope"]
    unlearned = found.lines[1]
    assert unlearned.unlearned == "task" and unlearned.break_point.works_to is None
    assert [cell.verdict for cell in unlearned.records.values()] == ["partial", "", ""]
    text = printed([found], 80)
    assert all(
        word in text for word in ("0.703*", "0.602*", "*: not learned", "probe model (0.8M) · task copy")
    )
    assert "bits" not in text and all(len(line) <= 80 for line in text.splitlines())


def test_the_title_has_the_tasks_options_that_are_not_those_of_its_file(tmp_path: Path) -> None:
    run = add_task_run(tmp_path, "rope", {TRAINED: 1.0})
    for symbols, shown in ((26, False), (12, True)):
        (run / "config.yaml").write_text(f"task: {{name: copy, symbols: {symbols}}}\n", encoding="utf-8")
        found = table(tmp_path)
        assert ("steps with task.symbols=12 ·" in printed([found], 200)) == shown


def test_few_examples_are_not_called_documents(tmp_path: Path) -> None:
    add_task_run(tmp_path, "rope", {TRAINED: 0.7}, examples=12)
    text = printed([table(tmp_path)], 80)
    assert "few examples (12): intervals over so few" in text and "documents" not in text


def test_a_run_scored_on_two_sets_of_examples_has_learned_by_the_larger_set(tmp_path: Path) -> None:
    add_task_run(tmp_path, "rope", {TRAINED: 0.7}, examples=64)
    add_task_run(tmp_path, "rope", {TRAINED: 1.0, 64: 1.0})
    [line] = table(tmp_path).lines
    assert line.unlearned == "" and line.records[TRAINED].verdict == "solves"


def test_all_outputs_have_the_share_of_examples_its_interval_the_accuracy_and_the_chance(
    tmp_path: Path,
) -> None:
    add_task_run(tmp_path, "rope", {TRAINED: 1.0, 64: 0.5})
    found = [table(tmp_path)]
    frame = to_frame(found).set_index("length")
    assert frame.loc[64, "exact"] == frame.loc[64, "accuracy"] == 0.5 and frame.loc[64, "chance"] == CHANCE
    assert frame.loc[64, "exact_low"] < 0.45 and frame.bits_per_byte.isna().all()
    for text in (to_markdown(found), to_latex(found), to_html(found)):
        assert "exact match" in text.lower() and "0.500" in text and "bits per byte" not in text
    [row] = [line for line in to_markdown(found, details=True).splitlines() if "partial" in line][:1]
    assert row.startswith("| rope | 64 | 0.500 | 0.4") and "| 0.500 | partial |" in row


def test_a_baseline_shows_differences_of_which_more_is_better(tmp_path: Path) -> None:
    add_task_run(tmp_path, "rope", {TRAINED: 1.0, 64: 0.2})
    add_task_run(tmp_path, "pope", {TRAINED: 1.0, 64: 0.9})
    lines = {line.encoding: line for line in table(tmp_path, baseline="rope").lines}
    found = lines["pope"].records[64].baseline
    assert found is not None and found.mean is not None
    assert found.mean == pytest.approx(0.7, abs=0.01) and found.verdict == "better"


def test_answers_that_are_all_alike_have_wilsons_interval_at_95_percent() -> None:
    z, count = 1.959964, 128
    right, wrong = (answers_from_shares(*[np.full((1, count), share)] * 2, CHANCE) for share in (1.0, 0.0))
    assert (right.exact.low, right.exact.high) == pytest.approx((count / (count + z**2), 1.0))
    assert (wrong.accuracy.low, wrong.accuracy.high) == pytest.approx((0.0, z**2 / (count + z**2)))
