"""Studies that need the same runs share them, one after another or at the same time, and say the same."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.commands import Command

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.runs.identity import identity, run_name
from pe_bench.studies.study import Variant, read_study

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
  - encodings: [mine, rope]
scorings:
  - {{protocol: nonoverlapping, times: [1]}}
claims:
  - {{kind: order, of: rope, than: mine, at: 1, source: nobody}}
"""
CODE = """\
from pe_bench.encodings import LayerEncoding


class Mine(LayerEncoding):
    def distance_bias(self, distance):
        return -distance.sqrt()
"""
PLAIN = [text.strip() for text in MODEL.strip("[]").split(",") if "eval." not in text]
PLAIN += ["train.length=16", "train.tokens=512"]


@pytest.fixture
def own(folder: Path) -> Path:
    study = folder / "own" / "study"
    study.mkdir(parents=True)
    (study / "first.yaml").write_text(FIRST)
    (study / "second.yaml").write_text(SECOND)
    (folder / "own" / "encoding").mkdir()
    (folder / "own" / "encoding" / "mine.py").write_text(CODE)
    (folder / "own" / "encoding" / "mine.yaml").write_text("name: mine\nclass: mine.py:Mine\n")
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
    """Return the names of the runs that jobs trained, by their logs."""
    logs = [path.read_text() for path in Path(results, "sweeps").glob("*/jobs/*.log")]
    return sorted(line.split(":")[0] for log in logs for line in log.splitlines() if ": trained in" in line)


def test_studies_take_the_runs_that_are_there_and_say_the_same_in_any_order(
    reproduce: Callable[[str, str], str], command: Command, own: Path
) -> None:
    plain = [*PLAIN, "eval.lengths=[16,24]", "eval.max_length=24", "eval.targets=4", "data=files"]
    plain += [f"data.path={own.parent / 'corpus'}", "results_dir=mixed", "threads=1"]
    trained = command("train", *plain, "encoding=rope")
    assert trained.code == 0, trained.err
    [rope] = [path.name for path in Path("mixed/runs").iterdir()]

    first, second = reproduce("first", "mixed"), reproduce("second", "mixed")
    assert "not scored" not in first + second
    assert (reproduce("second", "fresh"), reproduce("first", "fresh")) == (second, first)
    names = [path.name for path in sorted(Path("fresh/runs").iterdir())]
    assert [name.split("-")[0] for name in names] == ["mine", "rope", "rope"] and rope in names
    assert trainings("fresh") == names
    assert trainings("mixed") == [name for name in names if name != rope]
    _check_waiting(command, own, Path("fresh/runs", rope), first)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, []) for name in ("alibi", "kerple", "scalings", "windowed")),
        ("nope_same_targets", ["train.tokens=2048000"]),
        ("budget", ["train.tokens=2048000"]),
    ],
)
def test_the_shipped_studies_share_the_runs_of_a_plain_train(name: str, more: list[str]) -> None:
    def named(overrides: Sequence[str]) -> str:
        config = parse_config(compose(overrides))
        return run_name(config, identity(config, "data", "float32", []))

    study = read_study(name)
    sweep = study.sweeps[-1]
    assert named(Variant(study).overrides_of_one(sweep)) == named([f"encoding={sweep.encodings[0]}", *more])


def _check_waiting(command: Command, own: Path, run: Path, printed: str) -> None:
    """Check that a run that another process works on is waited for before it is scored."""
    path = Path("fresh/studies/first-files.json")
    steps = {key: step for key, step in json.loads(path.read_text()).items() if " | " not in key}
    assert len(steps) == 1
    path.write_text(json.dumps(steps))
    lock = f"filelock.FileLock({str(run / 'lock')!r})"
    holding = f"import filelock, time\nwith {lock}: print(flush=True); time.sleep(3)"
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        outcome = command(*arguments(own, "first", "fresh"))
    assert outcome.code == 0 and outcome.out == printed
    assert f"waits for another process that is working on {run}" in outcome.err


@pytest.mark.full
def test_two_studies_at_the_same_time_wait_for_each_other_and_train_nothing_twice(own: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pe_bench"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env}
    processes = [
        subprocess.Popen([*command, *arguments(own, name, "both")], **pipes) for name in ("first", "second")
    ]
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "not scored" not in out
    assert trainings("both") == sorted(path.name for path in Path("both/runs").iterdir())
