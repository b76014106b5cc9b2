"""Sweeps on a real Slurm of one node, which each session of these tests starts for itself."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.commands import at_work, start, write_corpus

from pe_bench.training.checkpoint import final_checkpoint, latest_checkpoint

CAN_START = all(map(shutil.which, ("munged", "slurmctld", "slurmd"))) and os.getuid() == 0
pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(not CAN_START, reason="no slurm-wlm and munge here, which root can start"),
]
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,preempt_send_user_signal
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=long Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
SLURM = ["-m", "threads=auto", "hydra/launcher=submitit_slurm"]
SLURM += ["hydra.launcher.partition=long", "hydra.launcher.mem_gb=2"]
LONG = ["encoding=nope", "train.steps=1500", "train.checkpoint_every=100", "train.validate_every=1500"]
HOST = socket.gethostname().partition(".")[0]
# An encoding that takes three gigabytes in a job.
GREEDY = """
import multiprocessing, time
import torch
from pe_bench.encodings.nope import NoPE

class Greedy(NoPE):
    def logit_scale(self, queries):
        if multiprocessing.parent_process() is not None:
            self.taken = torch.ones(3 * 2**28)
            time.sleep(60)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    (folder / "munge" / "key").write_bytes(os.urandom(64))
    (folder / "munge" / "key").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=HOST, ports=ports))
    files = ("socket", "pid-file", "log-file", "seed-file")
    options = [f"--{name}={folder}/munge/{name.removesuffix('-file')}" for name in files]
    subprocess.run(["munged", "--force", f"--key-file={folder}/munge/key", *options], check=True)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    subprocess.run(["slurmctld"], check=True)
    subprocess.run(["slurmd"], check=True)
    while "idle" not in slurm("sinfo", "--noheader"):
        time.sleep(0.2)
    yield folder
    for pid in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
        os.kill(int((folder / pid).read_text()), signal.SIGTERM)
    del os.environ["SLURM_CONF"]


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def folder(cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_corpus(tmp_path / "corpus")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def end(process: subprocess.Popen[str], code: int) -> str:
    told = process.communicate(timeout=500)[1]
    assert process.returncode == code, told
    return told


def wait_for(process: subprocess.Popen[str], happened: Callable[[], object]) -> None:
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)


def test_a_sweep_has_the_cores_that_slurm_gives_and_no_page_of_warnings(folder):
    told = end(start(folder, "encoding=nope,alibi", *SLURM, "hydra.launcher.cpus_per_task=1"), 0)
    assert "2 jobs: 2 done" in told
    assert "sacct" not in told and "accounting" not in told, told
    runs = list((folder / "results" / "runs").iterdir())
    assert all('"threads": 1,' in (run / "environment.json").read_text() for run in runs)


def test_a_preempted_job_goes_on_bit_for_bit(folder):
    process = at_work(folder, *LONG, *SLURM)
    slurm("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap", "sleep 2")
    (run,) = (folder / "results" / "runs").iterdir()
    wait_for(process, lambda: "Restarts=1" in slurm("scontrol", "show", "jobs", "--oneliner"))
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None and checkpoint.step < 1500
    assert "1 job: 1 done" in end(process, 0)
    end(start(folder, *LONG, f"results_dir={folder / 'alone'}"), 0)
    finals = [final_checkpoint(path, 1500) for path in (run, folder / "alone" / "runs" / run.name)]
    one, other = (load_file(each.path / "weights.safetensors") for each in finals if each is not None)
    assert all((one[name] == other[name]).all() for name in one)


def test_a_drained_node_ends_its_job_as_usual_and_takes_the_next_after_it_resumes(folder):
    process = at_work(folder, *LONG, *SLURM, "seed=0,1", "hydra.launcher.cpus_per_task=2")
    slurm("scontrol", "update", f"nodename={HOST}", "state=drain", "reason=test")
    wait_for(process, lambda: "drained" in slurm("sinfo", "--noheader", "--format=%T"))
    assert len(list((folder / "results").glob("runs/*/result.json"))) == 1
    assert "PENDING" in slurm("squeue", "--noheader", "--format=%T")
    slurm("scontrol", "update", f"nodename={HOST}", "state=resume")
    assert "2 jobs: 2 done" in end(process, 0)


def test_a_cancelled_job_and_one_that_takes_too_much_memory_are_told(folder):
    process = at_work(folder, *LONG, "train.steps=100000", *SLURM)
    slurm("scancel", "--user=root")
    told = end(process, 1)
    assert "1 job: 0 done, 1 failed" in told and "the same command does what is missing" in told
    (folder / "greedy.py").write_text(GREEDY)
    assert "1 job: 0 done, 1 failed" in end(start(folder, f"encoding={folder}/greedy.py:Greedy", *SLURM), 1)


def test_an_array_runs_a_plan_and_a_job_that_fails_is_not_called_completed(folder):
    end(start(folder, "encoding=nope", "-m", "train.lr=0.005,1e30", "--plan", "plan"), 0)
    script = f'PATH={Path(sys.executable).parent}:$PATH; sed -n "${{SLURM_ARRAY_TASK_ID}}p" plan | sh'
    array = ["--array=1-2", "--mem=2000", f"--output={folder}/%a.log", f"--chdir={folder}", "--wait"]
    assert subprocess.run(["sbatch", *array, "--wrap", script]).returncode != 0
    jobs = slurm("scontrol", "show", "jobs", "--oneliner")
    states = re.findall(r"ArrayTaskId=(\d) .*?JobState=(\w+)", jobs)
    assert {"1": "COMPLETED", "2": "FAILED"}.items() <= dict(states).items(), jobs
    assert len(list((folder / "results").glob("runs/*/result.json"))) == 1
