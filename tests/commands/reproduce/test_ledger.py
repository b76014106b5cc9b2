"""The ledger: claims of papers as data, judged at each size and budget by what is stored."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import Command

from pe_bench.commands.explain.changes import layer_changes
from pe_bench.commands.explain.effects import Effect, Loss, Place
from pe_bench.commands.explain.explanation import Explanation, csv_text, read_csv_text
from pe_bench.commands.explain.measures import LayerMeasure
from pe_bench.commands.reproduce import papers
from pe_bench.commands.reproduce.claims import NOT_SCORED, OPPOSITE, Judged, Series, judge_claim
from pe_bench.commands.reproduce.explained import shares_of
from pe_bench.commands.reproduce.ledger import ClaimAnswer, LedgerEntry, is_tested_by, render_ledger
from pe_bench.commands.reproduce.outcomes import LevelRow
from pe_bench.commands.reproduce.papers import (
    Claim,
    LedgerClaim,
    Paper,
    check_claim,
    ledger_claims,
    read_papers,
)
from pe_bench.commands.reproduce.study import read_study, study_names
from pe_bench.commands.reproduce.tables import TableScores
from pe_bench.errors import UserError
from pe_bench.report.records import Number
from pe_bench.report.statistics import Interval

CLAIM = LedgerClaim("falls", of="alibi", at=2, source="table 1")


def level(encoding: str, length: int, mean: float, seed_sd: float = 0.001, **more: str) -> LevelRow:
    facts = {"sweep": "", "protocol": "paired", "control": "none", "seeds": "3"}
    return {
        **facts,
        "encoding": encoding,
        "length": str(length),
        "level": str(mean),
        "seed_sd": str(seed_sd),
    } | more


def answer(outcome: str, tokens: int, study: str = "one") -> ClaimAnswer:
    judged = None
    if outcome != "not run":
        judged = Judged(CLAIM, 256, outcome, Number(), 256)  # type: ignore[arg-type]
    return ClaimAnswer(study, "", "tiny", tokens, 128, judged)


def test_a_claim_that_holds_after_one_budget_and_not_after_another_changes_with_it() -> None:
    for outcomes, said in (
        (("holds", "unclear", "not run"), "holds"),
        (("contradicted", "contradicted"), "contradicted"),
        (("contradicted", "holds", "unclear"), "changes with size or budget"),
        (("unclear", "not run"), "unclear"),
        (("not run",), "not run"),
        ((), "not run"),
    ):
        answers = [answer(outcome, number) for number, outcome in enumerate(outcomes)]
        assert LedgerEntry(CLAIM, answers).outcome == said


def test_of_studies_of_one_setting_the_one_with_most_seeds_counts_even_if_it_does_not_decide() -> None:
    def seen_by(outcome: str, seeds: int) -> ClaimAnswer:
        measured = Number(0.0, Interval(0.0, -1.0, 1.0, seeds, 10))
        return ClaimAnswer("one", "", "tiny", 1, 128, Judged(CLAIM, 256, outcome, measured, 256))  # type: ignore[arg-type]

    best = max([seen_by("contradicted", 1), seen_by("unclear", 5)], key=lambda answer: answer.preference)
    assert (best.outcome, best.seeds) == ("unclear", 5)
    best = max([seen_by("unclear", 3), seen_by("holds", 3)], key=lambda answer: answer.preference)
    assert best.outcome == "holds"


def test_what_a_stored_sweep_did_not_score_was_not_run() -> None:
    unscored = Judged(CLAIM, 256, "unclear", Number(missing=NOT_SCORED), 256)
    for judged, said in ((unscored, "not run"), (replace(unscored, measured=Number()), "unclear")):
        assert ClaimAnswer("one", "", "tiny", 1, 128, judged).outcome == said


def test_a_prediction_that_no_study_tests_counts_with_the_outcome_in_its_file() -> None:
    text, evidence = "far text is read twice", "once"
    claim = LedgerClaim("measured", text=text, outcome="contradicted", evidence=evidence, rule="judgement")
    entry = LedgerEntry(claim, [])
    assert (entry.sentence, entry.outcome) == (text, "contradicted")
    paper = Paper("A 2026", "A", "x", (claim,), {"judgement": "ours"})
    printed = render_ledger({paper: [entry]}, 80)
    assert f"contradicted  {text} (prediction: judgement)\n              measured: once" in printed
    assert "predictions: 1: 0 right, 1 wrong" in printed
    with pytest.raises(UserError, match="a claim of kind measured belongs in configs/claims"):
        check_claim(Claim("measured", "x", text=text))


def test_a_claim_is_tested_by_the_sweeps_that_train_its_encodings_on_the_same_kind_of_text() -> None:
    budget, copying = read_study("budget"), read_study("copy")
    plain = budget.sweeps[0]
    for claim, sweep, is_tested in (
        (CLAIM, plain, True),
        (replace(CLAIM, of="cope"), plain, False),
        (replace(CLAIM, at=3), plain, False),
        (replace(CLAIM, protocol="sliding"), plain, False),
        (replace(CLAIM, kind="early_tokens"), plain, False),
        (replace(CLAIM, rule="judgement"), plain, False),
        (replace(CLAIM, than_sweep="1M tokens"), plain, False),
        (replace(CLAIM, kind="restores", change="cut"), plain, False),
        (CLAIM, replace(plain, overrides=["encoding.base=128"]), False),
        (CLAIM, replace(plain, task="copy"), False),
    ):
        assert is_tested_by(claim, budget, sweep, None) is is_tested, (claim, sweep)
    reading = read_study("reading")
    of_two_sweeps = replace(CLAIM, kind="order", of="nope", than="rope", at=1)
    tested = {sweep.name for sweep in reading.sweeps if is_tested_by(of_two_sweeps, reading, sweep, None)}
    assert tested == {"8M tokens"}, "sweeps of one name are one sweep"
    solved = LedgerClaim("solves", of="nope", at=2, protocol="task", source="x", study="copy", sweep="copy")
    tested = [sweep.name for sweep in copying.sweeps if is_tested_by(solved, copying, sweep, copying)]
    assert tested == ["copy"]


def test_an_interval_of_a_table_is_as_wide_as_its_seeds_allow() -> None:
    levels = [level("rope", 128, 2.0), level("rope", 256, 2.1, 0.02), level("alibi", 128, 2.0)]
    scores = TableScores(levels, 128)
    interval = scores.change(Series("rope"), 256, "paired").interval
    assert interval and interval.mean == pytest.approx(0.1)
    assert interval.high - interval.mean == pytest.approx(4.303 * 0.021 / 3**0.5, rel=1e-3)
    for claim, outcome in (
        (Claim("breaks", "x", "rope", 2), "holds"),
        (Claim("falls", "x", "rope", 2), "contradicted"),
        (Claim("order", "x", "alibi", 1, "rope"), "unclear"),
        (Claim("falls", "x", "alibi", 2), "unclear"),
    ):
        assert judge_claim(claim, scores).outcome == outcome, claim
    alone = TableScores([{**each, "seeds": "1"} for each in levels], 128)
    assert judge_claim(Claim("breaks", "x", "rope", 2), alone).outcome == "unclear"


def test_a_claim_about_a_change_is_judged_by_the_share_of_the_loss_that_it_restores() -> None:
    runs = (Path("a"), Path("b"))
    everywhere, one = Place((0, 1), is_all=True), Place((1,))
    lost = Interval(1.0, 0.9, 1.1, 2, 5)
    effects = (
        Effect("cut", "", everywhere, 256, lost, Interval(0.9, 0.8, 1.0, 2, 5)),
        Effect("cut", "", one, 256, lost, Interval(0.1, 0.0, 0.2, 2, 5)),
        Effect("cut", "", everywhere, 128, lost),
        Effect("sharpen", "", everywhere, 256, lost, Interval(0.1, 0.0, 0.2, 2, 5)),
        Effect("fitted", "", everywhere, 256, lost, Interval(0.5, 0.4, 0.6, 2, 5)),
        Effect("window", "", everywhere, 256, reason="no softmax"),
    )
    measures = (
        LayerMeasure("entropy", 0, 128, 0.5),
        LayerMeasure("entropy", 0, 256, 0.6, Interval(0.1, 0.05, 0.15, 2, 0)),
        LayerMeasure("entropy", 1, 128, reason="no softmax"),
    )
    ended = Loss(2048, reason="the table ends at position 127")
    losses = (Loss(256, lost), Loss(512, Interval(0.0, -0.1, 0.1, 2, 5)), ended)
    found = Explanation("rope", runs, 128, (256, 512), 10, 5, True, losses, effects, "why", measures)
    read = read_csv_text(csv_text(found), seeds=2)
    for effect, again in zip(effects, read.effects, strict=True):
        places = (effect.place.layers, effect.place.is_all), (again.place.layers, again.place.is_all)
        assert places[0] == places[1] and effect.reason == again.reason
        assert (effect.share is None) == (again.share is None)
        assert effect.share is None or effect.share == replace(again.share, documents=5)
    assert read.measures == [*measures]
    explained = shares_of(Series("rope", "long"), read.losses, read.effects)
    assert explained.series == Series("rope", "long")

    class Scores(TableScores):
        def restored_share(self, series: Series, change: str, length: int) -> Number:
            return explained.share(change, length)

    for change, at, outcome, evidence in (
        ("cut", 2, "holds", "share restored +0.900 [+0.800, +1.000], seeds: 2"),
        ("sharpen", 2, "contradicted", "share restored +0.100 [+0.000, +0.200], seeds: 2"),
        ("fitted", 2, "unclear", "share restored +0.500 [+0.400, +0.600], seeds: 2"),
        ("window", 2, "unclear", "no softmax"),
        ("cut", 4, "unclear", "no loss is sure at 512"),
        ("cut", 8, "unclear", NOT_SCORED),
        ("cut", 16, "unclear", "the table ends at position 127"),
        ("cutt", 2, "unclear", "unknown change of all layers 'cutt': did you mean 'cut'?"),
    ):
        claim = Claim("restores", "x", "rope", at, change=change)
        judged = judge_claim(claim, Scores([], 128))
        assert (judged.outcome, judged.evidence) == (outcome, evidence), change
        little = judge_claim(replace(claim, kind="restores_little"), Scores([], 128))
        assert little.outcome == OPPOSITE[outcome]
        said = f"rope at {128 * at:,} regains over half of its loss with '{change}' in all layers"
        assert str(judged) == said


def test_a_list_in_the_options_of_an_encoding_makes_no_later_stage_of_its_runs() -> None:
    label = "rope -> longrope long_factors=[1.0, 2.0]"
    scores = TableScores([level("rope", 128, 2.0), level(label, 256, 1.9)], 128)
    judged = judge_claim(Claim("falls", "a test", label, 2), scores)
    assert (scores.unlearned(Series(label)), judged.outcome) == ("", "holds")


def test_a_table_does_not_say_whether_a_later_stage_has_learned_and_says_it_of_a_task() -> None:
    label = "rope, then nope (128k)"
    scores = TableScores([level(label, 128, 3.4), level(label, 256, 3.6), level("rope", 128, 1.8)], 128)
    assert judge_claim(Claim("holds", "x", label, 2), scores).outcome == "unclear"
    assert judge_claim(Claim("order", "x", "rope", 1, label), scores).outcome == "holds"
    task = {"protocol": "task"}
    right = [level("rope", 32, 0.99, **task), level("rope", 64, 0.1, **task), level("nope", 32, 0.5, **task)]
    answers = TableScores([*right, level("nope", 64, 0.0, **task)], 32)
    for of, outcome in (("rope", "holds"), ("nope", "unclear")):
        assert judge_claim(Claim("misses", "x", of, 2, protocol="task"), answers).outcome == outcome


def test_each_claim_of_the_ledger_names_a_study_that_has_its_sweep() -> None:
    sweeps = {name: {sweep.name for sweep in read_study(name).sweeps} for name in study_names()}
    changes = [change.name for change in layer_changes(128) if change.in_all_layers]
    links = [paper.link for paper in read_papers()]
    assert len({*links}) >= 20
    for paper in read_papers():
        assert paper.paper and paper.title and paper.claims
        for claim in paper.claims:
            if claim.study:
                assert claim.study in sweeps, f"{paper.name} names the study {claim.study}"
                assert {claim.sweep, claim.than_sweep or claim.sweep} <= sweeps[claim.study], claim
            assert not claim.change or claim.change in changes, claim
            for study, sweep in claim.also.items():
                assert study in sweeps and sweep in sweeps[study], claim


def test_a_paper_has_each_claim_once_and_every_study_that_it_names_reports_on_it() -> None:
    for paper in read_papers():
        said = [(LedgerEntry(claim, []).sentence, claim.rule) for claim in paper.claims]
        assert len(said) == len({*said}), paper.name
    of_budget = {(claim.kind, claim.of, claim.at): claim for claim in ledger_claims("budget")}
    claim = of_budget["holds", "alibi", 16]
    assert (claim.study, claim.sweep) == ("budget", "8M tokens")
    assert claim.origin == "Press et al. 2022, table 2, -0.020 at 30 times"
    of_alibi = [claim.origin for claim in ledger_claims("alibi") if (claim.kind, claim.at) == ("holds", 16)]
    assert of_alibi == ["table 2, -0.020 at 30 times"]


def test_a_mistake_in_the_ledger_names_its_file(tmp_path: Path) -> None:
    text = "paper: A 2026\ntitle: A\nlink: x\nclaims:\n  - {kind: falls, of: rope, source: table 1}\n"
    path = tmp_path / "a.yaml"
    for before, after, said in (
        ("kind: falls", "kind: fals", "unknown kind of claim 'fals': did you mean 'falls'?"),
        ("source: table 1", "at: 2", "a claim needs a source, or a rule"),
        ("kind: falls", "kind: changes_by", "needs low or high"),
        ("kind: falls", "kind: restores", "needs change, the name of a change of explain"),
        (
            "kind: falls",
            "kind: measured, text: it falls",
            "belongs in configs/claims and needs text and outcome",
        ),
        ("kind: falls", "kind: alike", "compares 'rope' with itself: name the other with than"),
        ("title: A\n", "", "paper needs title"),
        ("title: A\n", "title: A\nname: a\n", "unknown key of paper 'name'"),
        ("kind: falls, ", "", "paper.claims[0] needs kind"),
        ("source: table", "sorce: table", "unknown key of paper.claims[0] 'sorce': did you mean 'source'?"),
    ):
        path.write_text(text.replace(before, after))
        with pytest.raises(UserError) as error:
            papers._read_paper(path)
        assert str(error.value).startswith(f"{path}: ") and said in str(error.value)


def test_the_ledger_is_printed_in_eighty_columns_and_trains_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = command("reproduce", "--claims")
    assert printed.code == 0 and max(map(len, printed.out.splitlines())) <= 80
    for said in ("https://arxiv.org/abs/2108.12409", "not run: base 100M", "claims: ", "predictions: "):
        assert said in printed.out
    assert "changes       t5 is better than alibi at 1x" in printed.out
    assert "holds         rope at 4x regains over half of its loss with 'cut' in all layers" in printed.out
    assert not Path("results").exists()
    one = command("reproduce", "--claims", "fire").out
    assert "fire holds up to 4x" in one and "alibi" not in one
    assert command("reproduce", "--claims", "FIRE").out == one
    for arguments, said in (
        (("--claims", "frie"), "did you mean 'fire'?"),
        (("--claims", "--quick"), "--claims only reads stored scores"),
        (("--claims", "threads=1"), "--claims only reads stored scores"),
        (("alibi", "--json"), "--json is for pe-bench reproduce --claims"),
    ):
        refused = command("reproduce", *arguments)
        assert refused.code == 2 and said in refused.line
