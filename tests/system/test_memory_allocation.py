"""Training keeps the memory that it frees; scoring, which reports memory, does not."""

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command, tiny_overrides

from pe_bench import experiment
from pe_bench.system import machine as memory
from pe_bench.system.machine import retain_freed_memory
from pe_bench.training import trainer

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")

FAULTS = """
import ctypes, resource, torch
from pe_bench.system.machine import MMAP_THRESHOLD, retain_freed_memory
# Where glibc begins, before it adjusts itself: each of these tensors has a mapping of its own.
ctypes.CDLL("libc.so.6").mallopt(MMAP_THRESHOLD, 128 * 2**10)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(2**22).add_(1)  # 16 MB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
outside = faults()
with retain_freed_memory():
    faults()
    kept = faults()
print(outside, kept)
"""


@glibc
def test_pages_are_handed_out_once_while_allocations_are_kept() -> None:
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    outside, kept = map(int, done.stdout.split())
    if outside == 0:
        pytest.skip("this system counts no page faults")
    assert kept < outside / 2


def test_without_glibc_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with retain_freed_memory() as kept:
        assert not kept


def test_kept_memory_is_returned_when_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    class Library:
        def mallopt(self, *arguments: int) -> int:
            calls.append(arguments)
            return 1

        def malloc_trim(self, pad: int) -> int:
            calls.append((pad,))
            return 1

    monkeypatch.setattr(memory, "_glibc", Library)

    def fail() -> None:
        with retain_freed_memory():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert calls == [*memory.KEEPING, *memory.AFTERWARDS, (0,)]


def test_allocations_are_kept_while_a_run_trains_but_not_while_it_is_scored(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []

    @contextmanager
    def told() -> Iterator[bool]:
        story.append("kept")
        yield True
        story.append("given back")

    def telling(function: Callable[..., Any], word: str) -> Callable[..., Any]:
        return lambda *arguments, **named: (story.append(word), function(*arguments, **named))[1]

    monkeypatch.setattr(trainer, "retain_freed_memory", told)
    monkeypatch.setattr(trainer.Trainer, "step", telling(trainer.Trainer.step, "step"))
    monkeypatch.setattr(experiment, "score", telling(experiment.score, "scored"))
    assert command("train", *tiny_overrides(folder)).code == 0
    assert list(dict.fromkeys(story)) == ["kept", "step", "given back", "scored"]
