"""What a run is told of its machine."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pe_bench import machine
from pe_bench.config import Config
from pe_bench.errors import UserError
from pe_bench.machine import (
    available_cores,
    environment,
    git_commit,
    peak_memory_mb,
    reset_peak_memory,
    resolve_device,
    resolve_precision,
    set_threads,
    today,
)

CPU = torch.device("cpu")
needs_reset = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="this system cannot reset its count"
)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two of them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("gpus")
def test_auto_takes_a_gpu_where_there_is_one() -> None:
    assert resolve_device("auto").type == "cuda"
    assert resolve_device("cpu") == CPU
    assert resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_processor_elsewhere() -> None:
    assert resolve_device("auto") == CPU


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_a_gpu_that_is_not_there_names_the_way_out(name: str) -> None:
    with pytest.raises(UserError, match=rf"device={name} is not here \(0 GPUs are\): say device=cpu"):
        resolve_device(name)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", ["cuda:2", "cuda:255", "cuda:99999"])
def test_gpus_are_counted_from_zero(name: str) -> None:
    with pytest.raises(UserError, match=rf"device={name} is not here \(2 GPUs are\)"):
        resolve_device(name)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", ["cuda:x", "cuda:-1", "cuda:", "cuda:1:0", "tpu"])
def test_a_device_that_is_none_is_told_with_what_there_is(name: str) -> None:
    with pytest.raises(UserError, match="must be auto, cpu, cuda or cuda:N, not"):
        resolve_device(name)


@pytest.mark.usefixtures("gpus")
def test_auto_precision_follows_the_device_and_others_are_obeyed() -> None:
    def resolved(precision: str, device: str) -> torch.dtype:
        return resolve_precision(Config({}, precision=precision, device=device))  # type: ignore[arg-type]

    assert resolved("auto", "cpu") == torch.float32
    assert resolved("auto", "cuda") == resolved("auto", "auto") == torch.bfloat16
    assert resolved("float32", "cuda") == torch.float32
    assert resolved("bfloat16", "cpu") == torch.bfloat16


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_threads_are_what_was_asked_for_or_every_core_there_is() -> None:
    assert set_threads(3) == torch.get_num_threads() == 3
    assert set_threads("auto") == torch.get_num_threads() == available_cores() >= 1


@needs_reset
def test_the_peak_grows_with_what_is_allocated_and_stays_when_it_is_freed() -> None:
    torch.ones(2**18)  # what the first call loads is not counted below
    reset_peak_memory(CPU)
    before = peak_memory_mb(CPU)
    block = torch.ones(128 * 2**18)  # 128 times 2^20 bytes
    assert peak_memory_mb(CPU) - before == pytest.approx(128, abs=2)
    del block
    assert peak_memory_mb(CPU) - before == pytest.approx(128, abs=2)
    reset_peak_memory(CPU)
    assert peak_memory_mb(CPU) < before + 64


def test_the_peak_is_known_without_the_system_s_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As megabytes since the process began, whatever the sandbox hides."""
    counted = peak_memory_mb(CPU)
    status = tmp_path / "status"
    monkeypatch.setattr(machine, "_STATUS", status)
    for text in (None, "Name: python\nVmRSS: 5 kB\n"):
        if text is not None:
            status.write_text(text)
        assert 0.9 * counted < peak_memory_mb(CPU) < counted + 4_000


def test_a_count_that_cannot_be_reset_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CLEAR_PEAK", tmp_path / "missing")
    reset_peak_memory(CPU)
    monkeypatch.setattr(machine, "_CLEAR_PEAK", tmp_path)  # found, and not writable as a file
    reset_peak_memory(CPU)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_says_what_a_number_depends_on() -> None:
    found = environment(CPU, 2)
    assert found["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["threads"] == 2
    assert found["cores"] == available_cores()
    assert {"pe_bench", "git", "python", "platform", "processor", "date"} <= found.keys()


def test_dates_are_of_one_time_zone() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", today())


def test_a_checkout_knows_its_commit_and_an_installed_package_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pe_bench"
    package.mkdir()
    monkeypatch.setattr(machine, "__file__", str(package / "machine.py"))
    commit = git_commit.__wrapped__
    assert commit() == ""

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True
        ).stdout

    (package / "machine.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("tag", "-a", "v1", "-m", "a release")
    head = git("rev-parse", "HEAD").strip()
    assert commit() == head[:12]
    (package / "machine.py").write_text("changed")
    assert commit() == head[:12] + "+"
