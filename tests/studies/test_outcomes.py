"""What `reproduce` says: claims with intervals and sources, and our levels beside the study's table."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.results import ROW, add_run

from pe_bench.cli import reproduce as command
from pe_bench.errors import RunError, UserError
from pe_bench.report import draw
from pe_bench.report.records import Paired
from pe_bench.report.statistics import Interval
from pe_bench.runs.rows import read_rows
from pe_bench.studies.claims import Judged, Measurements, Outcome
from pe_bench.studies.outcomes import (
    MAX_SHOWN,
    Comparison,
    Level,
    Outcomes,
    compare,
    levels_of,
    read_table,
    render,
    write_table,
)
from pe_bench.studies.study import KINDS, Claim, Progress, Step, Study, Sweep, Variant

STUDY = Study("A toy", "why?", "nobody", 1, (Sweep(["rope"]),), [1.0], (), name="toy", path=Path("toy.yaml"))
CHANGE = Paired(0.12, Interval(0.12, 0.05, 0.2, seeds=3, documents=70), "")


def judged(outcome: Outcome, kind: str = "holds", **more: str) -> Judged:
    claim = Claim(kind, "rope", "table 2, +0.017", 2, **more)  # type: ignore[arg-type]
    return Judged(claim, 256, outcome, CHANGE, 256)


def printed(*claims: Judged, study: Study = STUDY, **options: Any) -> list[str]:
    options = {"comparison": Comparison(), "ours": []} | options
    lines = render(Outcomes(Variant(study), claims, **options), 80).splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_contradicted_claims_come_first_and_each_has_its_interval_and_source_below() -> None:
    lines = printed(judged("unclear"), judged("holds"), replace(judged("contradicted"), decided_at=160))
    begins = [line.split()[0] for line in lines if re.match("contradicted|holds|unclear", line)]
    assert begins == ["contradicted", "holds", "unclear"]
    assert any(line.startswith("3 claims: 1 contradicted, 1 holds, 1 unclear") for line in lines)
    index = lines.index("holds         rope holds up to 256")
    assert lines[index + 1].strip() == "change +0.120 [+0.050, +0.200], 3 seeds (paper: table 2, +0.017)"
    assert any(line.strip().startswith("change at 160 +0.120") for line in lines)


def test_a_toy_says_first_whether_its_levels_agree_and_counts_its_claims() -> None:
    compared = compare(levels(1.8, 2.5), levels(1.8, 2.5))
    toy = Variant(STUDY, is_quick=True)
    lines = render(Outcomes(toy, [judged("unclear"), judged("holds")], compared, []), 100).splitlines()
    assert lines[5].startswith("toy.csv: 2 of 2 levels agree")
    assert lines[7].startswith("2 claims: 0 contradicted, 1 holds, 1 unclear") and len(lines) == 8


def test_every_kind_of_claim_is_a_sentence_about_its_encoding() -> None:
    for kind in KINDS:
        text = str(judged("holds", kind, than="alibi"))
        assert text.startswith("rope ") and ("256" in text or "before alibi" in text)
    claim = judged("holds", "order", sweep="256k tokens", than_sweep="2M tokens", measure="change")
    assert str(claim) == "rope (256k tokens) loses less than rope (2M tokens) from its training length to 256"


# The table


def levels(*values: float, **changes: object) -> list[Level]:
    """Return levels of rope at 128, 256, ...: a value for each."""
    rows = [
        replace(ROW, length=128 * number, bits_per_byte=value, **changes)  # type: ignore[arg-type]
        for number, value in enumerate(values, 1)
    ]
    return levels_of({"": rows}, "full")


def test_a_level_differs_beyond_the_tolerance_or_three_standard_deviations_over_seeds() -> None:
    comparison = compare(levels(1.8, 2.5, 3.0), levels(1.8, 2.5211, 3.0199))
    [(ours, table)] = comparison.differing
    assert (len(comparison.levels), table.length, table.tolerance) == (3, 256, 0.02)
    assert ours.level - table.level == pytest.approx(-0.0211) and not comparison.incomparable
    seeds = [replace(ROW, seed=seed, bits_per_byte=2.0 + 0.1 * seed) for seed in range(3)]
    [table] = levels_of({"": seeds}, "full")
    assert (table.seeds, table.seed_sd, table.level) == (3, pytest.approx(0.1), pytest.approx(2.1))
    assert not compare([replace(table, level=2.39)], [table]).differing
    assert compare([replace(table, level=2.41)], [table]).differing
    assert not compare(levels(math.inf), levels(math.inf)).differing, "both broke down"
    assert (
        compare(levels(2.0), levels(math.inf)).differing and compare(levels(math.nan), levels(2.0)).differing
    )


def test_only_what_was_made_alike_is_compared() -> None:
    for column, reason in (
        ("data_hash", "other text"),
        ("target_hash", "other targets"),
        ("setting", "another model or training"),
        ("torch", "another version of PyTorch"),
    ):
        comparison = compare(levels(1.8, 2.5), levels(7.0, 7.0, **{column: "2.14.0"}))
        ours = "2.13.0" if column == "torch" else getattr(ROW, column)
        assert not comparison.levels and comparison.incomparable == {reason: [(ours, "2.14.0")] * 2}
    assert compare(levels(1.8, torch="2.13.1+cpu"), levels(1.8)).levels, "another patch or build"
    two = levels_of({"": [ROW, replace(ROW, seed=1)]}, "full")
    assert compare(levels(1.8), two).incomparable == {"other numbers of seeds": [("1", "2")]}
    assert compare(levels(1.8), levels(1.8, 2.5)).incomparable == {"our runs have no score there": [("", "")]}
    assert not compare(levels(1.8, 2.5), levels(1.8)).incomparable, "what only we scored does not count"
    quick = [replace(level, variant="quick") for level in levels(9.0)]
    assert compare(levels(1.8), [*quick, *levels(9.0, data="files")]) == Comparison()


def test_levels_that_differ_are_named_and_counted_and_what_is_not_comparable_says_why() -> None:
    ours, table = levels(*[1.8] * (MAX_SHOWN + 2)), levels(*[1.0] * (MAX_SHOWN + 2))
    lines = printed(comparison=compare(ours, table))
    assert sum(line.startswith("  differs: rope at") for line in lines) == MAX_SHOWN
    assert "  and 2 more" in lines and any("0 of 12 levels agree" in line for line in lines)
    for version, shown in (("2.12.0", "2.12.0"), ("\x1b[2J", "\\x1b[2J")):
        comparison = compare(levels(1.8), levels(1.8, torch=version))
        text = " ".join(" ".join(printed(comparison=comparison)).split())
        reason = f"another version of PyTorch (2.13.0 here, {shown} in the table)"
        assert f"1 level not comparable: {reason}" in text


def test_a_table_keeps_levels_of_other_texts_and_gets_none_that_lack_seeds(tmp_path: Path) -> None:
    study = replace(STUDY, path=tmp_path / "toy.yaml", seeds=2)
    both = levels_of({"": [replace(ROW, seed=seed) for seed in range(2)]}, "full")
    [alone] = levels(1.8, score_dtype="bfloat16")
    outcomes = Outcomes(Variant(study), [], Comparison(), [*both, alone])
    with pytest.raises(RunError, match=r"toy\.csv is not written: .* rope at 128 .* 1 seeds instead of 2"):
        outcomes.write_table()
    assert read_table(study.table) == []
    replace(outcomes, ours=both).write_table()
    assert read_table(study.table) == both

    files = levels(1.1, data="files")
    for written in (levels(1.8, 2.5), files, levels(1.9)):
        write_table(study.table, written)
    assert sorted(read_table(study.table), key=lambda level: level.data) == [*files, *levels(1.9)]
    study.table.write_text("variant,data\nfull\n")
    with pytest.raises(UserError, match=r"toy\.csv is not a table of a study"):
        read_table(study.table)


def test_curves_of_other_studies_of_the_same_runs_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(tmp_path, "rope", {128: 1.8, 256: 2.5, 512: 3.5})
    keys = tuple(row.key for row in read_rows(run / "eval.csv") if row.length != 256)
    add_run(tmp_path, "rope", {128: 2.0, 256: 2.0, 512: 2.0}, scored_with="yarn factor=auto")
    drawn: list[Any] = []
    monkeypatch.setattr(draw, "plot_tables", lambda tables, path: drawn.extend(tables))
    runs: Any = SimpleNamespace(progress=Progress(tmp_path, "toy"), variant=Variant(STUDY))
    command._draw(runs, Measurements(tmp_path, [Step("", (run.name,), keys)]))
    labels = {line.label for table in drawn for line in table.lines if not line.is_anchor}
    lengths = {length for table in drawn for length in table.lengths}
    assert (labels, lengths) == ({"rope"}, {128, 512})
