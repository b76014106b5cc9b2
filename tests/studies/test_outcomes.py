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
from pe_bench.report import draw
from pe_bench.report.records import Paired
from pe_bench.report.statistics import Interval
from pe_bench.runs.rows import read_rows
from pe_bench.studies.claims import Judged, Measurements, Outcome
from pe_bench.studies.outcomes import Level, Outcomes, compare, levels_of, read_table, render, write_levels
from pe_bench.studies.study import KINDS, Claim, Step, Study, Sweep

STUDY = Study("A toy", "why?", "nobody", 1, (Sweep(["rope"]),), [1.0], (), name="toy", path=Path("toy.yaml"))
CHANGE = Paired(0.12, Interval(0.12, 0.05, 0.2, seeds=3, documents=70), "")


def judged(outcome: Outcome, kind: str = "holds", of: str = "rope", **more: str) -> Judged:
    claim = Claim(kind, "table 2, +0.017", of, 2, **more)  # type: ignore[arg-type]
    return Judged(claim, 256, outcome, CHANGE, 256)


def printed(*claims: Judged, study: Study = STUDY, compared: Any = ((), {})) -> list[str]:
    lines = render(Outcomes(study, claims, [], *compared), 80).splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def levels(*values: float, **changes: object) -> list[Level]:
    """Return levels of rope at 128, 256, ...: a value for each."""
    rows = [
        replace(ROW, length=128 * number, bits_per_byte=value, **changes)  # type: ignore[arg-type]
        for number, value in enumerate(values, 1)
    ]
    return levels_of({"": rows}, "full")


def test_contradicted_claims_come_first_and_each_has_its_interval_and_source_below() -> None:
    lines = printed(judged("unclear"), judged("holds"), replace(judged("contradicted"), decided_at=160))
    begins = [line.split()[0] for line in lines if re.match("contradicted|holds|unclear", line)]
    assert begins == ["contradicted", "holds", "unclear"]
    assert any(line.startswith("claims: 1 contradicted, 1 holds, 1 unclear") for line in lines)
    index = lines.index("holds         rope holds up to 256")
    assert lines[index + 1].strip() == "change +0.120 [+0.050, +0.200], seeds: 3 (paper: table 2, +0.017)"
    assert any(line.strip().startswith("change at 160 +0.120") for line in lines)
    # A toy cannot judge claims: it says whether its levels agree.
    same = compare(levels(1.8, 2.5), levels(1.8, 2.5))
    lines = printed(judged("unclear"), judged("holds"), study=STUDY.quick(), compared=same)
    assert any(line.startswith("toy.csv: 2 of 2 levels agree") for line in lines)
    assert not any(line.startswith("holds") for line in lines)


def test_every_kind_of_claim_is_a_sentence_about_its_encoding() -> None:
    for kind in KINDS:
        text = str(judged("holds", kind, than="alibi"))
        assert text.startswith("rope ") and ("256" in text or "before alibi" in text)
    assert str(judged("holds", "falls", "", sweep="yarn 128k")) == "yarn 128k is better at 256 than at 128"


@pytest.mark.parametrize(
    ("ours", "table", "differing"),
    [
        (levels(2.0), levels(2.0199), 0),
        (levels(2.0), levels(2.0201), 1),
        (levels(2.39), [levels(2.1)[0] | {"seed_sd": "0.1"}], 0),  # three standard deviations over seeds
        (levels(2.41), [levels(2.1)[0] | {"seed_sd": "0.1"}], 1),
        (levels(math.inf), levels(math.inf), 0),  # both broke down
        (levels(2.0), levels(math.inf), 1),
        (levels(math.nan), levels(2.0), 1),
    ],
)
def test_levels_may_differ_by_the_tolerance(ours: Any, table: Any, differing: int) -> None:
    compared, incomparable = compare(ours, table)
    assert len(Outcomes(STUDY, [], ours, compared).differing) == differing
    assert len(compared) == 1 and not incomparable
    lines = printed(compared=(compared, {}))
    assert sum(line.startswith("  differs: rope at 128") for line in lines) == differing


@pytest.mark.parametrize(
    ("ours", "table", "reason"),
    [
        (levels(1.8), levels(7.0, data_hash="0ther"), "other text.*da7a0123 here, 0ther in the table"),
        (levels(1.8), levels(7.0, target_hash="0ther"), r"other targets \(7a56e7 here, 0ther in the table"),
        (levels(1.8), levels(7.0, setting="0ther"), "another model or training"),
        (levels(1.8), levels(7.0, torch="2.14.0"), "another version of PyTorch .2.13.0 here, 2.14.0 in"),
        (levels(1.8), [levels(1.8)[0] | {"seeds": "2"}], "other numbers of seeds .1 here, 2 in the table"),
        (levels(1.8), levels(1.8, 2.5)[1:], "our runs have no score there"),
        (levels(1.8, 2.5), levels(1.8), None),  # what only we scored does not count
        (levels(1.8, torch="2.13.1+cpu"), levels(1.8), None),  # another patch or build
        (levels(1.8), [levels(9.0)[0] | {"variant": "quick"}, *levels(9.0, data="files")], None),
    ],
)
def test_only_what_was_made_alike_is_compared(ours: Any, table: Any, reason: str | None) -> None:
    compared, incomparable = compare(ours, table)
    assert [bool(re.search(reason or "", each)) for each in incomparable] == ([True] if reason else [])
    assert not compared if reason else True
    text = " ".join(" ".join(printed(compared=(compared, incomparable))).split())
    assert ("levels not comparable: 1, " in text) is bool(reason)


def test_a_table_keeps_levels_of_other_texts(tmp_path: Path) -> None:
    table, files = tmp_path / "toy.csv", levels(1.1, data="files")
    for written in (levels(1.8, 2.5), files, levels(1.9)):
        write_levels(table, written)
    assert read_table(table) == [*files, *levels(1.9)]


def test_curves_of_other_studies_of_the_same_runs_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(tmp_path, "rope", {128: 1.8, 256: 2.5, 512: 3.5})
    keys = tuple(row.key for row in read_rows(run / "eval.csv") if row.length != 256)
    add_run(tmp_path, "rope", {128: 2.0, 256: 2.0, 512: 2.0}, scored_with="yarn factor=auto")
    longer = add_run(tmp_path, "rope", {128: 1.5, 512: 4.0}, setting="2m", steps=500)
    of_longer = tuple(row.key for row in read_rows(longer / "eval.csv"))
    for path, tokens in ((run, 1), (longer, 2)):
        (path / "config.yaml").write_text(f"train: {{tokens: {tokens}}}\n")
    drawn: list[Any] = []
    monkeypatch.setattr(draw, "plot_tables", lambda tables, path: drawn.extend(tables))
    study = replace(STUDY, sweeps=(Sweep(["rope"], tokens=1), Sweep(["rope"], "2M", tokens=2)))
    steps = [Step("", (run.name,), keys), Step("2M", (longer.name,), of_longer)]
    command._draw(SimpleNamespace(results_dir=tmp_path, study=study), Measurements(tmp_path, steps))  # type: ignore[arg-type]
    [table] = drawn  # what sweeps differ in sets lines apart
    assert {line.label for line in table.lines} == {"rope train.tokens=1", "rope train.tokens=2"}
    assert table.lengths == (128, 512)
