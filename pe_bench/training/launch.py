"""Start the processes that train one run, and read their messages; the starting process takes no step itself.

They are the workers of an elastic launch of PyTorch's, which gives them their ranks and a port to meet at.
The configuration reaches them as an object.
"""

import logging
import multiprocessing
import os
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from signal import SIG_IGN, signal
from typing import Any

import torch

from pe_bench.config.schema import Config
from pe_bench.data.packed import load_data_of
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.model.decoder import build_decoder
from pe_bench.runs.job import Job
from pe_bench.system.signals import (
    STOP_SIGNALS,
    Stopped,
    child_context,
    end_with_parent,
    finish_step_on_signal,
    is_alive,
    is_stopped,
    kill,
    start_method,
)
from pe_bench.system.terminal import say
from pe_bench.system.threads import set_threads
from pe_bench.training.checkpoint import load_weights
from pe_bench.training.group import Group
from pe_bench.training.log import Step
from pe_bench.training.trainer import StepWatcher, fit

POLL_SECONDS = 0.1
LOOPBACK = "127.0.0.1"  # all processes are on one machine, and nobody else may reach them
CHECK_SECONDS = 1.0  # between two checks whether a process was stopped or lost
GRACE_SECONDS = 15  # how long one may stay stopped, and the others may take to end after one is lost
END_SECONDS = "1"  # how long the others may take to end after one is lost
MAX_KILL_SECONDS = 5  # that PyTorch may take to see that all were killed
PRELOADED = ["pe_bench.training.trainer", "torch.distributed", "torch._dynamo"]  # the last for the first step
FOR_PEOPLE = (Stopped, RunError, UserError)  # shown as they were raised


@dataclass(frozen=True)
class Failure:
    """An error that ended a process and was not raised with a person in mind."""

    reason: str
    trace: str


@dataclass(frozen=True)
class Started:
    """The message of a process that has met all others."""

    pid: int


class WorkerError(Exception):
    """An error in another process; its text is the traceback from there."""


# How each process ended, by its rank, in the order in which they said so; None for one that did all.
Exits = dict[int, BaseException | Failure | None]


@dataclass
class WorkerMessages:
    """The messages of all processes so far."""

    exits: Exits = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)  # by rank, of those that have met all others


def check_processes(config: Config, device: torch.device) -> None:
    """Raise `UserError` where there are fewer GPUs than processes."""
    count = config.train.processes
    if device.type == "cuda" and count > 1:
        gpus = torch.cuda.device_count()
        require(count <= gpus, f"train.processes={count} needs as many GPUs, and this machine has {gpus}")


def fit_together(job: Job, watch: StepWatcher) -> None:
    """Train as `fit` does, in `train.processes` processes.

    If one process is lost, the others are ended and `RunError` is raised.
    """
    pipes = [multiprocessing.Pipe() for _ in range(job.config.train.processes)]
    ours = [pipe for pipe, _ in pipes]
    agent = _Agent(job, [pipe for _, pipe in pipes])
    messages, workers = WorkerMessages(), WorkerWatch(len(pipes))
    with finish_step_on_signal() as stop_requested:
        with agent.running():
            is_stopping = False
            while agent.is_alive() or any(pipe.poll() for pipe in ours):
                _poll(ours, messages, watch)
                workers.check(messages)
                if stop_requested() and not messages.pids:
                    raise Stopped  # there is nothing to save
                if stop_requested() and not is_stopping:
                    is_stopping = True
                    for pipe in ours:
                        pipe.send("stop")
        _raise_first_failure(messages.exits, agent.error, len(pipes))


class WorkerWatch:
    """A watch for processes that were stopped, as by SIGSTOP, or that run on after another is lost."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._stopped_at: dict[int, float] = {}
        self._checked = 0.0
        self._lost_at: float | None = None

    def check(self, messages: WorkerMessages) -> None:
        """Print a line for each process that is found stopped; kill it where it stays so, which ends the run.

        Where one was lost, kill those that do not end: PyTorch waits half a minute for them.
        """
        now, pids = time.monotonic(), messages.pids
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        alive = [rank for rank, pid in pids.items() if is_alive(pid)]
        stopped = {rank for rank in alive if is_stopped(pids[rank])}
        if any(rank not in alive and _is_lost(rank, messages.exits) for rank in pids):
            self._lost_at = self._lost_at or now
            for rank in alive if now - self._lost_at > GRACE_SECONDS else stopped:
                kill(pids[rank])
            return
        for rank in sorted(stopped - self._stopped_at.keys()):
            say(
                f"warning: rank {rank} of {self.processes} processes was stopped, and the others wait: "
                f"kill -CONT {pids[rank]} lets it go on, and in {GRACE_SECONDS} s the run ends without it"
            )
        self._stopped_at = {rank: self._stopped_at.get(rank, now) for rank in stopped}
        for rank, since in self._stopped_at.items():
            if now - since > GRACE_SECONDS:
                kill(pids[rank])


def _is_lost(rank: int, exits: Exits) -> bool:
    """Return whether a process was lost: one that was asked to stop was not, and the first may still save."""
    return rank not in exits or not (exits[rank] is None or isinstance(exits[rank], Stopped))


class _Agent(threading.Thread):
    """PyTorch's agent, which waits for its workers: in a thread, where it leaves signals alone."""

    def __init__(self, job: Job, pipes: list[Connection]):
        super().__init__(daemon=True)
        # Each process loads the data and builds the model itself.
        self.facts = {name: value for name, value in vars(job).items() if name not in ("data", "model")}
        self.pipes = pipes
        self.error: Exception | None = None
        self._others = set(multiprocessing.active_children())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the agent; where this is left by an exception, kill the workers that are left."""
        _prepare()
        self.start()
        try:
            yield
        except BaseException:
            ended = time.monotonic() + MAX_KILL_SECONDS
            while self.is_alive() and time.monotonic() < ended:
                for child in set(multiprocessing.active_children()) - self._others:
                    child.kill()
                self.join(POLL_SECONDS)
            raise

    def run(self) -> None:
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # The launch, in this process, finds the store and uses it. Alone, a store listens on all interfaces.
        listening = socket.create_server((LOOPBACK, 0))
        store = TCPStore(
            LOOPBACK,
            listening.getsockname()[1],
            None,
            True,
            multi_tenant=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        with tempfile.TemporaryDirectory() as folder:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=len(self.pipes),
                logs_specs=DefaultLogsSpecs(log_dir=folder),
                run_id=self.facts["folder"].name,
                rdzv_backend="static",
                rdzv_endpoint=f"{LOOPBACK}:{store.port}",
                rdzv_configs={"rank": 0},
                max_restarts=0,
                start_method=start_method(),
            )
            try:
                elastic_launch(config, _work)(self.facts, self.pipes)
            except Exception as error:
                self.error = error


def _prepare() -> None:
    """Silence PyTorch's own report of failures, and import PyTorch once for all workers."""
    from torch.distributed.elastic.agent.server import api as agent
    from torch.distributed.elastic.multiprocessing import api as workers

    for name in (agent.__name__, workers.__name__, "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", END_SECONDS)
    child_context(PRELOADED)


def _poll(pipes: Sequence[Connection], messages: WorkerMessages, watch: StepWatcher) -> None:
    for pipe in wait(pipes, POLL_SECONDS):
        assert isinstance(pipe, Connection)
        message = pipe.recv()
        if isinstance(message, Step):
            watch(message)
        elif isinstance(message, Started):
            messages.pids[pipes.index(pipe)] = message.pid
        else:
            messages.exits[pipes.index(pipe)] = message


def _raise_first_failure(exits: Exits, error: Exception | None, processes: int) -> None:
    """Raise what a process raised for people, else which one was lost, else what failed first."""
    for end in exits.values():
        if isinstance(end, FOR_PEOPLE):
            raise end
    lost = [rank for rank in range(processes) if rank not in exits]
    if lost:
        raise RunError(_loss(lost, error, processes)) from error
    failure = next((end for end in exits.values() if isinstance(end, Failure)), None)
    if failure is not None:
        raise RunError(failure.reason) from WorkerError(failure.trace)
    if error is not None:
        raise RunError(first_line(error)) from error


def _loss(lost: Sequence[int], error: Exception | None, processes: int) -> str:
    failures: dict[int, Any] = getattr(error, "failures", {})
    rank = next((rank for rank in lost if rank in failures), lost[0])
    failure = failures.get(rank)
    how = f" (killed by {failure.signal_name()})" if failure is not None and failure.exitcode < 0 else ""
    return (
        f"rank {rank} of {processes} processes died{how}, and the others ended: "
        "the same command continues from the last checkpoint"
    )


# What follows runs in the workers.


def _work(facts: dict[str, Any], pipes: Sequence[Connection]) -> None:
    rank = int(os.environ["RANK"])
    pipe = pipes[rank]
    _end_with_parent()
    for number in STOP_SIGNALS:  # the process that started this one gets them, and passes them on
        signal(number, SIG_IGN)
    try:
        _train(facts, rank, pipe)
    except Stopped as stopped:  # in all of them, and the first may still be saving
        pipe.send(stopped)
    except (RunError, UserError) as error:
        pipe.send(error)
        raise  # perhaps in this one alone: the others do not wait for it
    except Exception as error:
        reason = f"rank {rank} of {len(pipes)} processes failed: {type(error).__name__}: {first_line(error)}"
        pipe.send(Failure(reason, traceback.format_exc()))
        raise
    else:
        pipe.send(None)


def _train(facts: dict[str, Any], rank: int, pipe: Connection) -> None:
    import torch.distributed as together

    config: Config = facts["config"]
    count = config.train.processes
    set_threads(max(1, facts["threads"] // count))
    data = load_data_of(config)
    model = build_decoder(config, data.vocabulary, EncodingSpec(config.encoding, config.search))
    job = Job(**facts, data=data, model=model)
    if job.source is not None:
        load_weights(job.source, model, is_start=True)
    device = job.device
    if device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    _stay_on_loopback()
    together.init_process_group("nccl" if device.type == "cuda" else "gloo")
    pipe.send(Started(os.getpid()))
    group = Group(rank, count, device, pipe.poll)
    watch = pipe.send if group.is_first else _ignore
    fit(replace(job, device=device), watch, group)
    together.destroy_process_group()


def _stay_on_loopback() -> None:
    """Have the processes' connections to each other listen on this machine's loopback interface alone."""
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):  # of Linux, and of macOS and BSD
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name


def _ignore(step: Step) -> None:
    pass


def _end_with_parent() -> None:
    """End with the command, so that no process goes on with a run that another may have taken up.

    The thread does this where the system does not, which knows only the process that this one is copied from.
    """
    end_with_parent()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
