"""Studies that need the same runs share them, one after another or at the same time, and say the same."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import Command

MODEL = """[model.d_model=16, model.n_layers=2, model.n_heads=2, model.d_ff=24, train.batch_tokens=64,
  train.warmup_steps=2, train.validation_tokens=64, eval.targets=6, eval.controls=none]"""
FIRST = f"""\
title: The first
question: does it share?
source: nobody
minutes: 1
seeds: 2
length: 16
tokens: 512
times: [1, 1.5, 4]
overrides: {MODEL}
sweeps:
  - encodings: [rope]
scorings:
  - {{protocol: nonoverlapping, times: [1]}}
  - {{protocol: sliding, times: [1]}}
  - {{times: [1, 2], scored_with: [rope_pi factor=2]}}
claims:
  - {{kind: order, of: rope, than: rope -> rope_pi factor=2.0, at: 1, source: nobody}}
  - {{kind: early_tokens, of: rope, at: 1, source: nobody}}
"""
SECOND = f"""\
title: The second
question: does it share?
source: nobody
minutes: 1
seeds: 1
length: 16
tokens: 512
times: [1, 2]
overrides: {MODEL}
sweeps:
  - encodings: [nope, rope]
claims:
  - {{kind: order, of: rope, than: nope, at: 1, source: nobody}}
"""
PLAIN = [text.strip() for text in MODEL.strip("[]").split(",") if "eval." not in text]
PLAIN += ["train.length=16", "train.tokens=512"]


@pytest.fixture
def own(folder: Path) -> Path:
    study = folder / "own" / "study"
    study.mkdir(parents=True)
    (study / "first.yaml").write_text(FIRST)
    (study / "second.yaml").write_text(SECOND)
    return folder / "own"


def arguments(own: Path, name: str, results: str) -> list[str]:
    text = str(own.parent / "corpus")
    folders = ["--config-dir", str(own), "--text", text, "--results-dir", results]
    return ["reproduce", name, *folders, "threads=1"]


@pytest.fixture
def reproduce(command: Command, own: Path) -> Callable[[str, str], str]:
    """Run a study in a folder of results and return what it printed."""

    def run(name: str, results: str) -> str:
        outcome = command(*arguments(own, name, results))
        assert outcome.code == 0, outcome.err
        return outcome.out

    return run


def trainings(results: str) -> list[str]:
    """Return the lines of all jobs' logs that say that a run was trained."""
    logs = [path.read_text() for path in Path(results, "sweeps").glob("*/jobs/*.log")]
    return sorted(line.split(":")[0] for log in logs for line in log.splitlines() if ": trained in" in line)


def test_two_studies_train_what_they_share_once_and_their_order_changes_nothing(
    reproduce: Callable[[str, str], str],
) -> None:
    first, second = reproduce("first", "one"), reproduce("second", "one")
    assert reproduce("second", "two") == second
    assert reproduce("first", "two") == first
    names = [path.name for path in sorted(Path("one/runs").iterdir())]
    assert [name.split("-")[0] for name in names] == ["nope", "rope", "rope"]
    assert trainings("one") == trainings("two") == names
    assert "not scored" not in first + second and reproduce("first", "one") == first


def test_runs_of_a_plain_train_with_other_scores_are_taken_as_they_are(
    command: Command, reproduce: Callable[[str, str], str], own: Path
) -> None:
    data = ["data=files", f"data.path={own.parent / 'corpus'}"]
    plain = [*PLAIN, "eval.lengths=[16,24]", "eval.max_length=24", "eval.targets=4"]
    trained = command("train", *plain, *data, "encoding=rope", "results_dir=mixed", "threads=1")
    assert trained.code == 0, trained.err
    [name] = [path.name for path in Path("mixed/runs").iterdir()]
    assert reproduce("first", "mixed") == reproduce("first", "fresh")
    assert name not in trainings("mixed") and len(trainings("mixed")) == 1


def test_two_studies_at_the_same_time_wait_for_each_other_and_train_nothing_twice(own: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "pe_bench", *arguments(own, name, "both")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for name in ("first", "second")
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "not scored" not in out
    assert trainings("both") == sorted(path.name for path in Path("both/runs").iterdir())


def test_a_run_that_another_process_works_on_is_waited_for_before_it_is_scored(
    reproduce: Callable[[str, str], str], command: Command, own: Path
) -> None:
    first = reproduce("first", "held")
    path = Path("held/studies/first-files.json")
    steps = {key: step for key, step in json.loads(path.read_text()).items() if " | " not in key}
    assert len(steps) == 1
    path.write_text(json.dumps(steps))
    run = next(iter(Path("held/runs").iterdir()))
    lock = f"filelock.FileLock({str(run / 'lock')!r})"
    holding = f"import filelock, time\nwith {lock}: print(flush=True); time.sleep(3)"
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        outcome = command(*arguments(own, "first", "held"))
    assert outcome.code == 0 and outcome.out == first
    assert f"waits for another process that is working on {run}" in outcome.err
