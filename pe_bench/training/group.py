"""The processes that train one model together, and their communication.

They are started by torchrun, or on this machine by `start_processes` with PyTorch's launcher. Each process
runs the whole command; only the first writes, shows progress and scores.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException
from torch.multiprocessing.spawn import start_processes as start_with_torch
from torch.nn import Parameter

from pe_bench.config.schema import Config
from pe_bench.errors import RunError, UserError, require
from pe_bench.system import signals
from pe_bench.system.signals import local_world_size, rank, world_size

LOOPBACK = "127.0.0.1"
# The seconds in which processes must end by themselves after a failure, and again after a signal.
END_SECONDS = 5.0
BEAT_SECONDS = 1.0
SILENT_SECONDS = 3.0  # a process without a beat for so long is lost
OTHERS_ENDED = "and the others ended: the same command continues from the last checkpoint"


class LostProcessError(RunError):
    """The end of a run after another process than the first failed, was killed or was lost."""


class Group:
    """One process of several that train together; the default is a single process.

    All methods but `share` communicate: each process must call the same methods, in the same order.
    """

    def __init__(self, rank: int = 0, count: int = 1, device: torch.device | None = None):
        self.rank, self.count = rank, count
        self.is_first = rank == 0  # this process writes and reports
        self.device = device or torch.device("cpu")  # on which the processes exchange numbers

    def share(self, rows: Tensor) -> Tensor:
        """Return this process's part of the rows of a batch, split in order among all processes.

        A process for which no row is left gets the first row.
        """
        if self.count == 1:
            return rows
        if self.rank >= len(rows):
            return rows[:1]
        return rows.tensor_split(self.count)[self.rank]

    def sum(self, *values: float) -> list[float]:
        """Return the sum of each value over all processes."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def add_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Replace the gradient of each parameter by its sum over all processes."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)

    def any(self, flag: bool) -> bool:
        """Return true if `flag` is true in any process."""
        return self.sum(float(flag)) != [0.0]

    def wait(self) -> None:
        """Return when all processes have called this."""
        self.sum(0.0)

    def broadcast(self, text: str) -> str:
        """Return the first process's text, in all processes."""
        texts = [text]
        if self.count > 1:
            dist.broadcast_object_list(texts, device=self.device)
        return texts[0]


SINGLE_PROCESS = Group()


def check_processes(config: Config, device: torch.device) -> None:
    """Raise `UserError` for too few GPUs for `train.processes`, or for sharding in a single process."""
    processes = config.train.processes
    sharding = config.train.sharding
    message = (
        f"train.sharding={sharding} has no effect in one process: add train.processes=N, or use torchrun"
    )
    require(sharding is None or processes > 1, message)
    message = f"device={config.device} is one GPU, but train.processes={processes}: say device=cuda"
    require(processes == 1 or ":" not in config.device, message)
    gpus = torch.cuda.device_count()
    needed = local_world_size() if world_size() > 1 else processes
    message = f"train.processes={processes} needs as many GPUs, and this machine has {gpus}"
    require(device.type == "cpu" or processes == 1 or needed <= gpus, message)


@contextmanager
def join_processes(device: torch.device, timeout: int) -> Iterator[Group]:
    """Within the context, communicate with the other processes of a run; yield this process's group.

    timeout: seconds to wait for another process. Raises `LostProcessError`, which names a lost process.
    """
    if world_size() == 1:
        yield SINGLE_PROCESS
        return
    if local_world_size() == world_size():  # all are on this machine, and listen on its loopback interface
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, "lo0" if sys.platform == "darwin" else "lo")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    store: Any = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))  # pyright: ignore[reportPrivateImportUsage]
    over = threading.Event()
    threading.Thread(target=_beat, args=(store, over), daemon=True).start()
    try:
        yield Group(rank(), world_size(), device)
        with suppress(RuntimeError):
            store.set(f"left {rank()}", "")  # the first process continues alone, and scores
    except RuntimeError as error:
        # PyTorch raises a RuntimeError for a silent process; a RunError of ours may be caused by it.
        is_ours = isinstance(error, RunError) and not isinstance(error.__cause__, RuntimeError)
        lost = [] if is_ours else _lost_ranks(store)
        if not lost:
            raise
        raise LostProcessError(
            f"rank {lost[0]} of {world_size()} processes is gone, {OTHERS_ENDED}"
        ) from error
    finally:
        over.set()
        dist.destroy_process_group()


def _beat(store: Any, over: threading.Event) -> None:
    """Count the beats of this process in a store, one in `BEAT_SECONDS`, until `over` is set.

    A lost process stops beating. store: the key-value store of `torch.distributed` that all processes share.
    """
    with suppress(RuntimeError):  # the store is gone, and the run with it
        while not over.wait(BEAT_SECONDS):
            store.add(f"beat {rank()}", 1)


def _lost_ranks(store: Any) -> list[int]:
    """Return the ranks of processes that neither beat within `SILENT_SECONDS` nor left by themselves."""
    try:
        before = _beat_counts(store)
        time.sleep(SILENT_SECONDS)
        silent = [number for number, count in enumerate(_beat_counts(store)) if count == before[number]]
        return [number for number in silent if not store.check([f"left {number}"])]
    except RuntimeError:
        return [0]  # this process holds the store


def _beat_counts(store: Any) -> list[int]:
    """Return the number of beats of each process, in the order of ranks."""
    return [store.add(f"beat {number}", 0) for number in range(world_size())]


def start_processes(count: int, work: Callable[..., object], *arguments: Any) -> None:
    """Call `work(*arguments)` in `count` processes of this machine, as torchrun would. If one fails, all end.

    Raise a `RunError` that names the failed process, or its own `UserError`; raise `Stopped` if this process
    or the others were asked to end.
    """
    processes: list[Any] = []
    requests: list[float] = []  # times of signals that asked for the end

    def stop(number: int, frame: FrameType | None) -> None:
        """Ask the processes to save and end; kill them at a second signal."""
        is_repeat = bool(requests) and time.monotonic() - requests[0] <= signals.DEBOUNCE_SECONDS
        if not is_repeat:
            for process in processes:
                (process.kill if requests else process.terminate)()
            requests.append(time.monotonic())

    # PyTorch would print a warning for each process that it ends.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.CRITICAL)
    method = signals.child_context().get_start_method()
    store = _store_on_loopback()
    heard = tuple(each for each in signals.STOP_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)
    with signals.handling_signals(heard, stop):
        each = (count, store.port, signals.pe_bench_variables(), work, arguments)
        with signals.without_main_module():
            started_group: Any = start_with_torch(
                _work_as_process, each, count, join=False, start_method=method
            )
        processes += started_group.processes
        try:
            while not started_group.join(grace_period=END_SECONDS):
                pass
        except (ProcessExitedException, ProcessRaisedException) as error:
            if requests or getattr(error, "exit_code", None) == signals.INTERRUPTED_EXIT_CODE:
                raise signals.Stopped from error
            raise _exception_of_failure(error, count) from error


def _store_on_loopback() -> Any:
    """Return a store by which processes find each other, on the loopback interface alone.

    PyTorch's own store listens on all interfaces.
    """
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    file = listening.detach()
    return dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=file)  # pyright: ignore[reportPrivateImportUsage]


def _work_as_process(
    index: int, count: int, port: int, variables: dict[str, str], work: Callable[..., object], arguments: Any
) -> None:
    """Call `work` in one of `count` processes, with the environment that torchrun would set."""
    variables_of_torchrun = {
        "RANK": index,
        "LOCAL_RANK": index,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
    }
    variables_of_torchrun |= {"MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0}
    os.environ.update(variables, MASTER_ADDR=LOOPBACK, TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.update({name: str(number) for name, number in variables_of_torchrun.items()})
    threading.Thread(target=_end_with_starter, daemon=True).start()
    try:
        with signals.stop_on_signal():
            work(*arguments)
    except signals.Stopped:
        # A second signal may come anywhere. PyTorch's destructors would then wait for its threads, which wait
        # for Python's lock.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(signals.INTERRUPTED_EXIT_CODE)


def _end_with_starter() -> None:
    """End this process when the process that started it ends.

    The starter may not be the parent process for the operating system.
    """
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os._exit(signals.INTERRUPTED_EXIT_CODE)


def _exception_of_failure(error: Any, count: int) -> RunError | UserError:
    """Return our exception for PyTorch's `error` of a failed process, with the process and the reason."""
    who = f"rank {error.error_index} of {count} processes"
    kind = LostProcessError if error.error_index else RunError
    if isinstance(error, ProcessExitedException):
        if error.signal_name:
            return LostProcessError(f"{who} died (killed by {error.signal_name}), {OTHERS_ENDED}")
        return kind(f"{who} ended with exit code {error.exit_code}")
    line = str(error).rstrip().splitlines()[-1]  # the last line of its traceback
    name, _, reason = line.partition(": ")
    for ours in (LostProcessError, UserError):
        if name == f"{ours.__module__}.{ours.__name__}":
            return ours(reason)
    return kind(f"{who} failed: {reason if name.startswith('pe_bench.') else line}")
