"""What distinguishes the lines of a table, their order, their baseline and their margin."""

from pathlib import Path

import numpy as np
import pytest
from support.results import add_run
from support.tables import BREAKING, HOLDING, labels, only, where

from pe_bench.errors import UserError
from pe_bench.report.build import build_tables
from pe_bench.report.selection import Selection, parse_by
from pe_bench.report.statistics import corrected_comparisons, paired_interval
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import load_scores, score_file

ROPE = "pe_bench.encodings.rotary.rope:RoPE"


def test_a_key_that_no_run_has_is_refused_with_the_nearest(rates: Path) -> None:
    with pytest.raises(UserError, match=r"train.l_r.*did you mean 'train.lr'"):
        build_tables(rates, selection=Selection(where=where("train.l_r=1")))
    with pytest.raises(UserError, match=r"--by.*train.l_r"):
        build_tables(rates, selection=Selection(by=("train.l_r",)))


# by


def test_by_a_training_key_the_values_are_lines_of_one_table(rates: Path) -> None:
    assert len(build_tables(rates)) == 2, "without being asked for they are never ranked together"
    table = only(rates, by=("train.lr",))
    assert labels(table) == [
        "alibi train.lr=0.001",
        "alibi train.lr=0.003",
        "rope train.lr=0.001",
        "rope train.lr=0.003",
    ]
    assert {line.seeds for line in table.lines} == {2}
    assert table.why == ""


@pytest.mark.parametrize("word", ["", "length", "nothing", "setting"])
def test_by_a_column_that_cannot_distinguish_lines_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="--by"):
        parse_by(word)


# sort


@pytest.mark.parametrize(
    ("sort", "expected", "ranked_at"),
    [
        (None, ["alibi", "rope"], 512),
        ("128", ["rope", "alibi"], 128),
        ("256", ["rope", "alibi"], 256),
        ("name", ["alibi", "rope"], None),
        ("parameters", ["rope", "alibi"], None),
        ("tokens_per_second", ["rope", "alibi"], None),
    ],
)
def test_lines_are_in_the_requested_order(
    results: Path, sort: str | None, expected: list[str], ranked_at: int | None
) -> None:
    table = only(results, sort=sort)
    assert labels(table) == expected
    assert table.ranked_at == ranked_at
    said = f"ranked by bits/byte at {ranked_at}" if ranked_at else f"in order of {sort}"
    assert any(note.startswith(said) for note in table.notes)


# baseline


def test_differences_from_a_baseline_are_paired_by_seed_and_document(results: Path) -> None:
    table = only(results, baseline="rope")
    assert table.baseline == "rope"
    lines = {line.label: line for line in table.lines}
    assert all(cell.baseline is None for cell in lines["rope"].records.values())
    differences = []
    runs = {run.name.split("-s")[0] + run.name.split("-s")[1][0]: run for run in (results / "runs").iterdir()}
    for seed in range(3):
        bits = {}
        for name in ("alibi", "rope"):
            run = runs[f"{name}{seed}"]
            row = next(row for row in read_rows(run / "eval.csv") if row.length == 256)
            bits[name] = load_scores(score_file(run, row)).by_cluster()[1]
        differences.append(bits["alibi"] - bits["rope"])
    found = lines["alibi"].records[256].baseline
    assert found is not None
    assert found.interval == paired_interval(np.stack(differences))
    assert found.mean == pytest.approx(0.2, abs=1e-6)


def test_without_a_common_seed_there_is_no_comparison_and_the_table_says_so(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING, seed=0)
    add_run(tmp_path, "alibi", HOLDING, seed=1)
    table = only(tmp_path, baseline="rope")
    assert any("no seed in common with rope" in note for note in table.notes)
    add_run(tmp_path, "t5", {1024: 3.0}, seed=0)
    notes = only(tmp_path, baseline="rope").notes
    assert any("t5 at 1024: rope has no score at this length" in note for note in notes)


def test_a_baselines_verdicts_are_corrected_over_the_lines_at_each_length(results: Path) -> None:
    for number in range(3):
        levels = {length: level + 0.012 for length, level in BREAKING.items()}
        add_run(results, f"t{number}", levels, spread=0.03)
    table = only(results, baseline="rope")
    for length in table.lengths:
        cells = [line.records[length] for line in table.lines if length in line.records]
        compared = [cell.baseline for cell in cells if cell.baseline and cell.baseline.interval]
        intervals = [difference.interval for difference in compared if difference.interval]
        assert [difference.verdict for difference in compared] == corrected_comparisons(intervals)
        assert len(intervals) >= 3 and compared[0].verdict in ("better", "worse")
    with pytest.raises(UserError, match="did you mean 'rope'"):
        build_tables(results, selection=Selection(baseline="rop"))


def test_by_model_checkpoints_of_one_text_and_one_tokenizer_are_lines_of_one_table(tmp_path: Path) -> None:
    for name in ("base", "long"):
        names = {"model": f"hf:{name}", "tokenizer": name, "setting": name, "steps": 0}
        add_run(tmp_path, "rope", BREAKING, **names)
    add_run(
        tmp_path, "rope", BREAKING, model="hf:other", setting="other", data_hash="0ther123456789", steps=0
    )
    assert len(build_tables(tmp_path)) == 3
    alone, together = build_tables(tmp_path, selection=Selection(by=("model",)))
    assert labels(together) == ["rope of base (0.82M)", "rope of long (0.82M)"]
    assert together.title[:3] == ["checkpoints", "stdlib", "its tokenizer"]
    assert labels(alone) == ["rope of other (0.82M)"]
