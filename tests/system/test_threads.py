"""How many threads compute beside other processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pe_bench.system.machine import available_cores
from pe_bench.system.threads import Look, free_cores, look, set_threads


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    set_threads(before)


@pytest.mark.usefixtures("threads")
def test_threads_are_the_requested_number_or_all_cores_up_to_openmps_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set_threads(3) == torch.get_num_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert set_threads("auto") == torch.get_num_threads() == available_cores() >= 1
    for limit in ("1", "1,4"):
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
        assert set_threads("auto") == 1


@pytest.mark.parametrize(
    ("own", "every", "most", "threads"),
    [
        (4.0, 4.0, 4, 4),
        (2.0, 4.0, 4, 2),  # two runs, each in the other's way
        (1.0, 4.0, 4, 1),  # beside three busy loops
        (0.5, 4.0, 4, 1),  # never less than one
        (2.0, 2.2, 4, 4),  # a little of other work takes no core
        (2.0, 3.0, 2, 2),  # of four cores a container may use two, and one is taken
        (2.0, 0.0, 4, 4),  # a system that counts nothing
    ],
)
def test_a_run_takes_the_cores_that_others_leave_free(
    monkeypatch: pytest.MonkeyPatch, own: float, every: float, most: int, threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(4)), raising=False)
    assert free_cores(Look(10.0, 1.0, 50.0), Look(11.0, 1.0 + own, 50.0 + every), most) == threads


def test_only_this_process_counts_as_busy_where_the_system_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 1 2\n")
    assert look(tmp_path / "none").all == pytest.approx(look().process, abs=0.1)
    assert look(tmp_path / "stat").all == 0
