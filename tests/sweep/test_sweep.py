"""Sweeps: jobs end independently, failures are reported, and the same command does the rest."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from support.commands import living, tiny_overrides, write_corpus
from support.sweeps import states

from pe_bench.errors import UserError
from pe_bench.runs.rows import read_rows
from pe_bench.sweep.check import Swept
from pe_bench.sweep.jobs import DONE, FAILED, RUNNING, JobProgress, SweepFolder
from pe_bench.sweep.run import _launched, _new_folder
from pe_bench.system.signals import Stopped
from pe_bench.training.checkpoint import latest_checkpoint

# An encoding that ends its process in the way that is asked for, where it is a job's own.
ENDING = """
import multiprocessing, os, signal
from pe_bench.encodings.nope import NoPE


class Ending(NoPE):
    def __init__(self, end: str = "well"):
        super().__init__()
        self.end = end

    def logit_scale(self, queries):
        if multiprocessing.parent_process() is not None:
            {"raise": _fail, "kill": _kill}.get(self.end, bool)()
        return None


def _fail():
    raise RuntimeError("it ended badly\\nas it was asked to")


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)
"""
LAUNCHERS = {
    "basic": [],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra/launcher=submitit_local"],
    "ray": ["hydra/launcher=ray", "+hydra.launcher.ray.init.include_dashboard=false"],
}
SLOW = ("basic", "submitit_local", "ray")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}


def pe_bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pe_bench", "train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment())


each_launcher = pytest.mark.parametrize(
    "launcher", [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in LAUNCHERS]
)


def ending_arguments(folder: Path, launcher: str, ends: str) -> list[str]:
    write_corpus(folder / "corpus")
    (folder / "own" / "encoding").mkdir(parents=True, exist_ok=True)
    (folder / "own" / "ending.py").write_text(ENDING)
    yaml = f"name: ending\nclass: {folder}/own/ending.py:Ending\nend: well\n"
    (folder / "own" / "encoding" / "ending.yaml").write_text(yaml)
    arguments = [argument for argument in tiny_overrides(folder) if argument != "threads=1"]
    own = ["--config-dir", str(folder / "own")]
    return [*arguments, "-m", "encoding=ending", f"encoding.end={ends}", *own, *LAUNCHERS[launcher]]


def finished(folder: Path) -> list[Path]:
    return [path.parent for path in (folder / "results" / "runs").glob("*/result.json")]


def tensors(folder: Path) -> dict[Path, int]:
    derived = "means.safetensors"  # of the scores, and made anew with them
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors") if path.name != derived}


@each_launcher
def test_jobs_end_independently_and_the_same_command_does_only_what_is_missing(tmp_path, launcher):
    done = pe_bench(tmp_path, *ending_arguments(tmp_path, launcher, "raise,well,kill"))
    assert done.returncode == 1
    assert "3 jobs: 1 done, 2 failed" in done.stderr, done.stderr
    assert len(finished(tmp_path)) == 1
    assert len({row.run for row in read_rows(tmp_path / "results" / "results.csv")}) == 1
    assert done.stdout.count("works to") == 1, "one table of all that is done"
    # Why, in the summary and in the directory.
    assert "  failed: encoding.end=raise: " in done.stderr and "it ended badly" in done.stderr
    assert "  failed: encoding.end=kill: killed by SIGKILL, by someone or for lack of memory" in done.stderr
    (folder,) = (tmp_path / "results" / "sweeps").iterdir()
    found = SweepFolder(folder).states()
    assert [state.state for state in found] == [FAILED, DONE, FAILED]
    assert [state.label for state in found] == [f"encoding.end={end}" for end in ("raise", "well", "kill")]
    assert "Traceback" in SweepFolder(folder).log(0).read_text()
    # What repeats only the failures.
    script = re.search(r"to retry them: the same command, or one by one: sh (\S+)", done.stderr)
    assert script is not None
    lines = (tmp_path / script.group(1)).read_text().splitlines()
    commands = [line for line in lines if line.startswith("pe-bench")]
    assert [re.findall("encoding.end=([a-z]+)", command) for command in commands] == [["raise"], ["kill"]]
    assert all("--config-dir" in command and "hydra" not in command for command in commands)
    before = tensors(tmp_path)
    arguments = ending_arguments(tmp_path, launcher, "well")
    if launcher in SLOW:
        arguments.append("eval.lengths=[16,32,64]")
        assert "1 job: 1 done" in pe_bench(tmp_path, *arguments).stderr, "a length was missing"
    again = pe_bench(tmp_path, *arguments)
    assert again.returncode == 0, again.stderr
    assert "1 job, done already" in again.stderr
    assert before.items() <= tensors(tmp_path).items(), "nothing is trained or scored twice"


@each_launcher
def test_a_stopped_sweep_saves_its_running_jobs(tmp_path, launcher):
    write_corpus(tmp_path / "corpus")
    arguments = [*tiny_overrides(tmp_path), "train.steps=20000", "train.validate_every=20000"]
    command = [sys.executable, "-m", "pe_bench", "train", *arguments, "-m", "encoding=nope,alibi"]
    process = subprocess.Popen(
        [*command, *LAUNCHERS[launcher]],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
    )
    runs = tmp_path / "results" / "runs"
    while not list(runs.glob("*/checkpoints/step-*")):
        time.sleep(0.05)
        assert process.poll() is None
    if launcher == "submitit_local":  # whose own processes do not live through Ctrl-C
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    told = process.communicate()[1]
    assert process.returncode == 130, told
    assert re.search(r"stopped at step \d+ of 20000, which is saved", told)
    assert "pe-bench: stopped; the same command does what is missing" in told
    assert not list(runs.glob("*/result.json")) and not list(runs.glob("*/error.txt"))
    assert latest_checkpoint(next(runs.glob("*/checkpoints"))) is not None


# Each step takes so long that a second Ctrl-C comes within it.
SLOW_STEP = """
import multiprocessing, time
from pe_bench.encodings.nope import NoPE


class SlowStep(NoPE):
    def logit_scale(self, queries):
        if multiprocessing.parent_process() is not None:
            time.sleep(1)
        return None
"""


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
@pytest.mark.parametrize("end", ["second", "kill"])
def test_jobs_save_their_step_after_their_command_quits_and_no_process_survives(tmp_path, launcher, end):
    write_corpus(tmp_path / "corpus")
    own = tmp_path / "own" / "encoding"
    own.mkdir(parents=True)
    (own / "slow_step.py").write_text(SLOW_STEP)
    (own / "slow_step.yaml").write_text("name: slow_step\nclass: slow_step.py:SlowStep\n")
    arguments = [
        *tiny_overrides(tmp_path),
        "-m",
        "encoding=slow_step",
        "seed=1,2",
        f"--config-dir={own.parent}",
    ]
    with (tmp_path / "told").open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "pe_bench", "train", *arguments, *LAUNCHERS[launcher]],
            cwd=tmp_path,
            env=environment(),
            stderr=told,
            start_new_session=True,
        )
    runs = tmp_path / "results" / "runs"
    while not list(runs.glob("*/checkpoints/step-*")):
        time.sleep(0.05)
        assert process.poll() is None
    if end == "second":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.8)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert "quitting; jobs will finish their step, save and exit" in (tmp_path / "told").read_text()
    else:
        process.kill()
        process.wait()
    ended = time.monotonic() + 60
    while living(process.pid) and time.monotonic() < ended:
        time.sleep(0.2)
    assert living(process.pid) == []
    steps = sorted(int(path.name[5:]) for path in runs.glob("*/checkpoints/step-*"))
    assert steps[-1] > 2, "what comes after the checkpoint that was due"
    assert not list(runs.glob("*/error.txt"))


@pytest.mark.full
def test_a_job_reports_which_run_it_waits_for(tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus")
    arguments = [*tiny_overrides(tmp_path), "-m", "encoding=nope", "seed=0,1"]
    assert pe_bench(tmp_path, *arguments, "train.steps=2").returncode == 0
    (held, _) = sorted((tmp_path / "results" / "runs").glob("nope-*"))
    waits = f"seed=0: waits for another process that is working on {held}\n"
    with FileLock(held / "lock"), (tmp_path / "told").open("w") as told:
        command = [
            sys.executable,
            "-m",
            "pe_bench",
            "train",
            *arguments,
            "train.steps=2",
            "eval.lengths=[16,24]",
        ]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=told)
        while waits not in (tmp_path / "told").read_text():
            time.sleep(0.1)
            assert process.poll() is None
    assert process.wait(timeout=60) == 0


@pytest.mark.full
def test_jobs_that_score_one_run_wait_for_each_other(tmp_path):
    write_corpus(tmp_path / "corpus")
    arguments = [*tiny_overrides(tmp_path), "-m", "eval.protocol=paired,sliding", *LAUNCHERS["joblib"]]
    done = pe_bench(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results" / "runs").iterdir()
    assert {row.protocol for row in read_rows(run / "eval.csv")} == {"paired", "sliding"}


def test_each_value_of_a_scoring_option_has_a_table_and_a_repeat_shows_the_requested_one(train):
    both = train("-m", "encoding=nope", "eval.targets=6,12")
    titles = re.findall("^eval.targets=([0-9]+): other values", both.out, re.MULTILINE)
    assert titles == ["6", "12"], both.out
    assert both.out.count("works to") == 2
    first, second = both.out.split("\n\ntiny model")
    again = train("-m", "encoding=nope", "eval.targets=6")
    assert "1 job, done already" in again.err
    level = re.compile(r"^nope +.*", re.MULTILINE)
    assert level.findall(again.out) == level.findall(first) != level.findall(second)


def test_each_sweep_gets_a_new_folder_inside_the_named_one():
    swept = Swept(("seed",), 2, Path("results"))
    first, second = (_new_folder(["hydra.sweep.dir='a b'"], swept) for _ in range(2))
    assert first.parent == second.parent == Path("a b") and first != second
    assert _new_folder([], swept).parent == Path("results/sweeps")
    assert _launched(["seed=0", "hydra.sweep.dir=x"], Path("/it's")) == [
        "seed=0",
        """hydra.sweep.dir="/it's\"""",
    ]
    with pytest.raises(UserError, match="name the folder as it is"):
        _new_folder(["hydra.sweep.dir=${results_dir}/x"], swept)


def test_a_signal_that_hydra_turns_into_an_error_stops_the_sweep_and_blames_no_launcher(
    train, folder, monkeypatch
):
    def stumbles(*given):
        try:
            raise Stopped
        finally:
            raise UnboundLocalError("cannot access local variable 'f'")

    monkeypatch.setattr("pe_bench.sweep.run.call_hydra", stumbles)
    outcome = train("-m", "encoding=nope,alibi")
    assert outcome.code == 130, outcome.err
    assert "launcher" not in outcome.err and "UnboundLocalError" not in outcome.err


def test_a_stop_request_creates_the_missing_folder(tmp_path):
    folder = SweepFolder(tmp_path / "new" / "sweep")
    folder.ask_to_stop()
    assert folder.is_stopped


def test_progress_that_cannot_be_written_ends_no_job(tmp_path):
    (tmp_path / "jobs").touch()  # no folder
    report = JobProgress(SweepFolder(tmp_path), states(RUNNING)[0])
    report.change(share=0.5)
    assert report.state.share == 0.5


def test_a_damaged_file_of_a_job_hides_no_other(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.write(states(DONE)[0])
    for number, text in enumerate(["", "{", "[]", '{"number": 3}'], 1):
        (tmp_path / "jobs" / f"000{number}.json").write_text(text)
    assert [state.number for state in folder.states()] == [0]


def test_values_of_a_key_that_takes_a_list_are_not_taken_as_lists_of_one(train, folder):
    result = train("-m", "encoding=nope", "eval.lengths=64,128")
    assert result.code == 2
    assert "'eval.lengths=[64,128]' for one list, 'eval.lengths=[...],[...]' for several" in result.err
    assert not list(folder.rglob("runs"))


def test_a_plan_has_a_checked_command_a_line_which_xargs_runs_side_by_side(tmp_path):
    write_corpus(tmp_path / "corpus")
    arguments = [*tiny_overrides(tmp_path), "-m", "encoding=nope,alibi", "--plan", "plan"]
    refused = pe_bench(tmp_path, *arguments, "train.lr=0.1,x")
    assert refused.returncode == 2 and not (tmp_path / "plan").exists()
    told = pe_bench(tmp_path, *arguments, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert told.returncode == 0 and "plan: 2 commands; each does what is missing" in told.stderr, told.stderr
    assert not (tmp_path / "results").exists(), "nothing is trained"
    lines = (tmp_path / "plan").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["pe-bench", "train"]] * 2 and "hydra" not in lines[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    xargs = ["xargs", "-P", "2", "-I{}", "-a", "plan", "sh", "-c", "{}"]
    subprocess.run(xargs, cwd=tmp_path, env={**environment(), "PATH": path}, check=True, capture_output=True)
    assert [run.name.split("-")[0] for run in sorted(finished(tmp_path))] == ["alibi", "nope"]
