"""The controls and the lengths below training decide whether context is used, and say when they cannot."""

from pathlib import Path

import numpy as np
import pytest
from support.results import add_run
from support.tables import bits_at, only, printed

from pe_bench.report.build import run_tables
from pe_bench.report.records import ContextUse
from pe_bench.report.statistics import paired_interval
from pe_bench.runs.rows import read_rows

SENSITIVE = {32: 3.2, 64: 3.1, 128: 3.0}


def use_at(results_dir: Path, length: int = 512) -> ContextUse:
    [line] = only(results_dir).lines
    use = line.records[length].use
    assert use is not None
    return use


def add_controlled(results_dir: Path, level: float, swap: float | None, window: float | None) -> Path:
    """Add seeds of one encoding at 512, with its controls there."""
    for seed in range(3):
        run = add_run(results_dir, "rope", {**SENSITIVE, 512: level}, seed=seed, spread=0.002)
        add_run(results_dir, "rope", {512: swap}, seed=seed, spread=0.002, control="swap")
        add_run(results_dir, "rope", {512: window}, seed=seed, spread=0.002, control="window")
    return run


@pytest.mark.parametrize(
    ("level", "swap", "window", "uses", "beats"),
    [
        (2.8, 2.95, 2.9, "yes", "yes"),
        (2.8, 2.801, 2.801, "no", "no"),  # it gains, but not from what is there
        (3.2, 3.4, 3.1, "no", "no"),  # it reads what is there, and is worse for it
        (3.2, 3.2, 3.4, "no", "yes"),
        (2.8, 2.95, 2.8, "yes", "no"),
    ],
)
def test_context_is_used_where_it_gains_over_training_and_over_another_documents(
    tmp_path: Path, level: float, swap: float, window: float, uses: str, beats: str
) -> None:
    add_controlled(tmp_path, level, swap, window)
    use = use_at(tmp_path)
    assert (use.uses_context, use.beats_window, use.missing) == (uses, beats, "")
    assert use.swap_gain is not None and use.window_gain is not None
    assert use.window_gain.mean == pytest.approx(window - level, abs=1e-6)
    runs = sorted((tmp_path / "runs").iterdir())
    gains = [bits_at(run, 512, "swap") - bits_at(run, 512) for run in runs]
    assert use_at(tmp_path).swap_gain == paired_interval(np.stack(gains))


@pytest.mark.parametrize("quarter", [3.0, 2.99])
def test_a_model_that_gains_nothing_within_training_cannot_be_judged(tmp_path: Path, quarter: float) -> None:
    add_run(tmp_path, "rope", {32: quarter, 128: 3.0, 512: 2.8}, spread=0.002)
    add_run(tmp_path, "rope", {512: 2.95}, control="swap", spread=0.002)
    use = use_at(tmp_path)
    assert use.uses_context == ""
    assert use.swap_gain is not None
    text = " ".join(printed([only(tmp_path)], details=True).split())
    assert "cannot judge context use: the model does not improve from 32 to 128 tokens" in text
    assert " improves - " in text


def test_controls_of_another_encoding_do_not_count_for_the_trained_one(tmp_path: Path) -> None:
    """Other encodings that a run was scored with have separate lines and controls."""
    add_run(tmp_path, "rope", {**SENSITIVE, 512: 3.2}, spread=0.002)
    add_run(tmp_path, "rope", {128: 3.0, 512: 2.8}, spread=0.002, scored_with="yarn factor=auto")
    add_run(tmp_path, "rope", {512: 2.95}, spread=0.002, scored_with="yarn factor=auto", control="swap")
    lines = {line.label: line for line in only(tmp_path).lines}
    assert lines["rope"].records[512].use is None
    use = lines["rope -> yarn factor=auto"].records[512].use
    # The model is the same: what it gains within training is known from the run's own scores.
    assert use is not None and use.uses_context == "yes"


# Positions


def test_positions_belong_to_the_line_and_are_no_table(tmp_path: Path) -> None:
    for seed in range(2):
        add_run(tmp_path, "rope", SENSITIVE, seed=seed)
        for length in (1, 2, 4):
            changes = {"protocol": "positions", "context_mean": length - 0.5, "target_hash": "9051"}
            add_run(tmp_path, "rope", {length: 5.0 - length}, seed=seed, **changes)
    [line] = only(tmp_path).lines
    positions = [(position.context, len(position.levels)) for position in line.positions]
    assert positions == [(0.5, 2), (1.5, 2), (3.5, 2)] and set(line.records) == set(SENSITIVE)


def test_the_table_of_a_run_knows_what_it_gains_within_training_from_all_of_its_rows(tmp_path: Path) -> None:
    run = add_controlled(tmp_path, 2.8, 2.95, 2.9)
    [table] = run_tables([row for row in read_rows(run / "eval.csv") if row.length >= 128], run)
    use = table.lines[0].records[512].use
    assert use is not None and (use.uses_context, use.missing) == ("yes", "") and table.lengths == (128, 512)
