"""Key targets follow LongPPL's rule, and a judge that cannot judge is refused with both values."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scoring import DATA, EVAL, data_of, scored, trained_model

from pe_bench.errors import UserError
from pe_bench.runs.means import KEY, read_slices
from pe_bench.runs.rows import Row, read_rows, write_rows
from pe_bench.runs.scores import load_scores, save_scores, score_file, with_level
from pe_bench.scoring.plans import make_plans
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.slices import key_slices


def plans_of(evaluation=EVAL, data=DATA) -> list[Plan]:
    config = replace(trained_model(Path("unused-run")).config, eval=evaluation)
    return make_plans(config, evaluation, data)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    scored(trained_model(tmp_path / "judge"))
    return tmp_path / "judge"


def with_nll(judge: Path, nll_at: dict[int, list[float]]) -> Row:
    """Give the first targets of the judge these losses."""
    rows = {row.length: row for row in read_rows(judge / "eval.csv")}
    for length, values in nll_at.items():
        path = score_file(judge, rows[length])
        scores = load_scores(path)
        nll = np.full_like(scores.nll, 3.0)
        nll[: len(values)] = values
        save_scores(path, replace(scores, nll=nll))
    return rows[8]


def test_key_targets_gain_more_than_2_nats_from_far_context_and_cost_less_than_2_with_it(judge):
    row = with_nll(judge, {8: [4.1, 3.9, 4.1, 6.0, 1.0], 24: [1.9, 1.95, 2.1, 3.0, 0.1], 12: [0.0] * 5})
    found = key_slices(judge, plans_of(), 8, DATA)
    assert np.flatnonzero(found[row.target_hash][KEY]).tolist() == [0]


def test_key_targets_are_the_same_whichever_lengths_are_scored(judge):
    row = with_nll(judge, {8: [5.0, 5.0], 12: [1.0, 5.0], 24: [5.0, 1.0]})
    found = [
        key_slices(judge, plans_of(replace(EVAL, lengths=lengths)), 8, DATA) for lengths in ([8, 12], [8, 24])
    ]
    assert [np.flatnonzero(masks[row.target_hash][KEY]).tolist() for masks in found] == [[1], [1]]


def test_a_judge_that_cannot_judge_is_refused(judge):
    other = replace(data_of(60, 60), hash="07e4da7a99")
    for evaluation, data, problem in [
        (EVAL, other, r"with odd \(da7a0123\), and here is files with odd \(07e4da7a\)"),
        (
            replace(EVAL, lengths=[8, 16], max_length=16),
            DATA,
            r"it needs scores at 8 and 16 .* and has no length: "
            r"`pe-bench eval judge --lengths 8,16 --max-length 16 --targets 7`",
        ),
        (replace(EVAL, protocol="sliding"), DATA, "--protocol paired alone"),
        (replace(EVAL, lengths=[8]), DATA, "needs a length beyond the training length 8: add it with"),
    ]:
        with pytest.raises(UserError, match=problem):
            key_slices(judge, plans_of(evaluation, data), 8, data)
    with_nll(judge, {8: [3.0], 24: [3.0]})
    with pytest.raises(UserError, match=r"judge: no target is key to it: .* 2 nats .*uses far context"):
        key_slices(judge, plans_of(), 8, DATA)
    rows = [row for row in read_rows(judge / "eval.csv") if row.length != 24]
    write_rows(judge / "eval.csv", rows)
    with pytest.raises(UserError, match=r"it needs scores at 8 and 24 .* and has 8, 12: "):
        key_slices(judge, plans_of(), 8, DATA)


def test_a_set_at_the_training_length_alone_hides_no_key_target_of_another(judge):
    longer = replace(EVAL, lengths=[8, 36])
    scored(trained_model(judge), longer)
    plans = plans_of(longer)
    [(short, _), (long, blocks)] = {plan.target_hash: plan.blocks for plan in plans}.items()
    assert blocks is not None and blocks.max_length == 36
    for row in read_rows(judge / "eval.csv"):
        if row.target_hash == long:
            path = score_file(judge, row)
            scores = load_scores(path)
            save_scores(path, replace(scores, nll=np.full_like(scores.nll, {8: 5.0, 36: 1.0}[row.length])))
    found = key_slices(judge, plans, 8, DATA)
    assert found.keys() == {long} and found[long][KEY].all() and short != long


def test_the_command_keeps_key_targets_that_a_report_shows_with_their_judge(
    begin, train, evaluate, command, folder
):
    assert begin("encoding=rope").code == 0 and train("encoding=nope").code == 0
    [judge] = (folder / "results" / "runs").glob("nope-*")
    refused = evaluate("rope", "--key-tokens-of", judge.name[:6])
    assert refused.code == 2
    [arguments] = re.findall(r"`pe-bench eval (.*)`", refused.err)
    assert evaluate(*arguments.split()).code == 0, "the way out of the message"
    assert "no target is key" in evaluate("rope", "--key-tokens-of", judge.name[:6]).err
    before = read_rows(judge / "eval.csv")
    for row in before:
        path = score_file(judge, row)
        scores = load_scores(path)
        nll = np.where(np.arange(len(scores.nll)) < 9, {16: 5.0, 64: 1.0}.get(row.length, 3.0), scores.nll)
        scores = replace(scores, nll=nll.astype(np.float32))
        save_scores(path, scores)
        write_rows(judge / "eval.csv", [with_level(row, scores), *read_rows(judge / "eval.csv")])
    outcome = evaluate("--all", "--key-tokens-of", judge.name[:6])
    assert outcome.code == 0, outcome.err
    assert f"{judge.name} is the judge of --key-tokens-of" in outcome.err
    assert not any(KEY in of_set for of_set in read_slices(judge).values())
    results = ("--results-dir", str(folder / "results"))
    shown = command("report", "--all", "--slice", "key", *results)
    assert f"key of {judge.name}" in shown.out and "rope" in shown.out, shown.err
    rows = read_rows(folder / "results" / "results.csv")
    assert {(row.encoding, row.judge, row.targets) for row in rows if row.slice == KEY} == {
        ("rope", judge.name, 9)
    }
