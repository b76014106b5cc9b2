"""The rows that share a table, its numbers, and its layout."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.results import ROW, add_run
from support.tables import BREAKING, bits_at, line_of, only, printed

from pe_bench.config.schema import LOSES_TEXT
from pe_bench.report.columns import detail_grids, short_grid
from pe_bench.report.curves import chart_of
from pe_bench.report.notes import meanings
from pe_bench.report.statistics import paired_interval
from pe_bench.report.verdicts import find_break_point, pairs_of
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import score_file


def judged(
    verdict: str, of_models: str = "", of_seeds: tuple[str, ...] = (), *, status: str = "ok"
) -> SimpleNamespace:
    return SimpleNamespace(
        verdict=verdict, verdict_of_models=of_models, verdicts_of_seeds=of_seeds, status=status
    )


def test_seeds_are_averaged_and_perplexity_is_that_of_the_mean_nll(tmp_path: Path) -> None:
    runs = [add_run(tmp_path, "rope", {128: 2.0 + seed, 256: 3.0 + seed}, seed=seed) for seed in range(3)]
    line = line_of(only(tmp_path), "rope")
    rows = [row for run in runs for row in read_rows(run / "eval.csv") if row.length == 256]
    assert line.seeds == 3
    assert line.records[256].level == pytest.approx(np.mean([row.bits_per_byte or 0 for row in rows]))
    assert line.records[256].level == pytest.approx(4.0, abs=1e-6)
    assert line.records[256].perplexity == pytest.approx(math.exp(np.mean([row.nll or 0 for row in rows])))


def test_the_change_is_paired_over_the_documents_of_the_score_files(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    expected = paired_interval((bits_at(run, 256) - bits_at(run, 128))[None, :])
    cell = line_of(only(tmp_path), "rope").records[256]
    assert cell.interval == expected
    assert cell.change == pytest.approx(0.1, abs=1e-6)
    # Documents differ by 0.2 bits; in pairs that cancels, and the interval is far shorter.
    assert expected.high - expected.low < 0.02


def test_unequal_targets_leave_the_change_empty_with_the_reason(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {4096: 5.0}, target_hash="0ther")
    table = only(tmp_path)
    cell = line_of(table, "rope").records[4096]
    assert (cell.change, cell.verdict, cell.level) == (None, "", pytest.approx(5.0, abs=1e-6))
    assert "no change: rope at 4,096: scored on other targets than the training length" in table.notes
    add_run(tmp_path, "rope", {128: 3.4}, target_hash="0ther")
    note = (
        "~ changes at 4,096: from levels at 128 on the same targets, which are not those of the levels shown"
    )
    assert f"{note} at 128" in meanings(only(tmp_path))


def test_a_level_is_shown_only_beside_levels_on_the_same_targets(tmp_path: Path) -> None:
    for name in ("alibi", "rope"):
        add_run(tmp_path, name, {128: 1.78, 160: 1.79, 256: 3.65, 2048: 4.8})
    few = {"target_hash": "0ther", "targets": 48}
    add_run(tmp_path, "rope", {128: 1.979, 192: 2.5, 1000: 4.5}, **few)
    for name in ("yarn factor=auto", "yarn factor=16.0", "pi"):
        add_run(tmp_path, "rope", {128: 1.979, 192: 2.3, 1000: 2.4}, scored_with=name, forced=True, **few)
    table = only(tmp_path)
    text = printed([table], 160)
    assert "1.979" not in text and "0.000" not in text
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    yarn = rows["rope -> yarn factor=auto (forced)"]
    assert "+0.321!~" in yarn and "  ~ " in yarn, "its change is from rope on the same targets"
    assert "1.780" in rows["rope"] and "+0.521!~" in rows["rope"] and "+1.870!  " in rows["rope"]
    assert "~ at 128" in text and "without a level" in text
    for chart in (chart_of(table), chart_of(table, "change")):
        curves = {curve.label: curve for curve in chart.curves}
        assert [point.x for point in curves["rope"].points] == [128, 160, 256, 2048]
        other = curves["rope -> pi (forced)"]
        assert (other.points, chart.remark(other)) == ((), "(other targets)")
    for other in (*detail_grids(table), short_grid(only(tmp_path, baseline="rope"))):
        texts = [cell.text for row in other.rows for cell in row]
        assert "1.979" not in texts
    against = short_grid(only(tmp_path, baseline="rope"))
    at = [column.heading for column in against.columns].index("128")
    marks = {row[0].text: row[at].text + row[at].mark for row in against.rows}
    assert marks["rope -> pi (forced)"] == "0.000~" and marks["alibi"] == "0.000"


def test_a_run_that_joins_a_table_changes_no_verdict_of_another_line(tmp_path: Path) -> None:
    """A line is judged on its own largest set; its levels stay on the one that most lines share."""
    few, many = {128: 3.0, 256: 3.02}, {128: 3.1, 256: 3.105}
    for seed in range(3):
        add_run(tmp_path, "alibi", few, seed=seed, spread=0.01)
        add_run(
            tmp_path, "alibi", many, seed=seed, target_hash="b16", targets=480, documents=120, spread=0.01
        )
    alone = line_of(only(tmp_path), "alibi").records[256]
    assert alone.change == pytest.approx(0.005, abs=1e-6) and alone.verdict == "holds"
    for name in ("rope", "nope"):
        add_run(tmp_path, name, {64: 3.2, **few, 512: 3.5})
    table = only(tmp_path)
    joined = line_of(table, "alibi").records[256]
    assert (joined.interval, joined.verdict) == (alone.interval, "holds")
    assert joined.level == pytest.approx(3.02, abs=1e-6), "on the set of all lines"


def test_levels_and_changes_are_of_a_set_that_all_seeds_have(tmp_path: Path) -> None:
    for seed in range(2):
        add_run(tmp_path, "rope", {128: 3.0, 256: 3.1}, seed=seed)
    larger = {"target_hash": "b16", "targets": 480, "documents": 120}
    add_run(tmp_path, "rope", {64: 3.2, 128: 3.0, 256: 3.5, 512: 3.6}, seed=0, **larger)
    record = line_of(only(tmp_path), "rope").records[256]
    assert record.interval and record.interval.seeds == 2 == len(record.levels)
    assert record.change == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("damage", ["missing", "of another row"])
def test_without_its_scores_a_change_has_no_interval_and_says_so(tmp_path: Path, damage: str) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: 3.1, 512: 4.0})
    paths = {row.length: score_file(run, row) for row in read_rows(run / "eval.csv")}
    if damage == "missing":
        paths[256].unlink()
    else:
        paths[256].write_bytes(paths[512].read_bytes())
    table = only(tmp_path)
    cells = line_of(table, "rope").records
    assert cells[256].change == pytest.approx(0.1, abs=1e-6)
    assert (cells[256].interval, cells[256].verdict) == (None, "")
    assert cells[512].verdict == "fails"
    [note] = [note for note in table.notes if note.startswith("a change without an interval: rope at 256")]
    assert str(paths[256]) in note


@pytest.mark.parametrize(
    ("verdicts", "words", "holds_to", "works_to"),
    [
        ({256: "holds", 512: "improves"}, "none up to 512", 512, 512),
        ({256: "holds", 512: "unclear"}, "none; unclear from 512", 256, 512),
        ({256: "unclear", 512: "holds"}, "none; unclear from 256", 128, 512),
        ({256: "", 512: ""}, "unknown", None, None),
        ({256: "degrades", 512: "holds"}, "256", 128, 128),
        ({256: "fails", 512: "holds", 1024: "degrades"}, "256", 128, 128),
        ({256: "holds", 512: "fails"}, "512", 256, 256),
        ({256: "unclear", 512: "fails"}, "≤ 512", 128, 256),
        ({256: "unclear", 512: "fails", 1024: "holds"}, "none; unclear from 256", 128, 256),
        ({128: "holds", 256: "fails"}, "256", 128, 128),
        ({128: "fails", 256: "fails"}, "128", 0, 0),
    ],
)
def test_the_break_point_says_where_it_is_unclear_and_has_numbers_to_sort_by(
    verdicts: dict[int, str], words: str, holds_to: int | None, works_to: int | None
) -> None:
    breaks_at = int(words.removeprefix("≤ ")) if words[-1].isdecimal() and "none" not in words else None
    cells = {length: judged(verdict) for length, verdict in {64: "holds", **verdicts}.items()}
    found = find_break_point(cells, 128)  # pyright: ignore[reportArgumentType]
    assert str(found) == words
    assert (found.holds_to, found.works_to) == (holds_to, works_to)
    assert found.breaks_at == breaks_at


@pytest.mark.parametrize(
    ("judgement", "works_to"),
    [
        (judged("unclear", "degrades", ("degrades", "unclear")), 256),
        (judged("unclear", "unclear", ("fails", "degrades")), 256),
        (judged("unclear", "unclear", ("fails", "unclear")), 1024),
        (judged("unclear", "holds", ("holds", "unclear")), 1024),
        (judged("unclear"), 1024),  # of one seed
        (judged("undefined", status="undefined"), 256),
    ],
)
def test_a_length_that_breaks_these_models_or_is_out_of_reach_is_where_it_stops_working(
    judgement: SimpleNamespace, works_to: int
) -> None:
    cells = {256: judged("unclear"), 512: judgement, 1024: judged("unclear")}
    point = find_break_point(cells, 128)  # pyright: ignore[reportArgumentType]
    assert (point.works_to, point.holds_to, point.breaks_at) == (works_to, 128, None)


@pytest.mark.parametrize("unjudged", [judged(""), judged("undefined", status="out_of_memory")])
def test_a_length_without_a_verdict_is_none_at_which_a_line_does_not_work(unjudged: SimpleNamespace) -> None:
    cells = {256: judged("holds"), 512: unjudged, 1024: judged("fails")}
    point = find_break_point(cells, 128)  # pyright: ignore[reportArgumentType]
    assert (point.works_to, point.stops_by, point.breaks_at) == (256, None, 1024)
    assert point.predicate == "works to 256"


def test_a_task_that_was_not_scored_at_its_training_length_is_not_said_to_work_there() -> None:
    for verdict, works_to, stops_by in (("chance", None, None), ("unclear", 256, 512), ("solves", 256, 512)):
        cells = {256: judged(verdict), 512: judged("partial")}
        point = find_break_point(cells, 128, is_task=True)  # pyright: ignore[reportArgumentType]
        assert (point.works_to, point.stops_by) == (works_to, stops_by)
        assert point.holds_to == (256 if verdict == "solves" else None)


def test_a_level_of_fewer_seeds_than_its_line_is_named_below_the_table(tmp_path: Path) -> None:
    for seed in range(3):
        add_run(tmp_path, "rope", {128: 3.0, 256: 3.1, **({512: 3.6} if seed == 0 else {})}, seed=seed)
        add_run(tmp_path, "alibi", {128: 3.0, 512: 3.1, **({256: 3.1} if seed == 0 else {})}, seed=seed)
    text = printed([only(tmp_path)], 100)
    named = [line for line in text.splitlines() if "of 3 seeds" in line]
    assert sorted(named) == ["at 256, 1 of 3 seeds only: alibi", "at 512, 1 of 3 seeds only: rope"]


@pytest.mark.parametrize("level", [math.inf, math.nan])
def test_a_level_that_is_no_finite_number_is_named_below_the_table(tmp_path: Path, level: float) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1, 512: level})
    assert "not finite: rope at 512: its scores are infinite or NaN" in printed([only(tmp_path)], 100)


def test_levels_of_a_tokenizer_that_loses_text_are_ranked_and_drawn_in_nats_per_token(tmp_path: Path) -> None:
    for tokenizer, unit, short_unit in (
        ("words", "bits per byte", "bits/byte"),
        (f"words{LOSES_TEXT}", "nats per token", "nats/token"),
    ):
        for name, level in (("rope", 2.0), ("alibi", 2.1)):
            add_run(tmp_path / tokenizer, name, {128: level, 256: level}, tokenizer=tokenizer)
        table = only(tmp_path / tokenizer)
        assert any(note.startswith(f"ranked by {short_unit} at 256") for note in table.notes)
        assert chart_of(table, "change").y_label == f"change against 128, {unit} (+ is worse)"


def test_rows_are_paired_on_the_same_targets_and_the_same_slice_of_them() -> None:
    longer = replace(ROW, length=2 * ROW.length)
    assert pairs_of([longer], [ROW]) == [(longer, ROW)]
    for other in (
        replace(ROW, target_hash="else"),
        replace(ROW, slice_hash="else"),
        replace(ROW, run="else"),
    ):
        assert pairs_of([longer], [other]) == []
