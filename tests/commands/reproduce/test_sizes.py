"""A study over sizes of model: its table, how far two sizes order encodings alike, and its picture."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import Command
from support.results import add_run

from pe_bench.commands.reproduce.claims import Measurements
from pe_bench.commands.reproduce.sizes import draw_sizes, size_agreements, size_results, size_table_lines
from pe_bench.commands.reproduce.study import FinishedStep, ScoringStep, Study, Sweep, read_study
from pe_bench.runs.rows import read_rows

# Levels at 128, 512 and 2,048 tokens: small turns the order of rope and alibi round at 128.
LEVELS = {
    "probe": {"rope": (2.0, 3.0, 4.0), "alibi": (2.1, 2.1, 2.1), "t5": (2.3, 2.4, 2.5)},
    "tiny": {"rope": (1.8, 3.5, 4.5), "alibi": (1.7, 1.7, 1.7), "t5": (1.9, 2.0, 2.1)},
    "small": {"rope": (1.4, 3.0, 4.0), "alibi": (1.3, 1.25, 1.2), "t5": (1.3, 1.4, 1.5)},
}
MODELS = {"probe": 115_000, "tiny": 824_576, "small": 4_800_000}
NAMES = ("rope", "alibi", "t5")


@pytest.fixture
def study() -> Study:
    sweeps = (
        Sweep([*NAMES], "probe", tokens=1_000_000, overrides=["model=probe"]),
        Sweep([*NAMES], "tiny"),
        Sweep([*NAMES], "small", tokens=48_000_000, overrides=["model=small"]),
        Sweep([*NAMES], "small, tiny's tokens", overrides=["model=small"]),
    )
    times = [1.0, 2.0, 4.0, 16.0]
    return Study("Sizes", "?", "x", 1, sweeps, times, tokens=8_000_000, over="parameters")


@pytest.fixture
def scores(tmp_path: Path) -> Measurements:
    steps = []
    for sweep, levels_of in LEVELS.items():
        for name, levels in levels_of.items():
            level_at = dict(zip((128, 512, 2048), levels, strict=True))
            parameters = round(MODELS[sweep] * (1.07 if name == "t5" else 1))
            more = {"setting": sweep, "parameters": parameters, "model": sweep}
            run = add_run(tmp_path, name, level_at, spread=0.01, **more)
            steps.append(FinishedStep(sweep, (run.name,), {row.key for row in read_rows(run / "eval.csv")}))
    return Measurements(tmp_path, steps, 128)


def test_the_order_of_two_sizes_is_compared_with_what_is_not_sure_of_it(
    study: Study, scores: Measurements
) -> None:
    sizes = size_results(study, scores)
    assert [size.has_own_tokens for size in sizes] == [True] * 9
    tau = {(each.first_sweep, each.second_sweep, each.times): each for each in size_agreements(sizes, scores)}
    assert len(tau) == 9
    turned = tau["probe", "tiny", 1]
    assert (turned.tau, turned.low, turned.high) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    kept = tau["probe", "tiny", 16]
    assert (kept.tau, kept.low, kept.high, kept.encodings) == (1, 1, 1, 3)
    unsure = tau["tiny", "small", 1]  # alibi and t5 are equal at small
    assert (unsure.low, unsure.tau, unsure.high) == pytest.approx((-1 / 3, 0, 1 / 3))


def test_a_table_and_a_picture_show_each_size_and_what_was_not_run(
    study: Study, scores: Measurements, tmp_path: Path
) -> None:
    sizes = size_results(study, scores)
    lines = list(size_table_lines(sizes, study, scores, 100))
    assert len([line for line in lines if line.startswith(NAMES)]) == 9 and max(map(len, lines)) <= 100
    assert any(line.split()[:3] == ["alibi", "small", "4,800,000"] and "-0.050" in line for line in lines)
    assert "not run: small, tiny's tokens" in lines
    assert any(line.startswith("  probe | tiny at 1x: +0.33") for line in lines)
    draw_sizes(sizes, study, tmp_path / "sizes.svg")
    drawn = (tmp_path / "sizes.svg").read_text()
    assert re.findall(r">([\d.]+M)<", drawn) == ["0.1M", "0.8M", "5M"] and "$" not in drawn


def test_what_a_scaling_repairs_is_a_line_of_its_own_and_has_no_part_in_the_order(
    study: Study, scores: Measurements, tmp_path: Path
) -> None:
    scoring = ScoringStep([1, 4], scored_with=["yarn factor=auto"], encodings=["rope"])
    scaled = replace(study, scorings=(scoring,))
    run = add_run(tmp_path, "rope", {128: 1.8, 512: 1.9}, scored_with="yarn factor=auto", setting="tiny")
    step = FinishedStep("tiny", (run.name,), {row.key for row in read_rows(run / "eval.csv")})
    scores.rows["tiny"] += [row for row in read_rows(run / "eval.csv") if row.key in step.keys]
    sizes = size_results(scaled, scores)
    assert [size.sweep for size in sizes if size.encoding == "rope -> yarn factor=auto"] == ["tiny"]
    lines = list(size_table_lines(sizes, scaled, scores, 100))
    assert any(line.startswith("rope -> yarn factor=auto") and "+0.100" in line for line in lines)
    assert size_agreements(sizes, scores) == size_agreements(size_results(study, scores), scores)


def test_a_scoring_is_of_the_encodings_that_it_names() -> None:
    study = read_study("sizes")
    labels = {sweep.name: [*study.labels_of(sweep)] for sweep in study.sweeps}
    for sweep in study.sweeps:
        assert labels[sweep.name][:3] == ["rope", "rope -> yarn factor=auto", "alibi"], sweep.name
        assert [study.scorings_of(replace(sweep, encodings=[name])) != [] for name in ("rope", "alibi")] == [
            True,
            False,
        ]


def test_the_study_of_sizes_has_the_stated_tokens_a_parameter_and_the_stated_rule() -> None:
    study = read_study("sizes")
    parameters = {"probe": 115_000, "tiny": 824_576, "small": 4_800_000}
    tokens_a_parameter = {"probe": 10, "tiny": 10, "small": 5}
    for sweep in study.sweeps:
        if sweep.name in parameters:
            tokens = (sweep.tokens or study.tokens) / parameters[sweep.name]
            assert tokens == pytest.approx(tokens_a_parameter[sweep.name], rel=0.05)
    rates = {"probe": (64, 0.007), "small": (256, 0.0035)}
    for sweep in study.sweeps:
        for name, (width, rate) in rates.items():
            if f"model={name}" in sweep.overrides:
                assert rate == pytest.approx(0.005 * (128 / width) ** 0.5, rel=0.02)
                assert f"train.lr={rate}" in sweep.overrides


TOY = """\
title: A toy
question: does it run?
source: nobody
minutes: 1
seeds: 1
length: 16
tokens: 512
times: [1, 2, 4, 16]
over: parameters
overrides: [model.n_layers=1, model.n_heads=2, model.d_ff=24, train.batch_tokens=64, train.warmup_steps=2,
  train.validation_tokens=64, eval.targets=6, eval.controls=none]
sweeps:
  - {name: narrow, encodings: [rope, alibi], overrides: [model=probe, model.d_model=16]}
  - {name: wide, encodings: [rope, alibi], overrides: [model.d_model=32]}
"""


def test_a_toy_over_sizes_is_made_in_pieces(command: Command, folder: Path) -> None:
    path = folder / "own" / "study" / "toy.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TOY)
    folders = ["--config-dir", str(folder / "own"), "--text", str(folder / "corpus")]
    made = command("reproduce", "toy", *folders, "threads=1", "--write-table")
    assert made.code == 0, made.err
    stored = command("reproduce", "toy", *folders, "--stored")
    assert stored.code == 0, stored.err
    tables = [outcome.out.partition("toy: A toy")[0] for outcome in (made, stored)]
    assert tables[0] == tables[1]
    narrow, wide = (
        next(line for line in stored.out.splitlines() if name in line) for name in ("narrow", "wide")
    )
    assert int(narrow.split()[2].replace(",", "")) < int(wide.split()[2].replace(",", ""))
