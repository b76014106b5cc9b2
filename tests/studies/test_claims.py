"""Claims of a paper against made scores: each kind holds, is contradicted or stays unclear."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.results import ROW, add_run

from pe_bench.runs.rows import read_rows, write_rows
from pe_bench.runs.scores import Scores, save_scores, score_file
from pe_bench.studies.claims import Judged, Measurements, judge_claim
from pe_bench.studies.study import Claim, Step

LEVELS = {
    "flat": {128: 2.0, 256: 2.0, 512: 2.0},
    "failing": {128: 1.8, 256: 2.5, 512: 3.5},
    "late": {128: 1.9, 256: 1.9, 512: 2.9},
    "falling": {128: 2.1, 256: 2.0, 512: 1.9},
    "dip": {128: 2.0, 192: 2.5, 256: 2.0},
}
WIDE = (1.8, 2.3, 2.2)  # of three seeds at 192


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    """Three seeds of made encodings."""
    folder = tmp_path_factory.mktemp("made")
    runs = [
        add_run(folder, name, levels, seed=seed, spread=0.001)
        for seed in range(3)
        for name, levels in [*LEVELS.items(), ("wide", {128: 2.0, 192: WIDE[seed], 256: 2.0})]
    ]
    return measurements(folder, runs)


def measurements(results: Path, runs: list[Path], **sweeps: list[Path]) -> Measurements:
    """Return what the study measured in these runs, were all of their rows its own."""
    return Measurements(results, [step(of_sweep, sweep) for sweep, of_sweep in ({"": runs} | sweeps).items()])


def step(runs: list[Path], sweep: str = "", **values: object) -> Step:
    """Return a step that asked for all rows of these runs, or for those with these values."""
    rows = [row for run in runs for row in read_rows(run / "eval.csv")]
    keys = [row.key for row in rows if all(getattr(row, name) == value for name, value in values.items())]
    return Step(sweep, tuple(run.name for run in runs), tuple(keys))


def judged(scores: Measurements, kind: str, of: str, at: float = 2, **more: str) -> Judged:
    return judge_claim(Claim(kind, of, "a test", at, **more), scores)  # type: ignore[arg-type]


def test_each_kind_of_claim_is_judged_by_its_interval(scores: Measurements) -> None:
    for kind, of, more, outcome in (
        ("order", "flat", {"than": "failing"}, "holds"),
        ("order", "failing", {"than": "flat"}, "contradicted"),
        ("order", "falling", {"than": "flat"}, "unclear"),
        ("order", "falling", {"than": "flat", "measure": "change"}, "holds"),
        ("order", "flat", {"than": "falling", "measure": "change"}, "contradicted"),
        ("falls", "falling", {}, "holds"),
        ("falls", "failing", {}, "contradicted"),
        ("falls", "flat", {}, "unclear"),
        ("rises", "failing", {}, "holds"),
        ("rises", "falling", {}, "contradicted"),
        ("holds", "flat", {}, "holds"),
        ("holds", "falling", {}, "holds"),
        ("holds", "failing", {}, "contradicted"),
        ("breaks", "failing", {}, "holds"),
        ("breaks", "flat", {}, "contradicted"),
        ("breaks_first", "failing", {"than": "flat"}, "holds"),
        ("breaks_first", "failing", {"than": "late"}, "holds"),
        ("breaks_first", "late", {"than": "failing"}, "contradicted"),
        ("breaks_first", "flat", {"than": "falling"}, "unclear"),
    ):
        assert judged(scores, kind, of, **more).outcome == outcome, (kind, of, more)
    for kind in ("falls", "rises", "holds", "breaks"):
        assert judged(scores, kind, "wide", 1.5).outcome == "unclear"


def test_a_claim_shows_the_length_that_decides_it(scores: Measurements) -> None:
    for of, outcome, mean in (("dip", "contradicted", 0.5), ("wide", "unclear", 0.1)):
        claim = judged(scores, "holds", of)
        assert (claim.outcome, claim.length, claim.decided_at) == (outcome, 256, 192)
        assert claim.measured.mean == pytest.approx(mean, abs=1e-3)
    decided = judged(scores, "breaks_first", "failing", 1, than="late")
    assert decided.decided_at == 256 and decided.measured.mean == pytest.approx(0.7, abs=1e-3)
    for of, than in (("flat", "falling"), ("failing", "failing")):
        assert "no length where one" in judged(scores, "breaks_first", of, 1, than=than).measured.missing


def test_a_claim_whose_scores_are_missing_is_unclear_and_says_so(scores: Measurements) -> None:
    for kind, more in (("holds", {}), ("order", {"than": "absent"}), ("early_tokens", {})):
        claim = judged(scores, kind, "flat", 16, **more)
        assert (claim.outcome, claim.measured.interval, claim.evidence) == ("unclear", None, "not scored")


def test_early_tokens_are_nonoverlapping_windows_less_sliding_ones(tmp_path: Path) -> None:
    context = {"target_hash": "7e87", "context_mean": 60.0}
    run = add_run(tmp_path, "rope", {256: 2.2}, protocol="nonoverlapping", spread=0.001, **context)
    add_run(tmp_path, "rope", {256: 2.0}, sliding="half", spread=0.001, **context)
    claim = judged(measurements(tmp_path, [run]), "early_tokens", "rope")
    assert claim.outcome == "holds" and claim.measured.mean == pytest.approx(0.2, abs=1e-3)


def test_the_window_control_says_whether_text_beyond_it_is_read(tmp_path: Path) -> None:
    for window, reads, stays in (
        (2.4, "holds", "contradicted"),
        (2.0, "contradicted", "holds"),
        (1.5, "contradicted", "holds"),
    ):
        run = add_run(tmp_path / str(window), "rope", {128: 2.1, 256: 2.0}, spread=0.001)
        add_run(tmp_path / str(window), "rope", {256: window}, control="window", spread=0.001)
        scores = measurements(tmp_path / str(window), [run])
        assert judged(scores, "reads_past_window", "rope").outcome == reads
        assert judged(scores, "stays_in_window", "rope").outcome == stays


def test_sweeps_with_the_same_encoding_are_compared_by_their_names(tmp_path: Path) -> None:
    short = add_run(tmp_path, "rope", {128: 2.5, 256: 2.6}, setting="5e7a", spread=0.001)
    long = add_run(tmp_path, "rope", {128: 2.0, 256: 2.5}, setting="5e7b", spread=0.001)
    scores = measurements(tmp_path, [], short=[short], long=[long])
    for measure, outcome in (("level", "contradicted"), ("change", "holds")):
        claim = judged(scores, "order", "rope", sweep="short", than_sweep="long", measure=measure)
        assert claim.outcome == outcome


@pytest.mark.parametrize(
    ("column", "value"), [("target_hash", "0ther"), ("score_dtype", "bfloat16"), ("control", "swap")]
)
def test_scores_that_the_study_did_not_ask_for_have_no_part(tmp_path: Path, column: str, value: str) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0, 256: 2.0}, spread=0.001)
    add_run(tmp_path, "rope", {128: 2.0, 256: 9.0}, spread=0.001, **{column: value})
    scores = Measurements(tmp_path, [step([run], **{column: getattr(ROW, column)})])
    assert judged(scores, "holds", "rope").outcome == "holds"
    assert (len(read_rows(run / "eval.csv")), len(scores.rows[""])) == (4, 2)


def test_the_version_of_a_persons_own_encoding_need_not_be_named(tmp_path: Path) -> None:
    scores = measurements(tmp_path, [add_run(tmp_path, "mine@1a2b", {128: 2.0, 256: 2.0}, spread=0.001)])
    assert judged(scores, "holds", "mine").outcome == judged(scores, "holds", "mine@1a2b").outcome == "holds"
    assert judged(scores, "holds", "mine@3c4d").evidence == "not scored"


@pytest.mark.parametrize(
    ("reason", "said"),
    [("trigram", "worse than a trigram"), ("frequencies", "no better than token frequencies")],
)
def test_no_claim_is_judged_by_a_model_that_has_not_learned(
    scores: Measurements, monkeypatch: pytest.MonkeyPatch, reason: str, said: str
) -> None:
    monkeypatch.setattr(scores, "unlearned", lambda series: reason if series.label == "flat" else "")
    for kind, more in (("holds", {}), ("order", {"than": "late"}), ("breaks_first", {"than": "late"})):
        for at in (1, 2):
            claim = judged(scores, kind, "flat", at, **more)
            assert (claim.outcome, claim.measured.interval) == ("unclear", None)
            assert claim.evidence.startswith("flat has not learned") and said in claim.evidence
    assert judged(scores, "order", "failing", than="flat").outcome == "unclear"
    assert judged(scores, "order", "late", than="failing").outcome == "holds"


# Tasks


def add_answers(results: Path, shares: dict[str, dict[int, float]]) -> Measurements:
    """Write three seeds whose first examples are right, such a share of 100 at each length."""
    runs = [
        add_run(results, name, dict.fromkeys(levels, 1.0), seed=seed, protocol="task", documents=100)
        for name, levels in shares.items()
        for seed in range(3)
    ]
    for run in runs:
        rows = []
        for row in read_rows(run / "eval.csv"):
            right = (np.arange(100) < 100 * shares[row.encoding][row.length]).astype(np.float32)
            ones = np.ones(100, np.int64)
            save_scores(
                score_file(run, row), Scores(np.ones(100, np.float32), np.arange(100), ones, correct=right)
            )
            share = float(right.mean())
            rows.append(replace(row, bits_per_byte=None, exact=share, accuracy=share, chance=0.1))
        write_rows(run / "eval.csv", rows)
    return measurements(results, runs)


def test_a_task_is_solved_or_missed_by_the_share_of_right_examples(tmp_path: Path) -> None:
    shares = {"rope": {128: 1.0, 256: 0.2}, "nope": {128: 1.0, 256: 0.99}, "new": {128: 0.5, 256: 0.4}}
    task = add_answers(tmp_path, shares)
    for kind, of, at, outcome in (
        ("solves", "nope", 2, "holds"),
        ("misses", "nope", 2, "contradicted"),
        ("solves", "rope", 2, "contradicted"),
        ("misses", "rope", 2, "holds"),
        ("misses", "new", 1, "holds"),
        ("misses", "new", 2, "unclear"),  # it has not learned the task at the training length
        ("solves", "absent", 2, "unclear"),
        ("order", "nope", 2, "holds"),
    ):
        claim = judged(task, kind, of, at, protocol="task", than="rope" if kind == "order" else "")
        assert claim.outcome == outcome, (kind, of, at)


def test_a_task_that_nobody_solves_says_nothing_of_who_solves_it(tmp_path: Path) -> None:
    task = add_answers(tmp_path, {"rope": {128: 0.5}, "nope": {128: 0.2}})
    for kind in ("misses", "solves"):
        claim = judged(task, kind, "rope", 1, protocol="task")
        assert claim.outcome == "unclear" and "the training may be too short" in claim.evidence
