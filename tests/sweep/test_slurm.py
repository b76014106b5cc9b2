"""Sweeps under submitit's Slurm launcher, with commands of our own in place of `sbatch` and the rest."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import children_of, losses, tiny_overrides, write_corpus

from pe_bench.training.checkpoint import final_checkpoint, latest_checkpoint

JOB = 71
# Each runs what Slurm would: the script once for each task of a job array, in the background, and again when
# a task is requeued; and what is in the script on each of its machines, which are all this one.
COMMANDS = {
    "sbatch": f"""
        for script; do :; done
        cp "$script" "$FAKE_SLURM/script"
        last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
        for task in $(seq 0 "${{last:-0}}"); do fake-task "$task" >"$FAKE_SLURM/output-$task" 2>&1 & done
        echo "Submitted batch job {JOB}"
    """,
    "fake-task": f"""
        export SLURM_JOB_ID={JOB}
        if grep -q "^#SBATCH --array" "$FAKE_SLURM/script"; then
            export SLURM_JOB_ID=$(({JOB} + 1 + $1)) SLURM_ARRAY_JOB_ID={JOB} SLURM_ARRAY_TASK_ID=$1
        fi
        nodes=$(sed -n 's/^#SBATCH --nodes=//p' "$FAKE_SLURM/script")
        export SLURM_JOB_NUM_NODES=$nodes SLURM_NTASKS=$nodes SLURM_LOCALID=0
        export SLURM_JOB_NODELIST=localhost,other
        exec bash "$FAKE_SLURM/script"
    """,
    "srun": """
        while [ "${1#-}" != "$1" ]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
        for node in $(seq 0 $((SLURM_JOB_NUM_NODES - 1))); do
            SLURM_NODEID=$node SLURM_PROCID=$node "$@" &
            echo $! >"$FAKE_SLURM/pid-${SLURM_ARRAY_TASK_ID:-0}-$node"
        done
        wait
    """,
    "scontrol": """
        echo "$@" >>"$FAKE_SLURM/scontrol"
        export SLURM_RESTART_COUNT=$((${SLURM_RESTART_COUNT:-0} + 1))
        fake-task "${2##*_}" >>"$FAKE_SLURM/output-requeued" 2>&1 &
    """,
    "sacct": "echo 'JobID|State|NodeList'",
    "squeue": "true",
}
pytestmark = pytest.mark.full


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the commands keep."""
    commands, kept = tmp_path / "bin", tmp_path / "slurm"
    commands.mkdir()
    kept.mkdir()
    for name, text in COMMANDS.items():
        (commands / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(kept))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_corpus(tmp_path / "corpus")
    return kept


def start(folder: Path, *arguments: str, encoding: str = "nope,alibi") -> subprocess.Popen[str]:
    launcher = [
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=long",
        "hydra.launcher.timeout_min=600",
    ]
    command = [
        sys.executable,
        "-m",
        "pe_bench",
        "train",
        *tiny_overrides(folder),
        "-m",
        f"encoding={encoding}",
    ]
    return subprocess.Popen(
        [*command, *launcher, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def test_the_script_asks_slurm_for_what_the_arguments_say_and_every_job_ends(tmp_path, slurm):
    process = start(tmp_path, "hydra.launcher.cpus_per_task=2", "hydra.launcher.array_parallelism=5")
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "2 jobs: 2 done" in told and "paired protocol" in out
    script = (slurm / "script").read_text()
    for line in (
        "partition=long",
        "array=0-1%2",
        "nodes=1",
        "cpus-per-task=2",
        "time=600",
        "signal=USR2@120",
        "open-mode=append",
    ):
        assert f"#SBATCH --{line}\n" in script
    assert re.search(r"^srun .* -m submitit.core._submit ", script, re.MULTILINE)


def shown_step(folder: Path) -> int:
    """How far the first job of a sweep says that it is; 0 before it does."""
    states = list((folder / "results").glob("sweeps/*/jobs/0000.json"))
    found = re.match("step ([0-9]+) of", json.loads(states[0].read_text())["text"]) if states else None
    return int(found[1]) if found else 0


TWO_MACHINES = ("hydra.launcher.nodes=2", "train.processes=4")


@pytest.mark.parametrize("machines", [(), TWO_MACHINES], ids=["one machine", "two machines"])
def test_the_signal_before_the_end_of_the_time_saves_requeues_and_goes_on(tmp_path, slurm, machines):
    steps = 400 if machines else 3000
    arguments = (f"train.steps={steps}", "train.checkpoint_every=100", f"train.validate_every={steps}")
    process = start(tmp_path, *arguments, *machines)
    runs = tmp_path / "results" / "runs"
    # Between two checkpoints: what is saved then is saved for the signal.
    wait_for(process, lambda: 5 <= shown_step(tmp_path) % 100 <= 50)
    shown = shown_step(tmp_path)
    for task in slurm.glob("pid-0-*"):
        os.kill(int(task.read_text()), signal.SIGUSR2)
    wait_for(process, (slurm / "scontrol").exists)
    (sweep,) = (tmp_path / "results" / "sweeps").iterdir()
    assert "stopping after this step" in (sweep / "jobs" / "0000.log").read_text()
    (saved,) = runs.glob("nope-*/checkpoints")
    stopped = latest_checkpoint(saved)
    assert stopped is not None and stopped.meta.step >= shown, "saved before it was put back"
    told = process.communicate(timeout=300)[1]
    assert (slurm / "scontrol").read_text() == f"requeue {JOB}_0\n"
    assert process.returncode == 0, told
    assert "2 jobs: 2 done" in told
    assert all(final_checkpoint(run, steps) is not None for run in runs.iterdir())


def test_two_machines_take_the_steps_of_one(tmp_path, slurm):
    process = start(tmp_path, *TWO_MACHINES, "train.log_every=1", encoding="shaw")
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "1 job: 1 done" in told and "paired protocol" in out
    alone = start(tmp_path, "results_dir=alone", "train.log_every=1", encoding="shaw")
    alone.communicate(timeout=300)
    (run,) = (tmp_path / "results" / "runs").iterdir()
    assert losses(run) == pytest.approx(losses(tmp_path / "alone" / "runs" / run.name), rel=1e-5)
    again = start(tmp_path, *TWO_MACHINES, "train.log_every=1", encoding="shaw")
    told = again.communicate(timeout=300)[1]
    assert again.returncode == 0 and "done before" in told, "nothing is left to take part in"


def generations_of(pid: int) -> list[list[int]]:
    """Its children, their children, and so on."""
    found = [[pid]]
    while found[-1]:
        found.append([child for parent in found[-1] for child in children_of(parent)])
    return found[1:-1]


@pytest.mark.parametrize("machine", [0, 1])
def test_a_process_that_is_lost_on_a_machine_ends_the_job_and_the_command_goes_on(tmp_path, slurm, machine):
    arguments = ("train.steps=400", "train.checkpoint_every=20", "train.validate_every=400")
    process = start(tmp_path, *TWO_MACHINES, *arguments, encoding="nope")
    runs = tmp_path / "results" / "runs"
    wait_for(process, lambda: bool(list(runs.glob("nope-*/checkpoints/step-*"))))
    workers = generations_of(int((slurm / f"pid-0-{machine}").read_text()))[-1]
    os.kill(workers[-1], signal.SIGKILL)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    lost = rf"rank [{2 * machine}{2 * machine + 1}] of 4 processes was lost"
    assert re.search(f"failed: job 0: {lost}", told), told
    again = start(tmp_path, *arguments, encoding="nope")
    told = again.communicate(timeout=300)[1]
    assert again.returncode == 0 and "1 job: 1 done" in told
    (run,) = runs.iterdir()
    assert final_checkpoint(run, 400) is not None
