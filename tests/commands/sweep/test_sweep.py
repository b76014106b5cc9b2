"""Sweeps: jobs end independently, failures are reported, and the same command does the rest."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from support.commands import at_work, living, start, write_corpus

from pe_bench.commands.sweep.jobs import DONE, FAILED, LaunchedSweep, run_job
from pe_bench.commands.sweep.run import launch
from pe_bench.config.sweeps import PlannedJob, plan_jobs
from pe_bench.runs.rows import read_rows
from pe_bench.training.checkpoint import latest_checkpoint

full = pytest.mark.full
# An encoding that ends its process in the way that is asked for, where it is a job's own.
ENDING = """
import multiprocessing, os, signal, time
from pe_bench.encodings.nope import NoPE

class Ending(NoPE):
    def __init__(self, end: str = "well"):
        super().__init__()
        self.end = end

    def logit_scale(self, queries):
        is_job = multiprocessing.parent_process() is not None
        is_late = self.end == "late" and queries.index.max() >= 16  # past the training length
        if is_late or (is_job and self.end == "raise"):
            raise RuntimeError("it ended badly\\nas it was asked to")
        if is_job and self.end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_job and self.end == "slow":
            time.sleep(1)  # so that a second Ctrl-C comes within a step
"""
LAUNCHERS = {
    "basic": [],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra/launcher=submitit_local"],
    "ray": ["hydra/launcher=ray", "+hydra.launcher.ray.init.include_dashboard=false"],
}
each_launcher = pytest.mark.parametrize(
    "launcher", [name if name == "joblib" else pytest.param(name, marks=full) for name in LAUNCHERS]
)


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


def pe_bench(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a sweep. Return its exit code and what it printed."""
    process = start(folder, *arguments)
    out, err = process.communicate()
    return process.returncode, out, err


def ending(folder: Path, launcher: str, ends: str) -> list[str]:
    (folder / "ending.py").write_text(ENDING)
    return ["-m", f"encoding={folder}/ending.py:Ending", f"encoding.end={ends}", *LAUNCHERS[launcher]]


def finished(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in (folder / "results" / "runs").glob("*/result.json"))


@each_launcher
def test_jobs_end_independently_and_the_same_command_does_only_what_is_missing(tmp_path, launcher):
    code, out, err = pe_bench(tmp_path, *ending(tmp_path, launcher, "raise,well,kill"))
    assert code == 1 and len(finished(tmp_path)) == 1, err
    assert "3 jobs: 1 done, 2 failed" in err and "the same command does what is missing" in err
    assert len({row.run for row in read_rows(tmp_path / "results" / "results.csv")}) == 1
    assert out.count("works to") == 1, "one table of all that is done"
    assert "  failed: encoding.end=raise: " in err and "it ended badly" in err
    assert "  failed: encoding.end=kill: killed by SIGKILL, by someone or for lack of memory" in err
    (folder,) = (tmp_path / "results" / "sweeps").iterdir()
    assert [job.state for job in LaunchedSweep(folder).states()] == [FAILED, DONE, FAILED]
    files = list((tmp_path / "results").glob("runs/*/checkpoints/*/*.safetensors"))
    before = {path: path.stat().st_mtime_ns for path in files}
    code, _, err = pe_bench(tmp_path, *ending(tmp_path, launcher, "well"))
    assert code == 0 and "1 job, done already" in err, err
    assert before == {path: path.stat().st_mtime_ns for path in files}, "nothing is trained twice"


def test_a_job_that_fails_at_some_lengths_has_failed_and_the_others_are_shown(train, folder):
    outcome = train(*ending(folder, "basic", "late"))
    assert outcome.code == 1 and "1 job: 0 done, 1 failed" in outcome.err, outcome.err
    assert "could not be scored at 32" in outcome.err and "works to" in outcome.out


def test_a_job_s_file_is_its_configuration_and_one_that_cannot_be_read_fails_alone(tmp_path):
    sweep = LaunchedSweep(tmp_path)
    path = "a: #b${seed}, 'c'\\"
    encoding = ["encoding=local_global", "modifier=[logn]", "encoding.global={name: yarn, factor: 2}"]
    values = {"data.path": path, "train.lr": 1e-05, "train.betas": [0, 0.5], "model.name": "null"}
    [job] = plan_jobs(["data=files", *encoding], values=values)
    sweep.write_job(3, job)
    assert sweep.read_job(3) == PlannedJob(job.label, job.config) and job.config.data.path == path
    sweep.file(4, "yaml").write_text("{")
    run_job(sweep, 4)
    [state] = sweep.states()
    assert (state.number, state.state) == (4, FAILED) and state.text


def test_a_job_that_cannot_start_keeps_no_other_job_from_running(tmp_path, monkeypatch):
    started: list[int] = []

    def run(sweep: LaunchedSweep, number: int) -> None:
        started.append(number)
        if number == 1:
            raise OSError("cannot allocate memory")

    monkeypatch.setattr("pe_bench.commands.sweep.run.run_job", run)
    text = ["data=files", f"data.path={tmp_path}/corpus", "train.length=32"]
    jobs = plan_jobs(["encoding=rope,nope,alibi", f"results_dir={tmp_path}", *text])
    summary = launch(jobs)
    assert started == [0, 1, 2]
    assert "cannot allocate memory" in summary.problem


@each_launcher
def test_a_stopped_sweep_saves_its_running_jobs(tmp_path, launcher):
    long = ["train.steps=20000", "train.validate_every=20000", "-m", "encoding=nope,alibi"]
    process = at_work(tmp_path, *long, *LAUNCHERS[launcher])
    if launcher == "submitit_local":  # whose own processes do not live through Ctrl-C
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    told, runs = process.communicate()[1], tmp_path / "results" / "runs"
    assert process.returncode == 130, told
    assert re.search(r"stopped at step \d+ of 20000, which is saved", told)
    assert "pe-bench: stopped; the same command does what is missing" in told
    assert not list(runs.glob("*/result.json")) and not list(runs.glob("*/error.txt"))
    assert latest_checkpoint(next(runs.glob("*/checkpoints"))) is not None


@full
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_jobs_save_their_step_after_their_command_quits_and_none_survives(tmp_path, launcher, is_killed):
    unread = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = at_work(tmp_path, *ending(tmp_path, launcher, "slow"), "seed=1,2", **unread)
    if is_killed:
        process.kill()
        process.wait()
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.8)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == 130
    ended = time.monotonic() + 60
    while living(process.pid) and time.monotonic() < ended:
        time.sleep(0.2)
    assert living(process.pid) == []
    runs = tmp_path / "results" / "runs"
    steps = sorted(int(path.name[5:]) for path in runs.glob("*/checkpoints/step-*"))
    assert steps[-1] > 2, "what comes after the checkpoint that was due"
    assert not list(runs.glob("*/error.txt"))


@full
def test_jobs_that_score_one_run_wait_for_each_other_and_say_for_which(tmp_path):
    both = ["-m", "encoding=nope", "eval.protocol=paired,sliding", *LAUNCHERS["joblib"]]
    assert pe_bench(tmp_path, *both)[0] == 0
    (run,) = (tmp_path / "results" / "runs").iterdir()
    assert {row.protocol for row in read_rows(run / "eval.csv")} == {"paired", "sliding"}
    waits = f"waits for another process that is working on {run}\n"
    with FileLock(run / "lock"), (tmp_path / "told").open("w") as told:
        unread = {"stdout": subprocess.DEVNULL, "stderr": told}
        process = at_work(tmp_path, "-m", "encoding=nope", "eval.lengths=[16,24]", "seed=0,1", **unread)
        while waits not in (tmp_path / "told").read_text():
            time.sleep(0.1)
            assert process.poll() is None
    assert process.wait(timeout=120) == 0


def test_each_value_of_a_scoring_option_has_a_table_and_a_repeat_shows_the_requested_one(train):
    both = train("-m", "encoding=nope", "eval.targets=6,12")
    first, second = re.split(r"\n+tiny, changed", both.out)
    again = train("-m", "encoding=nope", "eval.targets=6")
    assert "1 job, done already" in again.err
    level = re.compile(r"^nope +.*", re.MULTILINE)
    assert level.findall(again.out) == level.findall(first) != level.findall(second)


def test_a_plan_has_one_checked_command_in_each_line_and_xargs_runs_them_side_by_side(train, folder):
    arguments = ["-m", "encoding=nope,alibi", "--plan", "plan"]
    assert train(*arguments, "train.lr=0.1,x").code == 2 and not Path("plan").exists()
    outcome = train(*arguments, *LAUNCHERS["joblib"])
    assert outcome.code == 0 and "plan: the commands of 2 jobs; each does what is missing" in outcome.err
    assert not (folder / "results").exists(), "nothing is trained"
    lines = Path("plan").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["pe-bench", "train"]] * 2 and "hydra" not in lines[0]
    assert "one: the commands of 1 job; each" in train("encoding=nope", "--plan", "one").err
    printed = train("encoding=nope", "--plan", "-")
    assert printed.out == Path("one").read_text() and not Path("-").exists()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    xargs = ["xargs", "-P", "2", "-I{}", "-a", "plan", "sh", "-c", "{}"]
    subprocess.run(xargs, env={**os.environ, "PATH": path}, check=True, capture_output=True)
    assert [name.split("-")[0] for name in finished(folder)] == ["alibi", "nope"]


def test_the_xargs_of_the_page_on_sweeps_keeps_the_quotes_of_a_plan(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()
    (line,) = (line.partition("#")[0] for line in page.splitlines() if "xargs" in line and "plan.txt" in line)
    words = ["pe-bench", "train", "model.name='a \"b'", "data.path=it's here", "x=$HOME\\"]
    (tmp_path / "plan.txt").write_text(f"{shlex.join(words)}\n" * 3)
    program = tmp_path / "pe-bench"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    one_by_one = ["sh", "-c", line.replace("-P 4", "-P 1")]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(one_by_one, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == words[1:] * 3, done.stderr
