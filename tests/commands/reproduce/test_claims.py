"""Claims of a paper against made scores, and what `reproduce` says of them and of a study's levels."""

import math
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.results import ROW, add_run, add_task_run

from pe_bench.commands.reproduce import claims
from pe_bench.commands.reproduce.claims import UNLEARNED_REASONS, Judged, Measurements, Outcome, judge_claim
from pe_bench.commands.reproduce.outcomes import (
    LevelRow,
    StudyOutcomes,
    compare,
    levels_of,
    read_table,
    render,
    write_levels,
)
from pe_bench.commands.reproduce.papers import CLAIM_KINDS, Claim
from pe_bench.commands.reproduce.study import FinishedStep, Study, Sweep
from pe_bench.report.lines import make_record
from pe_bench.report.records import Number, Record
from pe_bench.report.statistics import Interval
from pe_bench.runs.rows import read_rows

LEVELS = {
    "flat": {128: 2.0, 256: 2.0, 512: 2.0},
    "near": {128: 2.015, 256: 2.015, 512: 2.04},
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
    keys = {run: [row.key for row in read_rows(run / "eval.csv")] for run in chain(runs, *sweeps.values())}
    parts = ({"": runs} | sweeps).items()
    steps = []
    for sweep, sweep_runs in parts:
        names = tuple(run.name for run in sweep_runs)
        steps.append(FinishedStep(sweep, names, {key for run in sweep_runs for key in keys[run]}))
    return Measurements(results, steps, 128)


def judged(scores: Measurements, kind: str, of: str, at: float = 2, **more: str) -> Judged:
    return judge_claim(Claim(kind, "a test", of, at, **more), scores)  # type: ignore[arg-type]


OUTCOMES = {
    "order": {"flat failing": "holds", "failing flat": "contradicted", "falling flat": "unclear"},
    "loses_less": {"falling flat": "holds", "flat falling": "contradicted", "flat absent": "unclear"},
    "alike": {"flat near": "holds", "flat late": "contradicted", "late flat": "contradicted"},
    "falls": {"falling": "holds", "failing": "contradicted", "flat": "unclear"},
    "rises": {"failing": "holds", "falling": "contradicted", "flat": "unclear"},
    "holds": {"flat": "holds", "failing": "contradicted"},
    "breaks": {"failing": "holds", "flat": "contradicted"},
    "breaks_first": {"failing late": "holds", "late failing": "contradicted", "flat falling": "unclear"},
}


@pytest.mark.parametrize("kind", OUTCOMES)
def test_each_kind_of_claim_is_judged_by_its_interval(scores: Measurements, kind: str) -> None:
    for pair, outcome in OUTCOMES[kind].items():
        of, _, than = pair.partition(" ")
        assert judged(scores, kind, of, than=than).outcome == outcome, pair
        missing = judged(scores, kind, of, 16, than=than)
        assert (missing.outcome, missing.measured.interval) == ("unclear", None) or kind == "breaks_first"
    if kind in ("falls", "rises", "holds", "breaks"):
        assert judged(scores, kind, "wide", 1.5).outcome == "unclear"


def test_a_change_is_held_against_bounds_and_may_begin_at_another_length(scores: Measurements) -> None:
    for low, high, outcome in (
        (0.6, 0.8, "holds"),
        (0.6, None, "holds"),
        (None, 0.6, "contradicted"),
        (0.7, 0.9, "unclear"),
        (None, None, "holds"),
    ):
        claim = Claim("changes_by", "a test", "failing", 2, low=low, high=high)
        assert judge_claim(claim, scores).outcome == outcome, (low, high)
    later = judge_claim(Claim("changes_by", "a test", "failing", 4, since=2, low=0.9, high=1.1), scores)
    assert (later.outcome, str(later)) == ("holds", "failing changes by 0.9 to 1.1 from 256 to 512")


def test_a_claim_shows_the_length_that_decides_it(scores: Measurements) -> None:
    for of, outcome, mean in (("dip", "contradicted", 0.5), ("wide", "unclear", 0.1)):
        claim = judged(scores, "holds", of)
        assert (claim.outcome, claim.length, claim.decided_at) == (outcome, 256, 192)
        assert claim.measured.mean == pytest.approx(mean, abs=1e-3)
    decided = judged(scores, "breaks_first", "failing", 1, than="late")
    assert decided.decided_at == 256 and decided.measured.mean == pytest.approx(0.7, abs=1e-3)
    undecided = judged(scores, "breaks_first", "flat", 1, than="falling")
    assert "no length where one" in undecided.measured.missing


def test_all_claims_about_a_series_share_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0, 256: 2.0, 512: 2.0}, spread=0.001)
    scores = measurements(tmp_path, [run])
    made: list[Record] = []

    def make_and_count(*arguments: Any, **options: Any) -> Record:
        made.append(make_record(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(claims, "make_record", make_and_count)
    for at in (2, 4):
        assert judged(scores, "holds", "rope", at).outcome == "holds"
    assert [record.length for record in made] == [128, 256, 512]


def test_windows_of_other_kinds_are_compared_with_the_plain_ones(tmp_path: Path) -> None:
    context = {"target_hash": "7e87", "context_mean": 60.0}
    run = add_run(tmp_path, "rope", {256: 2.2}, protocol="nonoverlapping", spread=0.001, **context)
    add_run(tmp_path, "rope", {256: 2.0}, sliding="half", spread=0.001, **context)
    claim = judged(measurements(tmp_path, [run]), "early_tokens", "rope")
    assert claim.outcome == "holds" and claim.measured.mean == pytest.approx(0.2, abs=1e-3)
    for window, reads, stays in ((2.4, "holds", "contradicted"), (1.5, "contradicted", "holds")):
        run = add_run(tmp_path / str(window), "rope", {128: 2.1, 256: 2.0}, spread=0.001)
        add_run(tmp_path / str(window), "rope", {256: window}, control="window", spread=0.001)
        scores = measurements(tmp_path / str(window), [run])
        assert judged(scores, "reads_past_window", "rope").outcome == reads
        assert judged(scores, "stays_in_window", "rope").outcome == stays


def test_sweeps_are_compared_by_their_names_and_by_what_their_runs_were_trained_with(tmp_path: Path) -> None:
    first = add_run(tmp_path, "rope", {128: 2.5, 256: 2.6}, setting="5e7a", spread=0.001)
    add_run(tmp_path, "rope", {256: 2.0}, setting="5e7a", spread=0.001, scored_with="yarn factor=2.0")
    label = "rope, then yarn x2 at 256 (128k)"
    tuned = add_run(tmp_path, label, {128: 2.0, 256: 2.5}, setting="5e7b", spread=0.001)
    scores = measurements(tmp_path, [], first=[first], tuned=[tuned])
    for of in ("", "rope"):
        for kind, outcome in (("order", "contradicted"), ("loses_less", "holds")):
            more = {"sweep": "first", "than": label if of else "", "than_sweep": "tuned"}
            assert judged(scores, kind, of, **more).outcome == outcome
    scaled = judged(scores, "order", "", sweep="tuned", than="rope -> yarn factor=2.0", than_sweep="first")
    assert scaled.outcome == "contradicted"
    assert str(scaled) == "tuned is better than rope -> yarn factor=2.0 (first) at 256"


def test_changes_are_compared_on_the_same_targets_alone(tmp_path: Path) -> None:
    other = {"target_hash": "0ther", "spread": 0.001}
    short = add_run(tmp_path, "rope", {128: 2.0, 256: 2.5}, spread=0.001)
    long = add_run(tmp_path, "nope", {128: 2.0, 256: 2.1}, documents=5, targets=80, **other)
    claim = {"sweep": "long", "than": "rope", "than_sweep": "short"}
    apart = measurements(tmp_path, [], short=[short], long=[long])
    for kind in ("order", "loses_less"):
        assert judged(apart, kind, "nope", **claim).measured.missing == "not scored"
    add_run(tmp_path, "rope", {128: 2.0, 256: 2.3}, documents=5, targets=80, **other)
    both = measurements(tmp_path, [], short=[short], long=[long])
    found = judged(both, "loses_less", "nope", **claim)
    assert found.outcome == "holds" and found.measured.mean == pytest.approx(-0.2, abs=1e-3)


def test_scores_that_the_study_did_not_ask_for_have_no_part(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0, 256: 2.0}, spread=0.001)
    for change in ({"target_hash": "0ther"}, {"score_dtype": "bfloat16"}, {"control": "swap"}):
        add_run(tmp_path, "rope", {128: 2.0, 256: 9.0}, spread=0.001, **change)
    rows = [row for row in read_rows(run / "eval.csv") if row.bits_per_byte != 9.0][:2]
    scores = Measurements(tmp_path, [FinishedStep("", (run.name,), {row.key for row in rows})], 128)
    assert judged(scores, "holds", "rope").outcome == "holds" and len(scores.rows[""]) == 2


def test_no_claim_is_judged_by_a_model_that_has_not_learned(
    scores: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scores, "unlearned", lambda series: UNLEARNED_REASONS["trigram"] if series.label == "flat" else ""
    )
    for kind, of, than in (("holds", "flat", ""), ("order", "flat", "late"), ("order", "failing", "flat")):
        claim = judged(scores, kind, of, than=than)
        assert (claim.outcome, claim.measured.interval) == ("unclear", None)
        assert claim.evidence.startswith("flat has not learned") and "worse than a trigram" in claim.evidence
    assert judged(scores, "order", "late", than="failing").outcome == "holds"
    # The level of a later stage is what it left of a model that had learned.
    monkeypatch.setattr(scores, "is_later_stage", lambda series: True)
    assert judged(scores, "order", "flat", than="late").outcome == "contradicted"
    assert judged(scores, "holds", "flat").outcome == "unclear"


def test_a_task_is_solved_or_missed_by_the_share_of_right_examples(tmp_path: Path) -> None:
    shares = {"rope": {128: 1.0, 256: 0.2}, "nope": {128: 1.0, 256: 0.99}, "new": {128: 0.5, 256: 0.4}}
    task, unsolved = add_answers(tmp_path / "1", shares), add_answers(tmp_path / "2", {"rope": {128: 0.5}})
    for scores, kind, of, at, outcome in (
        (task, "solves", "nope", 2, "holds"),
        (task, "solves", "rope", 2, "contradicted"),
        (task, "misses", "rope", 2, "holds"),
        (task, "misses", "new", 1, "holds"),
        (task, "misses", "new", 2, "unclear"),  # it has not learned the task at the training length
        (task, "solves", "absent", 2, "unclear"),
        (task, "order", "nope", 2, "holds"),
        (unsolved, "misses", "rope", 1, "unclear"),
        (unsolved, "solves", "rope", 1, "unclear"),
    ):
        claim = judged(scores, kind, of, at, protocol="task", than="rope" if kind == "order" else "")
        assert claim.outcome == outcome, (kind, of, at)
        assert ("the training may be too short" in claim.evidence) == (scores is unsolved)


def add_answers(results: Path, shares: dict[str, dict[int, float]]) -> Measurements:
    """Write three seeds whose first examples are right, such a share at each length."""
    runs = [
        add_task_run(results, name, levels, seed, train_length=128)
        for name, levels in shares.items()
        for seed in range(3)
    ]
    return measurements(results, runs)


# What `reproduce` says of them, and of our levels beside the study's table

STUDY = Study("A toy", "why?", "nobody", 1, (Sweep(["rope"]),), [1.0], (), name="toy", path=Path("toy.yaml"))
CHANGE = Number(0.12, Interval(0.12, 0.05, 0.2, seeds=3, documents=70), "")


def claimed(outcome: Outcome, kind: str = "holds", of: str = "rope", **more: str) -> Judged:
    claim = Claim(kind, "table 2, +0.017", of, 2, **more)  # type: ignore[arg-type]
    return Judged(claim, 256, outcome, CHANGE, 256)


def printed(*claims: Judged, study: Study = STUDY, compared: Any = ((), {})) -> list[str]:
    lines = render(StudyOutcomes(study, claims, [], *compared), 80).splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def made(*values: float, **changes: object) -> list[LevelRow]:
    """Return levels of rope at 128, 256, ...: a value for each."""
    rows = [
        replace(ROW, length=128 * number, bits_per_byte=value, **changes)  # type: ignore[arg-type]
        for number, value in enumerate(values, 1)
    ]
    return levels_of({"": rows}, "full", lambda rows: "a machine")


def test_contradicted_claims_come_first_and_each_has_its_interval_and_source_below() -> None:
    lines = printed(claimed("unclear"), claimed("holds"), replace(claimed("contradicted"), decided_at=160))
    begins = [line.split()[0] for line in lines if re.match("contradicted|holds|unclear", line)]
    assert begins == ["contradicted", "holds", "unclear"]
    assert any(line.startswith("claims: 1 contradicted, 1 holds, 1 unclear") for line in lines)
    index = lines.index("holds         rope holds up to 256")
    assert lines[index + 1].strip() == "change +0.120 [+0.050, +0.200], seeds: 3 (paper: table 2, +0.017)"
    assert any(line.strip().startswith("change at 160 +0.120") for line in lines)
    # A toy cannot judge claims: it says whether its levels agree.
    same = compare(made(1.8, 2.5), made(1.8, 2.5))
    lines = printed(claimed("unclear"), claimed("holds"), study=STUDY.quick(), compared=same)
    assert any(line.startswith("toy.csv: 2 of 2 levels agree") for line in lines)
    assert not any(line.startswith("holds") for line in lines)


def test_a_heading_has_the_training_length_with_a_separator() -> None:
    assert any(
        line.startswith("trained at 8,192 tokens") for line in printed(study=replace(STUDY, length=8192))
    )


def test_every_kind_of_claim_is_a_sentence_about_its_encoding() -> None:
    for kind in CLAIM_KINDS:
        text = str(claimed("holds", kind, than="alibi"))
        assert text.startswith("rope ") and ("256" in text or "before alibi" in text)
    assert str(claimed("holds", "falls", "", sweep="yarn 128k")) == "yarn 128k is better at 256 than at 128"


def test_levels_may_differ_by_the_tolerance() -> None:
    spread = [made(2.1)[0] | {"seed_sd": "0.1"}]  # of which three may lie between
    for ours, table, differing in (
        (made(2.0), made(2.0199), 0),
        (made(2.0), made(2.0201), 1),
        (made(2.39), spread, 0),
        (made(2.41), spread, 1),
        (made(math.inf), made(math.inf), 0),  # both broke down
        (made(2.0), made(math.inf), 1),
        (made(math.nan), made(2.0), 1),
    ):
        compared, incomparable = compare(ours, table)
        assert len(StudyOutcomes(STUDY, [], ours, compared).differing) == differing
        assert len(compared) == 1 and not incomparable
        lines = printed(compared=(compared, {}))
        assert sum(line.startswith("  differs: rope at 128") for line in lines) == differing


def test_only_what_was_made_alike_is_compared() -> None:
    for ours, table, reason in (
        (made(1.8), made(7.0, data_hash="0ther"), "other text.*da7a0123 here, 0ther in the table"),
        (made(1.8), made(7.0, target_hash="0ther"), r"other targets \(7a56e7 here, 0ther in the table"),
        (made(1.8), made(7.0, setting="0ther"), "another model or training"),
        (made(1.8), made(7.0, torch="2.14.0"), "another version of PyTorch .2.13.0 here, 2.14.0 in"),
        (made(1.8), [made(1.8)[0] | {"seeds": "2"}], "other numbers of seeds .1 here, 2 in the table"),
        (made(1.8), made(1.8, 2.5)[1:], "our runs have no score there"),
        (made(1.8, 2.5), made(1.8), ""),  # what only we scored does not count
        (made(1.8, torch="2.13.1+cpu"), made(1.8), ""),  # another patch or build
        (made(1.8), [made(9.0)[0] | {"variant": "quick"}, *made(9.0, data="files")], ""),
    ):
        compared, incomparable = compare(ours, table)
        assert [bool(re.search(reason, each)) for each in incomparable] == ([True] if reason else [])
        assert not (reason and compared)
        text = " ".join(" ".join(printed(compared=(compared, incomparable))).split())
        assert ("levels not comparable: 1, " in text) is bool(reason)


def test_a_table_keeps_levels_of_other_texts(tmp_path: Path) -> None:
    table, files = tmp_path / "toy.csv", made(1.1, data="files")
    for written in (made(1.8, 2.5), files, made(1.9)):
        write_levels(table, written)
    assert read_table(table) == [*files, *made(1.9)]
    other = made(1.2, data="files", data_hash="0ther")
    write_levels(table, other)
    assert read_table(table) == [*other, *files, *made(1.9)], "the text of another folder"
    write_levels(table, other)
    write_levels(table, made(1.3, data="files"))
    assert read_table(table) == [*other, *made(1.3, data="files"), *made(1.9)]
