"""Sweeps under submitit's Slurm launcher, with simulated `sbatch` and other commands."""

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
from support.commands import tiny_overrides, write_corpus

from pe_bench.training.checkpoint import final_checkpoint, latest_checkpoint

JOB = 71
# Each runs what Slurm would: the script once for each task of a job array, in the background, and again when
# a task is requeued; and what is in the script.
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
        export SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_JOB_NODELIST=localhost
        exec bash "$FAKE_SLURM/script"
    """,
    "srun": """
        while [ "${1#-}" != "$1" ]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
        SLURM_NODEID=0 SLURM_PROCID=0 "$@" &
        echo $! >"$FAKE_SLURM/pid-${SLURM_ARRAY_TASK_ID:-0}"
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
    """A folder with the files of the simulated commands."""
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


def test_the_slurm_script_requests_what_the_arguments_say_and_every_job_ends(tmp_path, slurm):
    process = start(tmp_path, "hydra.launcher.cpus_per_task=2", "hydra.launcher.array_parallelism=5")
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "2 jobs: 2 done" in told and "works to" in out
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
    """Return the step that the first job of a sweep reports, or 0."""
    states = list((folder / "results").glob("sweeps/*/jobs/0000.json"))
    found = re.match("step ([0-9]+) of", json.loads(states[0].read_text())["text"]) if states else None
    return int(found[1]) if found else 0


def test_the_signal_before_the_time_limit_saves_requeues_and_the_job_continues(tmp_path, slurm):
    steps = 3000
    arguments = (f"train.steps={steps}", "train.checkpoint_every=100", f"train.validate_every={steps}")
    process = start(tmp_path, *arguments)
    runs = tmp_path / "results" / "runs"
    # Between two checkpoints: what is saved then is saved for the signal.
    wait_for(process, lambda: 5 <= shown_step(tmp_path) % 100 <= 50)
    shown = shown_step(tmp_path)
    os.kill(int((slurm / "pid-0").read_text()), signal.SIGUSR2)
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
