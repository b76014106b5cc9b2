"""The facts about its machine that a run uses, its threads beside other processes, and its memory."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pe_bench.errors import UserError
from pe_bench.system import machine

CPU = torch.device("cpu")
UNKNOWN = "must be auto, cpu, cuda or cuda:N, not"


def simulate_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("gpus", "name", "precision", "device", "dtype"),
    [
        (2, "auto", "auto", "cuda", torch.bfloat16),
        (2, "cuda:1", "float32", "cuda:1", torch.float32),
        (2, "cpu", "auto", "cpu", torch.float32),
        (0, "auto", "bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_auto_takes_a_gpu_and_its_precision_follows(monkeypatch, gpus, name, precision, device, dtype):
    simulate_gpus(monkeypatch, gpus)
    assert machine.resolve_device(name) == torch.device(device)
    assert machine.resolve_precision(precision, machine.resolve_device(name)) == dtype


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cuda:2", r"device=cuda:2 was not found \(GPUs here: 2\): say device=cpu"),
        *((name, UNKNOWN) for name in ("cuda:x", "cuda:-1", "cuda:", "cuda:1:0", "tpu")),
    ],
)
def test_an_unknown_device_is_refused_with_the_way_out(monkeypatch, name, told) -> None:
    simulate_gpus(monkeypatch, 2)
    with pytest.raises(UserError, match=told):
        machine.resolve_device(name)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_of_torchrun_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, str(rank))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    simulate_gpus(monkeypatch, 1)
    with pytest.raises(UserError, match="2 processes here, which need as many GPUs, not 1"):
        machine.resolve_device("auto")
    simulate_gpus(monkeypatch, 2)
    assert machine.resolve_device("auto") == torch.device("cuda", rank) and chosen == [rank]


def test_cores_are_those_of_affinity_of_a_containers_quota_and_of_slurm(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(6)), raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    quota = tmp_path / "cpu.max"
    assert machine.available_cores(quota) == 6
    for text, cores in [("100000 100000", 1), ("150000 100000", 2), ("1600000 100000", 6), ("max 100000", 6)]:
        quota.write_text(f"{text}\n")
        assert machine.available_cores(quota) == cores
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert machine.available_cores(quota) == 4


def test_a_checkout_knows_its_commit_and_an_installed_package_has_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    commit = machine.git_commit.__wrapped__
    assert commit() == ""
    (tmp_path / "file.py").touch()
    git = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false"
    script = f"git init -q && git add . && {git} commit -q -m first && git rev-parse HEAD"
    head = subprocess.run(script, shell=True, cwd=tmp_path, capture_output=True, text=True).stdout[:12]
    assert len(commit()) == 12 and commit() == head
    (tmp_path / "file.py").write_text("changed")
    assert commit() == f"{head}+"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    machine.set_threads(before)


@pytest.mark.usefixtures("threads")
def test_threads_are_the_requested_number_or_all_cores_up_to_openmps_limit(monkeypatch) -> None:
    with monkeypatch.context() as larger:
        larger.setattr(machine, "available_cores", lambda: 3)
        assert machine.set_threads(3) == torch.get_num_threads() == 3
    assert machine.set_threads("auto") == torch.get_num_threads() == machine.available_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", "1,4")
    assert machine.set_threads("auto") == 1


@pytest.mark.usefixtures("threads")
def test_a_number_of_threads_of_a_larger_machine_is_cut_to_the_cores_and_said(monkeypatch, capsys) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    for _ in range(2):
        assert machine.set_threads(1000) == torch.get_num_threads() == 2
    fewer = "this process may use 2 cores, so threads=1000 means 2: threads=auto fits any machine"
    assert capsys.readouterr().err == f"warning: {fewer}\n"
    assert machine.set_threads(2) == 2 and capsys.readouterr().err == ""


def test_others_compute_what_our_cores_are_busy_without_ourselves(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 2}, raising=False)
    monkeypatch.setattr("os.sysconf", lambda name: 1)
    monkeypatch.setattr("time.process_time", lambda: 1.5)
    (tmp_path / "stat").write_text("cpu 9\ncpu0 1 2 4 8 16 32 64 128\ncpu1 9\ncpu2 1 0 0 0 0 0 0 0\n")
    assert machine.measure_other_processes(tmp_path / "stat")[1] == 1 + 2 + 4 + 32 + 64 + 128 + 1 - 1.5


@pytest.mark.parametrize(
    ("setting", "cores", "elsewhere", "count"),
    # Where a container may use two of four cores, and one is taken, the other two are free.
    [("auto", 4, 2.0, 2), ("auto", 4, 3.5, 1), ("auto", 4, -2.0, 4), ("auto", 2, 1.0, 2), (4, 4, 2.0, 4)],
)
@pytest.mark.usefixtures("threads")
def test_with_auto_a_run_takes_the_cores_that_are_free(monkeypatch, setting, cores, elsewhere, count) -> None:
    looks = iter([(0.0, 50.0), (1.0, 50.0 + elsewhere)])
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(machine, "available_cores", lambda: cores)
    monkeypatch.setattr(machine, "measure_other_processes", lambda: next(looks))
    machine.set_threads(setting)
    machine.adapt_threads()
    assert torch.get_num_threads() == count


@pytest.mark.usefixtures("threads")
def test_a_run_alone_shares_its_cores_from_its_first_step_and_its_first_score_on(train, monkeypatch) -> None:
    shared: dict[str, object] = {}
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    for name in ("training.trainer.adapt_threads", "scoring.scorer.adapt_threads"):
        monkeypatch.setattr(f"pe_bench.{name}", lambda by=name: shared.setdefault(by, machine._shared))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert train("encoding=nope", "threads=auto").code == 0 and len(shared) == 2 and all(shared.values())


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system cannot reset its count")
def test_the_peak_includes_memory_freed_inside_and_none_from_before(tmp_path, monkeypatch) -> None:
    def peak_of(megabytes: int) -> float | None:
        with machine.PeakMemory(CPU) as peak:
            torch.ones(megabytes * 2**18)
        return peak.mb

    peak_of(256)
    quiet, peak = peak_of(1), peak_of(128)
    assert quiet is not None and peak is not None and 100 < peak - quiet < 156
    monkeypatch.setattr(machine, "_CLEAR_HIGHEST", tmp_path)  # a folder cannot be written as a file
    assert peak_of(16) is None
