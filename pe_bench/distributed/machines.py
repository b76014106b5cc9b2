"""The machines that a scheduler gives one job, which is started on each of them, and how they meet.

The first does the job. The others only take part in its training: they hold no lock, write nothing of the run
and score nothing. All tell how they stand in a folder that all of them see.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.errors import RunError, require
from pe_bench.files import write_text

LOOK_SECONDS = 0.2
MEET_SECONDS = 900  # that the others have to come: they import, compose and read the data as the first does


@dataclass(frozen=True)
class Machines:
    """One machine's place among those of its job; one machine alone, unless it is told."""

    count: int = 1
    rank: int = 0
    host: str = "localhost"  # of the first, as the others know it
    folder: Path = Path()  # of this attempt at the job

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def meeting(self) -> Iterator[str | None]:
        """Wait for the others, just before the training; the address at which its processes then meet.

        None where the first machine has nothing to train, or cannot. Raises `RunError` where another cannot.
        """
        if not self.is_first:
            yield self._address_of_first()
            return
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        # Made before its port is told, which so is free; the launch in here finds and uses it.
        store = TCPStore("localhost", 0, None, True, multi_tenant=True, wait_for_workers=False)
        address = f"{self.host}:{store.port}"
        self._tell(address=address)
        self._wait_for_others()
        yield address

    def leave(self, reason: str = "") -> None:
        """Tell the others that this machine takes no part any more, and why not where it went wrong."""
        self._tell(left=True, reason=reason)

    def reason(self, seconds: float = 0.0) -> str:
        """Why another machine left, if it was for an error; it has `seconds` to say so."""
        if self.count == 1:
            return ""
        ended = time.monotonic() + seconds
        while True:
            told = [self._told(rank) for rank in range(self.count) if rank != self.rank]
            reasons = [one["reason"] for one in told if one.get("reason")]
            if reasons or time.monotonic() >= ended:
                return reasons[0] if reasons else ""
            time.sleep(LOOK_SECONDS)

    def _wait_for_others(self) -> None:
        ended = time.monotonic() + MEET_SECONDS
        while True:
            told = [self._told(rank) for rank in range(1, self.count)]
            reason = next((one["reason"] or "it has ended" for one in told if one.get("left")), None)
            if reason is not None:
                raise RunError(f"another of the {self.count} machines takes no part: {reason}")
            if all(told):
                return
            if time.monotonic() >= ended:
                here = 1 + sum(map(bool, told))
                raise RunError(
                    f"{here} of {self.count} machines came to the training within {MEET_SECONDS} s: "
                    "look at the others' logs, and whether all see this file system"
                )
            time.sleep(LOOK_SECONDS)

    def _address_of_first(self) -> str | None:
        while not (first := self._told(0)):
            time.sleep(LOOK_SECONDS)
        if not first.get("left"):
            self._tell(address=first["address"])
        return first.get("address")

    def _tell(self, **facts: Any) -> None:
        if self.count == 1:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self._file(self.rank), json.dumps({"reason": "", **facts}))

    def _told(self, rank: int) -> dict[str, Any]:
        """What a machine said last; nothing where it did not speak yet."""
        try:
            return json.loads(self._file(rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def _file(self, rank: int) -> Path:
        return self.folder / f"machine-{rank}.json"


ALONE = Machines()


def machines_of_job(folder: Path) -> Machines:
    """Those that submitit started this job on; this one alone elsewhere. They meet below `folder`."""
    job = _submitted()
    if job is None or job.num_nodes == 1:
        return ALONE
    # What was told before the job was put back into the queue is over.
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
    return Machines(job.num_nodes, job.node, job.hostnames[0], folder / f"attempt-{attempt}")


def check_machines(machines: Machines, processes: int) -> None:
    """Raises `UserError` for a job that is started several times on a machine, and for uneven shares."""
    job = _submitted()
    require(
        job is None or job.num_tasks <= machines.count,
        f"this job is started {job and job.num_tasks} times on {_count(machines)}, and pe-bench starts its "
        "processes itself: leave tasks_per_node at 1, and say train.processes=N",
    )
    require(
        processes % machines.count == 0,
        f"train.processes={processes}, all processes of the run, cannot be shared by {_count(machines)}: "
        f"say train.processes={machines.count} or a multiple of it",
    )


def _count(machines: Machines) -> str:
    return "one machine" if machines.count == 1 else f"{machines.count} machines"


def _submitted() -> Any:
    """Submitit's view of the job that this process is part of; a script of one's own is none of its."""
    if "SUBMITIT_EXECUTOR" not in os.environ:
        return None
    from submitit import JobEnvironment

    return JobEnvironment()
