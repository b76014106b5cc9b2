"""The machines that a scheduler gives one job, which is started on each of them, and how they meet.

The first does the job. The others only take part in its training: they hold no lock, write nothing of the run
and score nothing. All tell how they stand in a folder that all of them see.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.errors import RunError, UserError, require
from pe_bench.system.files import write_text
from pe_bench.system.signals import Stopped

LOOK_SECONDS = 0.2
MEET_SECONDS = 900  # that the others have to come: they import, compose and read the data as the first does
TELL_SECONDS = 5  # that a machine has to tell which of its processes was lost
SWEEP = "pe-bench train -m … hydra/launcher=submitit_slurm hydra.launcher.nodes=2"


@dataclass(frozen=True)
class Machines:
    """One machine's place among those of its job; one machine alone, unless it is told."""

    count: int = 1
    node: int = 0
    host: str = "localhost"  # the first, as the others know it
    folder: Path | None = None  # of this attempt at the job; None where it is not this process's job

    @property
    def is_first(self) -> bool:
        return self.node == 0

    @contextmanager
    def meeting(self) -> Iterator[str | None]:
        """Wait for the others, just before the training; the address at which its processes then meet.

        None where the first machine has nothing to train, or cannot. Raises `RunError` where another cannot,
        and `Stopped` where another was stopped.
        """
        if not self.is_first:
            self._tell(here=True)
            yield self._address_of_first()
            return
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        self._wait_for_others()
        # Made before its port is told, which so is free; the launch in here finds and uses it.
        store = TCPStore("localhost", 0, None, True, multi_tenant=True, wait_for_workers=False)
        address = f"{self.host}:{store.port}"
        self._tell(address=address)
        yield address

    def leave(self, reason: str = "", *, was_stopped: bool = False) -> None:
        """Tell the others that this machine takes no part any more, and why not where it went wrong."""
        with suppress(OSError):  # the error that it may be about
            self._tell(left=True, reason=reason, was_stopped=was_stopped)

    def look(self, *, have_begun: bool) -> None:
        """Raise what ended another machine's part; processes that have begun hear of a stop by themselves."""
        for node in self._others():
            told = self._told(node)
            if told.get("left") and (told["reason"] or not have_begun):
                self._raise_of(node, told)

    def note_failure(self, reason: str) -> None:
        """What went wrong in a process, before others fail because it is gone: the first to note is heard."""
        if self.folder is not None:
            with suppress(OSError), (self.folder / "failed").open("x", encoding="utf-8") as file:
                file.write(reason)

    def failure(self) -> str:
        """What ended the training of all machines, if one of them knows better than those that lost it."""
        if self.folder is None:
            return ""
        ended = time.monotonic() + TELL_SECONDS
        while time.monotonic() < ended:
            for node in self._others():
                reason = self._told(node).get("reason")
                if reason:
                    return reason
            time.sleep(LOOK_SECONDS)
        with suppress(OSError):
            return (self.folder / "failed").read_text(encoding="utf-8")
        return ""

    def _others(self) -> list[int]:
        return [node for node in range(self.count) if node != self.node]

    def _wait_for_others(self) -> None:
        ended = time.monotonic() + MEET_SECONDS
        while missing := [node for node in self._others() if not self._told(node)]:
            self.look(have_begun=False)
            if time.monotonic() >= ended:
                raise RunError(
                    f"{_names(missing)} of {self.count} did not come within {MEET_SECONDS} s: "
                    f"look at the logs beside {self.folder}, and whether it sees this folder"
                )
            time.sleep(LOOK_SECONDS)
        self.look(have_begun=False)

    def _address_of_first(self) -> str | None:
        while not (told := self._told(0)):
            time.sleep(LOOK_SECONDS)
        return told.get("address")

    def _raise_of(self, node: int, told: dict[str, Any]) -> None:
        if told["was_stopped"]:
            raise Stopped
        reason = told["reason"] or "it has ended"
        raise RunError(f"{_names([node])} ({told['host']}) of {self.count}: {reason}")

    def _tell(self, **facts: Any) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self._file(self.node), json.dumps({"host": socket.gethostname(), **facts}))

    def _told(self, node: int) -> dict[str, Any]:
        """What a machine said last; nothing where it did not speak yet."""
        try:
            return json.loads(self._file(node).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def _file(self, node: int) -> Path:
        assert self.folder is not None
        return self.folder / f"machine-{node}.json"


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
    if job is not None and job.num_tasks > machines.count:
        raise UserError(
            f"this job is started {job.num_tasks} times for {_names(range(machines.count))}: pe-bench starts "
            "its processes itself (train.processes=N, tasks_per_node at 1); several machines share a run in "
            f"{SWEEP}"
        )
    require(
        processes % machines.count == 0,
        f"train.processes={processes}, all processes of the run, cannot be shared by {machines.count} "
        f"machines: say train.processes={machines.count} or a multiple of it",
    )


def _names(nodes: Sequence[int]) -> str:
    return f"machine{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"


def _submitted() -> Any:
    """Submitit's view of the job that this process is part of; a script of one's own is none of its."""
    if "SUBMITIT_EXECUTOR" not in os.environ:
        return None
    from submitit import JobEnvironment

    return JobEnvironment()
