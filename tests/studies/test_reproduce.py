"""`reproduce` runs what is missing of a study, compares it with its table and judges its claims."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from support.commands import Command, Outcome
from support.results import add_run

from pe_bench.config.groups import config_dir
from pe_bench.runs.rows import read_rows, write_rows
from pe_bench.studies.outcomes import read_table
from pe_bench.studies.study import Progress, Step, Variant, read_study, study_names

STUDY = """\
title: A toy
question: does it run?
source: nobody
minutes: 1
seeds: 1
length: 16
tokens: 512
times: [1, 2, 4]
overrides: [model.d_model=16, model.n_layers=2, model.n_heads=2, model.d_ff=24, train.batch_tokens=64,
  train.warmup_steps=2, train.validation_tokens=64, eval.targets=6, eval.controls=none]
sweeps:
  - encodings: [rope, nope]
scorings:
  - {protocol: nonoverlapping, times: [2]}
  - {times: [2], scored_with: [rope_pi factor=2]}
claims:
  - {kind: holds, of: rope, at: 4, source: nobody}
  - {kind: order, of: rope, than: rope -> rope_pi factor=2.0, at: 2, source: table 1}
"""


@pytest.fixture
def study(folder: Path) -> Path:
    """Write a study of two tiny runs, and return its folder of configurations."""
    (folder / "own" / "study").mkdir(parents=True)
    (folder / "own" / "study" / "toy.yaml").write_text(STUDY.replace("[rope, nope]", "[rope]"))
    return folder / "own"


@pytest.fixture
def reproduce(command: Command, folder: Path, study: Path) -> Command:
    """Run `pe-bench reproduce toy` on the tiny corpus."""
    text = str(folder / "corpus")
    return lambda *arguments: command(
        "reproduce", "toy", "--config-dir", str(study), "--text", text, "threads=1", *arguments
    )


def test_a_study_runs_is_judged_and_compared_and_its_repetition_does_nothing_again(
    reproduce: Command, study: Path, folder: Path
) -> None:
    first = reproduce()
    assert first.code == 0, first.err
    assert "unclear       rope holds up to 64" in first.out
    assert "rope is better than rope -> rope_pi factor=2.0 at 32\n" in first.out
    assert "rope has not learned: at the training length no better than token frequencies" in first.out
    assert "2 claims: 0 contradicted, 0 holds, 2 unclear" in first.out
    assert "toy.csv has nothing of this size and text" in first.out
    assert max(map(len, first.out.splitlines())) <= 100

    runs = {path: path.stat().st_mtime_ns for path in (folder / "work" / "results" / "runs").rglob("*.csv")}
    again = reproduce("--write-table")
    assert (
        again.code == 0
        and "1 run, rope" in first.err
        and "1 run, rope" not in again.err
        and again.out == first.out
    )
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    table = read_table(study / "study" / "toy.csv")
    assert {level.protocol for level in table} == {"paired", "nonoverlapping"}
    assert "rope -> rope_pi factor=2.0" in {level.encoding for level in table}

    path, cells = study / "study" / "toy.csv", len(table)
    path.write_text(path.read_text().replace(f",{table[0].level},", f",{table[0].level + 0.5:.6f},", 1))
    [run] = (folder / "work" / "results" / "runs").iterdir()
    shutil.rmtree(run)
    differing = reproduce()
    assert differing.code == 1 and "1 job: 1 done" in differing.err and (run / "result.json").is_file()
    assert f"{cells - 1} of {cells} levels agree" in differing.out and "differs: rope" in differing.out
    assert differing.line == f"pe-bench: 1 level differs from {path}"


def test_the_toy_size_scores_as_few_tokens_as_the_table_of_its_levels_was_made_with(
    reproduce: Command, folder: Path
) -> None:
    assert reproduce("--quick").code == 0
    rows = pd.read_csv(folder / "work" / "results" / "results.csv")
    targets = rows[rows.protocol == "nonoverlapping"].targets
    assert targets.min() > 0 and targets.max() <= 4096


def test_a_study_goes_on_after_ctrl_c(study: Path, folder: Path) -> None:
    longer = STUDY.replace("[rope, nope]", "[rope]").replace("tokens: 512", "tokens: 8_192")
    (study / "study" / "toy.yaml").write_text(
        longer.replace("[model.d_model", "[train.checkpoint_every=10, model.d_model")
    )
    arguments = [
        "reproduce",
        "toy",
        "--config-dir",
        str(study),
        "--text",
        str(folder / "corpus"),
        "threads=1",
    ]
    command = [sys.executable, "-m", "pe_bench", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    deadline = time.monotonic() + 60
    while not list(Path("results/runs").glob("*/checkpoints/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and not out, err
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 job: 1 done\n" in done.stderr and "2 claims:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["windwed"], "unknown study 'windwed': did you mean 'windowed'?"),
        (["alibi", "kerple"], "one study at a time: alibi, kerple"),
        (["alibi", "train.lr=3"], "train.lr=3 would change the study"),
        (["alibi", "threads=1,2"], "threads=1,2 would make each run of the study several times"),
        (["alibi", "hydrant=1"], "hydrant=1 would change the study"),
        (["alibi", "--text", "nowhere"], "--text nowhere is neither stdlib nor a folder"),
        (["--quick"], "one study at a time: name one"),
        (["--gpu"], "the study gpu needs a GPU"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(
    command: Command, folder: Path, arguments: list[str], said: str
) -> None:
    outcome = command("reproduce", *arguments)
    assert outcome.code == 2 and said in outcome.line and not list(Path().iterdir())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("minutes: 1", "minutes: soon"), "study.minutes must be a whole number, not 'soon'"),
        (("kind: holds", "kind: hold"), "claims.kind must be"),
        (("than: rope -> rope_pi factor=2.0, ", ""), "'order' of rope compares two encodings: add 'than'"),
        (("kind: order", "kind: breaks"), "'breaks' of rope is about one encoding: remove 'rope -> rope_pi"),
        (("of: rope, at: 4", "of: roep, at: 4"), "its sweep trains rope, nope, not roep"),
        (("at: 4, source", "at: 4, sweep: long, source"), "there is no sweep 'long', but ''"),
        (("kind: holds", "kind: solves"), "solves and misses are claims about tasks"),
        (
            ("- encodings", "- task: copy\n    encodings"),
            "'holds' of rope: solves and misses are claims about tasks, order about both",
        ),
        (("at: 4", "at: 3"), "3 is not among the times"),
        (("times: [2], scored", "times: [8], scored"), "scorings.times has 8, and times ends at 4"),
        (("holds, of: rope, at: 4", "early_tokens, of: rope, at: 2"), "times that are scored (sliding)"),
        (
            ("at: 4, source", "at: 4, protocol: nonoverlapping, source"),
            "times that are scored (nonoverlapping)",
        ),
        (
            ("sweeps:", "ranking: {at: 3, numbers: {a: 1, b: 2, c: 3, d: 4}, source: x}\nsweeps:"),
            "ranking.at=3 is not among the times",
        ),
        (("seeds: 1", "sedes: 1"), "did you mean 'seeds'?"),
        (("claims:", "claimed:"), "did you mean 'claims'?"),
        (("title: A toy", "title: ["), "cannot be read"),
        (("times: [1, 2, 4]", "times: []"), "times must be lengths over the training length"),
        (("times: [1, 2, 4]", "times: [0, 1]"), "such as [1, 2], not [0.0, 1.0]"),
        (("sweeps:\n  - encodings: [rope, nope]", "sweeps:"), "sweeps must be a list, not null"),
        (("- encodings: [rope, nope]", "- encodings: []"), "its sweep trains , not rope"),
        (("seeds: 1", "seeds: 1000000000"), "seeds must lie between 1 and 1000, not 1000000000"),
        (
            ("sweeps:", "ranking: {at: 2, numbers: {a: 1, b: 2, c: 3}, source: x}\nsweeps:"),
            "a ranking needs 4 encodings",
        ),
    ],
)
def test_a_mistake_in_a_study_names_its_file(
    reproduce: Command, study: Path, change: tuple[str, str], said: str
) -> None:
    path = study / "study" / "toy.yaml"
    path.write_text(STUDY.replace(*change))
    outcome = reproduce()
    assert outcome.code == 2 and str(path) in outcome.line and said in outcome.line


def test_a_changed_text_or_encoding_is_another_step(folder: Path, study: Path) -> None:
    text, code = folder / "corpus" / "new.txt", study / "encoding" / "mine.py"
    code.parent.mkdir()
    read = read_study("toy", [study])
    variant = Variant(read, text=str(folder / "corpus"), search=(study,))
    [sweep] = read.sweeps
    keys = [variant.key(sweep)]
    for path in (text, code):
        path.write_text("x = 1\n")
        keys.append(variant.key(sweep))
    assert len(set(keys)) == 3
    (study / "study" / "other.yaml").write_text(STUDY)
    assert variant.key(sweep) == keys[-1]


def test_a_step_whose_rows_are_gone_is_to_be_done_again(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0, 256: 2.1})
    keys = tuple(row.key for row in read_rows(run / "eval.csv"))
    progress = Progress(tmp_path, "toy")
    progress.add("a", Step("", (run.name,), keys))
    assert progress.find("a") == Step("", (run.name,), keys)
    write_rows(run / "eval.csv", read_rows(run / "eval.csv")[:1])
    assert progress.find("a") is None
    assert progress.finished_runs(["a"]) == 1


def test_a_damaged_file_of_progress_is_no_progress(command: Command, folder: Path) -> None:
    path = Path("results/studies/windowed.json")
    path.parent.mkdir(parents=True)
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"a": 5}', "nothing"):
        path.write_text(text)
        assert "windowed" in listed(command, "reproduce").out


def listed(command: Command, *arguments: str) -> Outcome:
    outcome = command(*arguments)
    assert outcome.code == 0
    return outcome


def test_reproduce_alone_and_list_studies_name_all_of_them_in_80_columns(
    command: Command, folder: Path
) -> None:
    outcome = listed(command, "list", "studies")
    assert listed(command, "reproduce").out == outcome.out
    assert [line.split()[0] for line in outcome.out.splitlines()[1:]] == study_names()
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_the_list_counts_finished_runs_of_the_study_as_it_is_here(command: Command, folder: Path) -> None:
    variant = Variant(read_study("windowed"))
    [sweep] = variant.study.sweeps
    progress = Progress(Path("results"), variant.progress_name)
    runs = ("alibi-s0-aaaaaaaa", "alibi-s1-aaaaaaaa")
    for key in (variant.key(sweep), "identity 0, Python 3.1: another"):
        progress.add(key, Step("", runs, (), is_done=False))
    finished = Path("results/runs") / runs[0]
    finished.mkdir(parents=True)
    (finished / "result.json").write_text("{}")
    lines = command("reproduce").out.splitlines()
    assert next(line for line in lines if line.startswith("windowed")).split()[2:5] == ["1", "of", "15"]


@pytest.mark.parametrize("name", study_names())
def test_a_shipped_study_names_encodings_that_there_are_and_takes_an_hour_at_most(name: str) -> None:
    study = read_study(name)
    encodings = {path.stem for path in (config_dir() / "encoding").glob("*.yaml")}
    trained = {encoding for sweep in study.sweeps for encoding in sweep.encodings}
    assert trained <= encodings and study.minutes <= 60
    scored_with = [text for step in study.scorings for text in step.scored_with or []]
    labels = trained | {f"{encoding} -> {text}" for encoding in trained for text in scored_with}
    named = {label for claim in study.claims for label in (claim.of, claim.than) if label}
    named |= set(study.ranking.numbers if study.ranking else ())
    assert {label for label in named if "->" in label} <= labels
    assert {re.split("[ +]", label)[0] for label in named} <= trained
    assert all(claim.source for claim in study.claims)


def test_the_toy_size_has_fewer_seeds_and_tokens_and_the_same_lengths_over_training(folder: Path) -> None:
    study = read_study("budget")
    full, quick = Variant(study), Variant(study, is_quick=True, text="books")
    assert (full.seeds, quick.seeds) == (3, 2)
    assert full.lengths([1, 1.5]) == [128, 192] and quick.lengths([1, 1.5]) == [32, 48]
    overrides = [quick.overrides(sweep) for sweep in study.sweeps]
    assert [next(text for text in own if "train.tokens" in text) for own in overrides] == [
        f"train.tokens={tokens}" for tokens in (5120, 10240, 20480, 40960)
    ]
    assert "experiment=quick" in overrides[0] and "experiment=quick" not in full.overrides(study.sweeps[0])
    assert "data.path=books" in overrides[0] and "data=stdlib" in full.overrides(study.sweeps[0])
    assert full.progress_name == "budget" and quick.progress_name == "budget-quick-files"
