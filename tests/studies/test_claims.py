"""Claims of a paper against made scores: each kind holds, is contradicted or stays unclear."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.results import ROW, add_run

from pe_bench.runs.rows import read_rows, write_rows
from pe_bench.runs.scores import Scores, save_scores, score_file
from pe_bench.studies.claims import Judged, Measurements, agreement, judge_claim
from pe_bench.studies.study import Claim, Ranking, Step

LEVELS = {
    "flat": {128: 2.0, 256: 2.0, 512: 2.0},
    "failing": {128: 1.8, 256: 2.5, 512: 3.5},
    "late": {128: 1.9, 256: 1.9, 512: 2.9},
    "falling": {128: 2.1, 256: 2.0, 512: 1.9},
}


@pytest.fixture
def found(tmp_path: Path) -> Measurements:
    """Three seeds of four made encodings."""
    runs = [
        add_run(tmp_path, name, levels, seed=seed, spread=0.001)
        for name, levels in LEVELS.items()
        for seed in range(3)
    ]
    return measurements(tmp_path, runs)


def measurements(results: Path, runs: list[Path], **sweeps: list[Path]) -> Measurements:
    """Return what the study measured in these runs, were all of their rows its own."""
    return Measurements(results, [step(own, sweep) for sweep, own in ({"": runs} | sweeps).items()])


def step(runs: list[Path], sweep: str = "", **wanted: object) -> Step:
    """Return a step that asked for all rows of these runs, or for those with the values `wanted`."""
    rows = [row for run in runs for row in read_rows(run / "eval.csv")]
    keys = [row.key for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
    return Step(sweep, tuple(run.name for run in runs), tuple(keys))


def judged(found: Measurements, kind: str, of: str, at: float = 2, **others: str) -> Judged:
    return judge_claim(Claim(kind, of, "a test", at, **others), found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "of", "others", "outcome"),
    [
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
    ],
)
def test_each_kind_of_claim_is_judged_by_its_interval(
    found: Measurements, kind: str, of: str, others: dict[str, str], outcome: str
) -> None:
    assert judged(found, kind, of, **others).outcome == outcome


def test_a_claim_to_hold_shows_the_length_that_decides_it(tmp_path: Path) -> None:
    runs = [
        add_run(tmp_path, "dip", {128: 2.0, 192: 2.5, 256: 2.0}, seed=seed, spread=0.001) for seed in range(3)
    ]
    wide = [
        add_run(tmp_path, "wide", {128: 2.0, 192: level, 256: 2.0}, seed=seed, spread=0.001)
        for seed, level in enumerate((1.8, 2.3, 2.2))
    ]
    found = measurements(tmp_path, [*runs, *wide])
    for of, outcome, mean in (("dip", "contradicted", 0.5), ("wide", "unclear", 0.1)):
        claim = judged(found, "holds", of)
        assert (claim.outcome, claim.length, claim.decided_at) == (outcome, 256, 192)
        assert claim.interval is not None and claim.interval.mean == pytest.approx(mean, abs=1e-3)


def test_which_breaks_first_is_decided_where_one_breaks_and_the_other_holds(found: Measurements) -> None:
    decided = judged(found, "breaks_first", "failing", 1, than="late")
    assert decided.decided_at == 256 and decided.interval is not None
    assert decided.interval.mean == pytest.approx(0.7, abs=1e-3)
    for of, than in (("flat", "falling"), ("failing", "failing")):
        assert "no length where one surely breaks" in judged(found, "breaks_first", of, 1, than=than).missing


def test_a_wide_interval_leaves_a_claim_unclear(tmp_path: Path) -> None:
    runs = [
        add_run(tmp_path, "wide", {128: 2.0, 256: level}, seed=seed)
        for seed, level in enumerate((1.8, 2.3, 2.2))
    ]
    found = measurements(tmp_path, runs)
    for kind in ("falls", "rises", "holds", "breaks"):
        assert judged(found, kind, "wide").outcome == "unclear"


def test_a_claim_whose_scores_are_missing_is_unclear_and_says_so(found: Measurements) -> None:
    for kind, others in (("holds", {}), ("order", {"than": "absent"}), ("early_tokens", {})):
        claim = judged(found, kind, "flat", 16, **others)
        assert (claim.outcome, claim.interval, claim.missing) == ("unclear", None, "not scored")


def test_early_tokens_are_nonoverlapping_windows_less_sliding_ones(tmp_path: Path) -> None:
    context = {"target_hash": "7e87", "context_mean": 60.0}
    runs = [
        add_run(tmp_path, "rope", {256: 2.2}, protocol="nonoverlapping", spread=0.001, **context),
        add_run(tmp_path, "rope", {256: 2.0}, sliding="half", spread=0.001, **context),
    ]
    found = measurements(tmp_path, [runs[0]])
    claim = judged(found, "early_tokens", "rope")
    assert claim.outcome == "holds" and claim.interval is not None
    assert claim.interval.mean == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize(
    ("window", "reads", "stays"),
    [(2.4, "holds", "contradicted"), (2.0, "contradicted", "holds"), (1.5, "contradicted", "holds")],
)
def test_the_window_control_says_whether_text_beyond_it_is_read(
    tmp_path: Path, window: float, reads: str, stays: str
) -> None:
    run = add_run(tmp_path, "rope", {128: 2.1, 256: 2.0}, spread=0.001)
    add_run(tmp_path, "rope", {256: window}, control="window", spread=0.001)
    found = measurements(tmp_path, [run])
    assert judged(found, "reads_past_window", "rope").outcome == reads
    assert judged(found, "stays_in_window", "rope").outcome == stays


def test_sweeps_with_the_same_encoding_are_compared_by_their_names(tmp_path: Path) -> None:
    short = add_run(tmp_path, "rope", {128: 2.5, 256: 2.6}, setting="5e7a", spread=0.001)
    long = add_run(tmp_path, "rope", {128: 2.0, 256: 2.5}, setting="5e7b", spread=0.001)
    found = measurements(tmp_path, [], short=[short], long=[long])
    for measure, outcome in (("level", "contradicted"), ("change", "holds")):
        claim = judged(found, "order", "rope", sweep="short", than_sweep="long", measure=measure)
        assert claim.outcome == outcome


@pytest.mark.parametrize(
    ("column", "value"), [("target_hash", "0ther"), ("score_dtype", "bfloat16"), ("control", "swap")]
)
def test_scores_that_the_study_did_not_ask_for_have_no_part(tmp_path: Path, column: str, value: str) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0, 256: 2.0}, spread=0.001)
    add_run(tmp_path, "rope", {128: 2.0, 256: 9.0}, spread=0.001, **{column: value})
    assert len(read_rows(run / "eval.csv")) == 4
    own = step([run], **{column: getattr(ROW, column)})
    found = Measurements(tmp_path, [own])
    claim = judged(found, "holds", "rope")
    assert claim.outcome == "holds" and claim.interval is not None and claim.interval.seeds == 1
    assert len(found.rows[""]) == 2


def test_the_version_of_a_persons_own_encoding_need_not_be_named(tmp_path: Path) -> None:
    found = measurements(tmp_path, [add_run(tmp_path, "mine@1a2b", {128: 2.0, 256: 2.0}, spread=0.001)])
    assert judged(found, "holds", "mine").outcome == judged(found, "holds", "mine@1a2b").outcome == "holds"
    assert judged(found, "holds", "mine@3c4d").missing == "not scored"


def test_a_length_that_another_study_scored_changes_no_answer(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0, 192: 3.0, 256: 2.0}, spread=0.001)
    assert judged(measurements(tmp_path, [run]), "holds", "rope").outcome == "contradicted"
    keys = [row.key for row in read_rows(run / "eval.csv") if row.length != 192]
    found = Measurements(tmp_path, [Step("", (run.name,), tuple(keys))])
    assert judged(found, "holds", "rope").outcome == "holds"


# Tasks


def add_answers(results: Path, encoding: str, shares: dict[int, float], seed: int = 0) -> Path:
    """Write a run whose first examples are right, so many of 100 at each length, each with one answer."""
    run = add_run(results, encoding, dict.fromkeys(shares, 1.0), seed=seed, protocol="task", documents=100)
    rows = []
    for row in read_rows(run / "eval.csv"):
        right = (np.arange(100) < 100 * shares[row.length]).astype(np.float32)
        ones = np.ones(100, np.int64)
        scores = Scores(np.ones(100, np.float32), np.arange(100), ones, correct=right)
        save_scores(score_file(run, row), scores)
        share = float(right.mean())
        rows.append(replace(row, bits_per_byte=None, exact=share, accuracy=share, chance=0.1))
    write_rows(run / "eval.csv", rows)
    return run


@pytest.fixture
def task(tmp_path: Path) -> Measurements:
    shares = {"rope": {128: 1.0, 256: 0.2}, "nope": {128: 1.0, 256: 0.99}, "new": {128: 0.5, 256: 0.4}}
    runs = [add_answers(tmp_path, name, own, seed) for name, own in shares.items() for seed in range(3)]
    return measurements(tmp_path, runs)


@pytest.mark.parametrize(
    ("kind", "of", "at", "outcome"),
    [
        ("solves", "nope", 2, "holds"),
        ("misses", "nope", 2, "contradicted"),
        ("solves", "rope", 2, "contradicted"),
        ("misses", "rope", 2, "holds"),
        ("misses", "new", 1, "holds"),
        ("misses", "new", 2, "unclear"),  # it has not learned the task at the training length
        ("solves", "absent", 2, "unclear"),
    ],
)
def test_a_task_is_solved_or_missed_by_the_share_of_right_examples(
    task: Measurements, kind: str, of: str, at: float, outcome: str
) -> None:
    assert judged(task, kind, of, at, protocol="task").outcome == outcome


@pytest.mark.parametrize(
    ("reason", "said"),
    [("trigram", "worse than a trigram"), ("frequencies", "no better than token frequencies")],
)
def test_no_claim_is_judged_by_a_model_that_has_not_learned(
    found: Measurements, monkeypatch: pytest.MonkeyPatch, reason: str, said: str
) -> None:
    monkeypatch.setattr(found, "unlearned", lambda series: reason if series.label == "flat" else "")
    for kind, others in (("holds", {}), ("order", {"than": "late"}), ("breaks_first", {"than": "late"})):
        for at in (1, 2):
            claim = judged(found, kind, "flat", at, **others)
            assert (claim.outcome, claim.interval) == ("unclear", None)
            assert claim.missing.startswith("flat has not learned") and said in claim.missing
    assert judged(found, "order", "failing", than="flat").outcome == "unclear"
    assert judged(found, "order", "late", than="failing").outcome == "holds"


def test_a_task_that_nobody_solves_says_nothing_of_who_solves_it(tmp_path: Path) -> None:
    shares = {"rope": 0.5, "nope": 0.2}
    runs = [
        add_answers(tmp_path, name, {128: share}, seed)
        for name, share in shares.items()
        for seed in (0, 1, 2)
    ]
    for kind in ("misses", "solves"):
        claim = judged(measurements(tmp_path, runs), kind, "rope", 1, protocol="task")
        assert claim.outcome == "unclear" and claim.interval is not None
        assert "the training may be too short" in claim.missing


# Kendall's tau


def ranking(*names: str, at: float = 2) -> Ranking:
    return Ranking(at, {name: float(place) for place, name in enumerate(names)}, "a test", "change")


@pytest.fixture
def ordered(tmp_path: Path) -> Measurements:
    """Two seeds that lose most from a to d, and a third with the reverse."""
    levels = {"a": (2.1, 2.1, 2.4), "b": (2.2, 2.2, 2.3), "c": (2.3, 2.3, 2.2), "d": (2.4, 2.4, 2.1)}
    runs = [
        add_run(tmp_path, name, {128: 2.0, 256: level, 512: own[0]}, seed=seed)
        for name, own in levels.items()
        for seed, level in enumerate(own)
    ]
    return measurements(tmp_path, runs)


@pytest.mark.parametrize(("names", "tau"), [("abcd", 1.0), ("dcba", -1.0), ("abdc", 2 / 3)])
def test_tau_is_1_in_the_papers_order_and_minus_1_in_the_reverse(
    ordered: Measurements, names: str, tau: float
) -> None:
    agreed = agreement(ranking(*names, at=4), ordered)
    assert agreed is not None and agreed.seeds == 3
    assert agreed.tau == pytest.approx(tau)
    assert agreed.bounds == (pytest.approx(tau), pytest.approx(tau))


def test_tau_is_the_mean_over_seeds_with_an_interval_within_minus_1_and_1(ordered: Measurements) -> None:
    agreed = agreement(ranking("a", "b", "c", "d"), ordered)
    assert agreed is not None
    assert agreed.tau == pytest.approx(1 / 3)  # 1, 1 and -1
    assert agreed.bounds == (-1.0, 1.0)


def test_what_has_not_learned_is_not_ranked(ordered: Measurements, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agreement(ranking("a", "b", "c", "d"), ordered) is not None
    monkeypatch.setattr(ordered, "unlearned", lambda series: "trigram" if series.label == "a" else "")
    assert agreement(ranking("a", "b", "c", "d"), ordered) is None


def test_three_encodings_have_no_tau(found: Measurements) -> None:
    assert agreement(ranking("flat", "late", "failing", "absent"), found) is None
    assert agreement(ranking("flat", "late", "failing", "falling"), found) is not None
