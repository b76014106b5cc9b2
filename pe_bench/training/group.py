"""The processes that train one model together: what they share, sum and agree on.

They are those of torchrun, or those that `start_processes` starts on this machine by the same launcher of
PyTorch's. Every one runs the whole command; the first alone writes, shows progress and scores.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pe_bench.config.schema import Config
from pe_bench.errors import RunError, UserError, require
from pe_bench.system.ranks import local_world_size, rank, world_size
from pe_bench.system.signals import (
    DEBOUNCE_SECONDS,
    EXIT_CODE,
    STOP_SIGNALS,
    Stopped,
    child_context,
    end_with_parent,
    finish_step_on_signal,
    own_variables,
    signal_handlers,
    start_method,
    stop_on_signal,
)

LOOPBACK = "127.0.0.1"
SAVE_SECONDS = 60  # that processes have to finish their step and save, before the launcher kills them
BEAT_SECONDS = 1.0
SILENT_SECONDS = 3.0  # without a beat, a process is gone
PRELOADED = ["pe_bench.experiment", "torch.distributed", "torch._dynamo"]  # the last for the first step
WAY_OUT = "and the others ended: the same command continues from the last checkpoint"

Result = TypeVar("Result")


class LostProcessError(RunError):
    """The end of a run one of whose processes was killed, was stopped or lost its machine."""


class Group:
    """One process of several that train together, by default one alone.

    All of them have to call what adds up or agrees, equally often.
    """

    def __init__(self, rank: int = 0, count: int = 1, device: torch.device | None = None):
        self.rank, self.count = rank, count
        self.device = device or torch.device("cpu")  # on which the processes exchange numbers

    @property
    def is_first(self) -> bool:
        """Return whether this process is the one that writes and reports."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """Return this process's rows of a batch, in order; the first row where there are too few for all."""
        if self.count == 1:
            return rows
        return rows.tensor_split(self.count)[self.rank] if self.rank < len(rows) else rows[:1]

    def sum(self, *values: float) -> list[float]:
        """Return each value, added up over the processes."""
        return self._reduced(list(values), dist.ReduceOp.SUM)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process."""
        return self._reduced([float(flag)], dist.ReduceOp.MAX) != [0.0]

    def wait(self) -> None:
        """Return when all processes have come here."""
        self.any(False)

    def mean(self, values: Tensor) -> float:
        """Return the mean of the values of all processes together."""
        if self.count == 1:
            return float(values.double().mean())
        total, number = self.sum(float(values.double().sum()), values.numel())
        return total / number

    def broadcast(self, text: str) -> str:
        """Return the first process's text, in all of them."""
        texts = [text]
        if self.count > 1:
            dist.broadcast_object_list(texts, device=self.device)
        return texts[0]

    @contextmanager
    def finish_step_on_signal(self) -> Iterator[Callable[[], bool]]:
        """Do as `signals.finish_step_on_signal` does; every process stops after the same step."""
        with finish_step_on_signal() as stop_requested:
            yield lambda: self.any(stop_requested())

    def _reduced(self, values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.count == 1:
            return values
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(reduced, operation)
        return reduced.tolist()


def check_processes(config: Config, device: torch.device) -> None:
    """Raise `UserError` where there are fewer GPUs than processes, or nothing to shard over."""
    processes, sharding = config.train.processes, config.train.sharding
    require(
        sharding is None or processes > 1,
        f"train.sharding={sharding} has no effect in one process: add train.processes=N, or use torchrun",
    )
    if device.type == "cuda" and processes > 1:
        gpus, needed = torch.cuda.device_count(), local_world_size() if world_size() > 1 else processes
        require(
            needed <= gpus, f"train.processes={processes} needs as many GPUs, and this machine has {gpus}"
        )


@contextmanager
def joined(device: torch.device, timeout: int) -> Iterator[Group]:
    """Be one of the processes of a run inside, and name those that are lost; without others, be one alone."""
    if world_size() == 1:
        yield Group()
        return
    if local_world_size() == world_size():
        _stay_on_loopback()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    beats = _Heartbeat(rank(), world_size())
    try:
        yield Group(rank(), world_size(), device)
        beats.leave()
    except RuntimeError as error:
        # PyTorch raises a RuntimeError when it hears nothing of a process; one of ours may come from it.
        is_ours = isinstance(error, RunError) and not isinstance(error.__cause__, RuntimeError)
        lost = [] if is_ours else beats.lost_ranks()
        if not lost:
            raise
        raise LostProcessError(f"rank {lost[0]} of {world_size()} processes is gone, {WAY_OUT}") from error
    finally:
        beats.over.set()
        dist.destroy_process_group()


class _Heartbeat(threading.Thread):
    """A thread that counts seconds in the shared store; the count of a lost process stands still."""

    def __init__(self, rank: int, count: int):
        super().__init__(daemon=True)
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(address, port)  # pyright: ignore[reportPrivateImportUsage]
        self.rank, self.count, self.over = rank, count, threading.Event()
        self.start()

    def run(self) -> None:
        with suppress(RuntimeError):  # the store is gone, and the run with it
            while not self.over.wait(BEAT_SECONDS):
                self.store.add(f"beat {self.rank}", 1)

    def leave(self) -> None:
        """Tell the others that this process has done its part: the first goes on alone, and scores."""
        with suppress(RuntimeError):
            self.store.add(f"left {self.rank}", 1)

    def lost_ranks(self) -> list[int]:
        try:
            before = self._beats()
            time.sleep(SILENT_SECONDS)
            after = self._beats()
            left = [self.store.add(f"left {rank}", 0) for rank in range(self.count)]
        except RuntimeError:
            return [0]  # whose process holds the store
        return [rank for rank in range(self.count) if before[rank] == after[rank] and not left[rank]]

    def _beats(self) -> list[int]:
        return [self.store.add(f"beat {rank}", 0) for rank in range(self.count)]


def _stay_on_loopback() -> None:
    """Have the processes' connections to each other listen on this machine's loopback interface alone."""
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):  # of Linux, and of macOS and BSD
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, name)


# The short form of torchrun on one machine


def start_processes(count: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Run `work` in `count` processes, and return the result of the first. If one fails, all end.

    Raise `RunError` with its reason, and `Stopped` if this process or the others were asked to end.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    children, asked = set(multiprocessing.active_children()), list[float]()

    def stop(number: int, frame: FrameType | None) -> None:
        """Have the launcher end its processes, which save; kill them at a second signal."""
        if not asked or time.monotonic() - asked[0] > DEBOUNCE_SECONDS:
            for child in set(multiprocessing.active_children()) - children if asked else ():
                child.kill()
            asked.append(time.monotonic())
            raise SignalException("asked to end", signal.Signals(number))

    heard = tuple(number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)
    # PyTorch's own report of failures is a page for each process.
    elastic = "torch.distributed.elastic"
    for name in (
        f"{elastic}.agent.server.api",
        f"{elastic}.multiprocessing.api",
        "torch.multiprocessing.spawn",
    ):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    child_context(PRELOADED)
    store = _store_on_loopback()
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id="pe-bench",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            rdzv_backend="static",
            rdzv_endpoint=f"{LOOPBACK}:{store.port}",
            rdzv_configs={"rank": 0},
            max_restarts=0,
            start_method=start_method(),
            shutdown_timeout=SAVE_SECONDS,
            signals_to_handle="SIGQUIT",
        )
        try:
            with signal_handlers(heard, stop):
                return elastic_launch(config, _work)(work, arguments, own_variables())[0]
        except SignalException as signalled:
            raise Stopped from signalled
        except ChildFailedError as error:
            raise _failure(error, count) from error


def _store_on_loopback() -> Any:
    """Return the store that the launch finds and uses; one of its own would listen on all interfaces."""
    listening = socket.create_server((LOOPBACK, 0))
    return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        LOOPBACK,
        listening.getsockname()[1],
        is_master=True,
        multi_tenant=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _work(work: Callable[..., Result], arguments: tuple[Any, ...], variables: dict[str, str]) -> Result:
    end_with_parent()
    os.environ.update(variables)
    threading.Thread(target=_end_with_starter, daemon=True).start()
    try:
        with stop_on_signal():
            return work(*arguments)
    except Stopped:
        # A second signal may come anywhere. Destructors of PyTorch's that run after it wait for its threads,
        # and these for Python's lock.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CODE)


def _end_with_starter() -> None:
    """End with the process that started this one, which may not be its parent for the system."""
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os._exit(EXIT_CODE)


def _failure(error: Any, count: int) -> BaseException:
    """Return the exception that says why processes failed, from the report of PyTorch's launcher."""
    number, failure = error.get_first_failure()
    if failure.exitcode == EXIT_CODE:
        return Stopped()
    who = f"rank {number} of {count} processes"
    if failure.exitcode < 0:
        return LostProcessError(f"{who} died (killed by {failure.signal_name()}), {WAY_OUT}")
    kinds = {kind.__name__: kind for kind in (RunError, UserError, *RunError.__subclasses__())}
    told = failure.error_file_data["message"]
    if not isinstance(told, dict):  # it ended without a word, as by os._exit
        return RunError(f"{who} ended with exit code {failure.exitcode}")
    message = str(told["message"])
    name, _, reason = message.partition(": ")
    return kinds[name](reason) if name in kinds else RunError(f"{who} failed: {message.splitlines()[0]}")
