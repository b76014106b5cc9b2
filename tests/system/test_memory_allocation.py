"""Training keeps the memory that it frees; scoring, which reports memory, does not."""

import platform
import subprocess
import sys

import pytest

from pe_bench.system import machine
from pe_bench.system.machine import retain_freed_memory

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")
def test_pages_are_handed_out_once_while_allocations_are_kept() -> None:
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    outside, kept = map(int, done.stdout.split())
    assert kept < outside / 2 or outside == 0, "some systems count no page faults"


def test_kept_memory_is_returned_when_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    class Library:
        def mallopt(self, *arguments: int) -> None:
            calls.append(arguments)

        def malloc_trim(self, pad: int) -> None:
            calls.append((pad,))

    monkeypatch.setattr(machine, "_glibc", Library)
    with pytest.raises(ZeroDivisionError), retain_freed_memory():
        assert calls == [*machine.KEEPING] and 1 / 0
    assert calls == [*machine.KEEPING, *machine.AFTERWARDS, (0,)]
