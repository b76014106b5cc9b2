"""The facts about its machine that a run uses."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from pe_bench.errors import UserError
from pe_bench.system import machine
from pe_bench.system.machine import (
    PeakMemory,
    available_cores,
    environment,
    git_commit,
    resolve_device,
    resolve_precision,
    today,
)

CPU = torch.device("cpu")
needs_reset = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="this system cannot reset its count"
)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("gpus")
def test_auto_takes_a_gpu_where_there_is_one() -> None:
    assert resolve_device("auto").type == "cuda"
    for name in ("cpu", "cuda", "cuda:1"):
        assert resolve_device(name) == torch.device(name)


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_processor_elsewhere_and_a_gpu_that_is_not_there_names_the_way_out() -> None:
    assert resolve_device("auto") == CPU
    for name in ("cuda", "cuda:0", "cuda:3"):
        with pytest.raises(UserError, match=rf"device={name} was not found \(GPUs here: 0\): say device=cpu"):
            resolve_device(name)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", ["cuda:2", "cuda:99999", "cuda:x", "cuda:-1", "cuda:", "cuda:1:0", "tpu"])
def test_an_unknown_device_is_refused_with_the_existing_ones(name: str) -> None:
    missing = rf"device={name} was not found \(GPUs here: 2\)"
    told = missing if name[5:].isdecimal() else "must be auto, cpu, cuda or cuda:N, not"
    with pytest.raises(UserError, match=told):
        resolve_device(name)


@pytest.mark.usefixtures("gpus")
def test_auto_precision_follows_the_device_and_others_are_obeyed() -> None:
    def resolved(precision: str, device: str) -> torch.dtype:
        return resolve_precision(precision, device)

    assert resolved("auto", "cpu") == torch.float32
    assert resolved("auto", "cuda") == resolved("auto", "auto") == torch.bfloat16
    assert resolved("float32", "cuda") == torch.float32
    assert resolved("bfloat16", "cpu") == torch.bfloat16


def megabytes(count: int) -> torch.Tensor:
    return torch.ones(count * 2**18)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("20000 100000", 1),
        ("1600000 100000", 6),
        ("max 100000", 6),
    ],
)
def test_a_container_that_has_a_share_of_the_processors_has_that_many_cores(
    tmp_path, monkeypatch, quota, cores
):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(6)), raising=False)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert available_cores(tmp_path / "cpu.max") == cores
    assert available_cores(tmp_path / "none") == 6
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert available_cores(tmp_path / "cpu.max") == min(cores, 4)


@needs_reset
def test_the_peak_includes_memory_freed_inside_and_none_from_before() -> None:
    with PeakMemory(CPU) as quiet:
        megabytes(1)
    before = megabytes(256)
    del before
    with PeakMemory(CPU) as peak:
        megabytes(128)
    assert quiet.mb is not None and peak.mb is not None
    assert 100 < peak.mb - quiet.mb < 156


@pytest.mark.parametrize("lacking", ["_CLEAR_HIGHEST", "_STATUS"])
def test_without_the_kernel_s_count_the_peak_is_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """A count since the process began would be that of what training took before."""
    monkeypatch.setattr(machine, lacking, tmp_path / "missing")
    with PeakMemory(CPU) as peak:
        megabytes(16)
    assert peak.mb is None
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_refuses_the_reset_leaves_the_peak_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CLEAR_HIGHEST", tmp_path)  # found, and not writable as a file
    with PeakMemory(CPU) as peak:
        pass
    assert peak.mb is None


def test_the_environment_records_what_a_score_depends_on() -> None:
    found = environment(CPU, 2)
    assert found["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["threads"] == 2
    assert found["cores"] == available_cores()
    assert {"pe_bench", "git", "python", "platform", "processor", "date"} <= found.keys()


def test_dates_are_in_utc() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", today())


def test_a_checkout_knows_its_commit_and_an_installed_package_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    commit = git_commit.__wrapped__
    assert commit() == ""

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True, text=True
        ).stdout

    (tmp_path / "pe_bench").mkdir()
    (tmp_path / "pe_bench" / "versions.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("tag", "-a", "v1", "-m", "a release")
    head = git("rev-parse", "HEAD").strip()
    assert commit() == head[:12]
    states = []
    for text in ("changed", "changed again"):
        (tmp_path / "pe_bench" / "versions.py").write_text(text)
        states.append(commit())
    assert all(re.fullmatch(rf"{head[:12]}\+[0-9a-f]{{8}}", state) for state in states)
    assert states[0] != states[1] and states[1] == commit()
