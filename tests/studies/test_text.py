"""What `reproduce` prints: contradicted claims first, with intervals and sources, in 80 columns."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from support.results import ROW

from pe_bench.report.statistics import Interval
from pe_bench.studies.claims import Judged, Outcome
from pe_bench.studies.definition import Claim, Kind, Ranking, Study, Sweep
from pe_bench.studies.outcomes import Outcomes
from pe_bench.studies.ranking import Agreement
from pe_bench.studies.table import Comparison, compare, levels_of
from pe_bench.studies.text import MAX_SHOWN, render, sentence_of
from pe_bench.studies.variant import Variant

STUDY = Study("toy", Path("toy.yaml"), "A toy", "why?", "nobody", 1, (Sweep(["rope"]),), [1.0, 2.0], ())
CHANGE = Interval(0.12, 0.05, 0.2, seeds=3, documents=70)
NOTHING = Comparison((), ())


def judged(outcome: Outcome, kind: Kind = "holds", **others: str) -> Judged:
    claim = Claim(kind, "rope", "table 2, +0.017", 2, **others)  # type: ignore[arg-type]
    return Judged(claim, 256, outcome, CHANGE, 256)


def printed(*claims: Judged, comparison: Comparison = NOTHING, tau: Agreement | None = None) -> list[str]:
    text = render(Outcomes(Variant(STUDY), claims, tau, comparison, []), 80)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_contradicted_claims_come_first_and_unclear_ones_last() -> None:
    lines = printed(judged("unclear"), judged("holds"), judged("contradicted"))
    found = [line.split()[0] for line in lines if re.match("contradicted|holds|unclear", line)]
    assert found == ["contradicted", "holds", "unclear"]
    assert any(line.startswith("3 claims: 1 contradicted, 1 holds, 1 unclear") for line in lines)


def test_a_claim_has_its_interval_and_its_source_below() -> None:
    lines = printed(judged("holds"))
    place = lines.index("holds         rope holds up to 256")
    assert lines[place + 1].strip() == "change +0.120 [+0.050, +0.200], 3 seeds (paper: table 2, +0.017)"


def test_the_length_that_decides_is_named_where_the_claim_is_about_another() -> None:
    lines = printed(replace(judged("contradicted"), decided_at=160))
    assert any(line.strip().startswith("change at 160 +0.120") for line in lines)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_claim_is_a_sentence_about_its_encoding(kind: Kind) -> None:
    text = sentence_of(judged("holds", kind, than="alibi"))
    assert text.startswith("rope ") and ("256" in text or "before alibi" in text)
    assert any(line.startswith("holds         rope") for line in printed(judged("holds", kind, than="alibi")))


def test_one_encoding_in_two_sweeps_is_told_apart() -> None:
    claim = judged("holds", "order", sweep="256k tokens", than_sweep="2M tokens", measure="change")
    assert sentence_of(claim) == (
        "rope (256k tokens) loses less than rope (2M tokens) from its training length to 256"
    )


def test_tau_has_its_interval_and_says_where_one_seed_has_none() -> None:
    ranking = Ranking(2, {}, "table 2")
    tau = Agreement(ranking, 256, ("a", "b", "c", "d"), 3, 0.5, (-0.25, 1.0))
    assert "0.50 [-0.25, 1.00], 3 seeds" in " ".join(" ".join(printed(tau=tau)).split())
    same = replace(tau, bounds=(0.5, 0.5))
    assert "0.50 with each of 3 seeds" in " ".join(" ".join(printed(tau=same)).split())
    alone = replace(tau, seeds=1, bounds=(-1.0, 1.0))
    assert "0.50 (no interval: one seed)" in " ".join(" ".join(printed(tau=alone)).split())


def test_a_study_with_a_ranking_says_why_it_has_no_tau() -> None:
    study = replace(STUDY, ranking=Ranking(2, {}, "table 2"))
    text = render(Outcomes(Variant(study), [], None, NOTHING, []), 80)
    assert "no Kendall's tau-b: fewer than 4 ranked encodings have learned" in text
    assert "tau" not in " ".join(printed())


def test_levels_that_differ_are_named_and_counted() -> None:
    rows = [replace(ROW, length=100 + place) for place in range(MAX_SHOWN + 2)]
    ours = levels_of({"": rows}, "full")
    table = levels_of({"": [replace(row, bits_per_byte=1.0) for row in rows]}, "full")
    lines = printed(comparison=compare(ours, table))
    assert sum(line.startswith("  differs: rope at 1") for line in lines) == MAX_SHOWN
    assert "  and 2 more" in lines and any("0 of 12 levels agree" in line for line in lines)


def test_what_is_not_comparable_says_why() -> None:
    ours = levels_of({"": [ROW]}, "full")
    for version, printed_version in (("2.12.0", "2.12.0"), ("\x1b[2J", "\\x1b[2J")):
        table = levels_of({"": [replace(ROW, torch=version)]}, "full")
        text = " ".join(" ".join(printed(comparison=compare(ours, table))).split())
        reason = f"another version of PyTorch (2.13.0 here, {printed_version} in the table)"
        assert f"1 level not comparable: {reason}" in text
