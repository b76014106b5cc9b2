"""Starts the processes that train one run, and hears from them; the one that starts them does no step itself.

They are the workers of an elastic launch of PyTorch's, which gives them their ranks and a port to meet at.
The configuration reaches them as an object.
"""

import logging
import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from signal import SIG_IGN, signal
from typing import Any

import torch

from pe_bench.config.schema import Config
from pe_bench.data.packed import load_data
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.model.decoder import build_decoder
from pe_bench.system.machine import set_threads
from pe_bench.system.processes import child_context, start_method
from pe_bench.system.signals import ASKING, Stopped, steps_finished
from pe_bench.training.checkpoint import Checkpoint, load_weights
from pe_bench.training.group import Group
from pe_bench.training.log import Step
from pe_bench.training.train import Watcher, take_steps

LOOK_SECONDS = 0.1
BEGUN = "begun"  # what a process tells when it has met all others
END_SECONDS = "1"  # that the others have to end when one is lost
MOST_SECONDS = 5  # that PyTorch has to see that all were ended
PRELOADED = ["pe_bench.training.train", "torch.distributed", "torch._dynamo"]  # the last for the first step
TOLD = (Stopped, RunError, UserError)  # what a person is told in the words that were raised


@dataclass(frozen=True)
class Work:
    """What each process needs to know."""

    config: Config
    search: tuple[Path, ...]
    source: Checkpoint | None  # whose weights the run starts from
    run: Path
    device: torch.device
    dtype: torch.dtype
    threads: int  # of all processes together

    @property
    def processes(self) -> int:
        return self.config.train.processes


@dataclass(frozen=True)
class Failure:
    """What ended a process, where it was none of those that are told as they are."""

    reason: str
    trace: str


class WorkerError(Exception):
    """What went wrong in another process, with the lines that it came through."""


# How each process ended, in the order in which they told; only some end by errors.
Ends = dict[int, BaseException | Failure | None]


@dataclass
class Heard:
    """What the processes told."""

    ends: Ends = field(default_factory=dict)
    has_begun: bool = False  # one of them has met all others


def check_processes(config: Config, device: torch.device) -> None:
    """Raise `UserError` where there are fewer GPUs than processes."""
    count = config.train.processes
    if device.type == "cuda" and count > 1:
        found = torch.cuda.device_count()
        require(count <= found, f"train.processes={count} takes a GPU each, and {found} are here")


def train_together(work: Work, watch: Watcher) -> None:
    """Train as `train` does, in `train.processes` processes. Raise `RunError` where one is lost: all end."""
    pipes = [multiprocessing.Pipe() for _ in range(work.processes)]
    ours = [pipe for pipe, _ in pipes]
    agent = _Agent(work, [pipe for _, pipe in pipes])
    heard = Heard()
    with steps_finished() as is_asked:
        with agent.running():
            was_asked = False
            while agent.is_alive() or any(pipe.poll() for pipe in ours):
                _hear(ours, heard, watch)
                if is_asked() and not heard.has_begun:
                    raise Stopped  # there is nothing to save
                if is_asked() and not was_asked:
                    was_asked = True
                    for pipe in ours:
                        pipe.send("stop")
        _raise_what_ended_it(heard.ends, agent.error, work)


class _Agent(threading.Thread):
    """PyTorch's agent, which waits for its workers: in a thread, where it leaves signals alone."""

    def __init__(self, work: Work, pipes: list[Connection]):
        super().__init__(daemon=True)
        self.work, self.pipes = work, pipes
        self.error: Exception | None = None
        self._others = set(multiprocessing.active_children())

    @contextmanager
    def running(self) -> Iterator[None]:
        """No worker is left behind."""
        _prepare()
        self.start()
        try:
            yield
        except BaseException:
            ended = time.monotonic() + MOST_SECONDS
            while self.is_alive() and time.monotonic() < ended:
                for child in set(multiprocessing.active_children()) - self._others:
                    child.kill()
                self.join(LOOK_SECONDS)
            raise

    def run(self) -> None:
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # It finds a free port; the launch, in this process, finds the store and uses it.
        store = TCPStore("localhost", 0, None, True, multi_tenant=True, wait_for_workers=False)
        with tempfile.TemporaryDirectory() as folder:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=len(self.pipes),
                logs_specs=DefaultLogsSpecs(log_dir=folder),
                run_id=self.work.run.name,
                rdzv_backend="static",
                rdzv_endpoint=f"localhost:{store.port}",
                rdzv_configs={"rank": 0},
                max_restarts=0,
                start_method=start_method(),
            )
            try:
                elastic_launch(config, _work)(self.work, self.pipes)
            except Exception as error:
                self.error = error


def _prepare() -> None:
    """Say nothing of what is told otherwise, and have PyTorch imported once for all workers."""
    from torch.distributed.elastic.agent.server import api as agent
    from torch.distributed.elastic.multiprocessing import api as workers

    for name in (agent.__name__, workers.__name__, "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", END_SECONDS)
    child_context(PRELOADED)


def _hear(pipes: Sequence[Connection], heard: Heard, watch: Watcher) -> None:
    for pipe in wait(pipes, LOOK_SECONDS):
        assert isinstance(pipe, Connection)
        message = pipe.recv()
        if isinstance(message, Step):
            watch(message)
        elif message == BEGUN:
            heard.has_begun = True
        else:
            heard.ends[pipes.index(pipe)] = message


def _raise_what_ended_it(ends: Ends, error: Exception | None, work: Work) -> None:
    """What a process said for people, else which was lost, else what failed first: the rest follow."""
    for end in ends.values():
        if isinstance(end, TOLD):
            raise end
    lost = [rank for rank in range(work.processes) if rank not in ends]
    if lost:
        raise RunError(_loss(lost, error, work)) from error
    failure = next((end for end in ends.values() if isinstance(end, Failure)), None)
    if failure is not None:
        raise RunError(failure.reason) from WorkerError(failure.trace)
    if error is not None:
        raise RunError(first_line(error)) from error


def _loss(lost: Sequence[int], error: Exception | None, work: Work) -> str:
    failures: dict[int, Any] = getattr(error, "failures", {})
    rank = next((rank for rank in lost if rank in failures), lost[0])
    failure = failures.get(rank)
    how = f" (killed by {failure.signal_name()})" if failure is not None and failure.exitcode < 0 else ""
    return (
        f"rank {rank} of {work.processes} processes was lost{how}, and the others ended: "
        "the same command goes on from the last checkpoint"
    )


# What follows runs in the workers.


def _work(work: Work, pipes: Sequence[Connection]) -> None:
    rank = int(os.environ["RANK"])
    pipe = pipes[rank]
    _end_with_parent()
    for number in ASKING:  # the process that started this one hears them, and tells
        signal(number, SIG_IGN)
    try:
        _train(work, rank, pipe)
    except Stopped as stopped:  # in all of them, and the first may still be saving
        pipe.send(stopped)
    except (RunError, UserError) as error:
        pipe.send(error)
        raise  # perhaps in this one alone: the others do not wait for it
    except Exception as error:
        reason = (
            f"rank {rank} of {work.processes} processes failed: {type(error).__name__}: {first_line(error)}"
        )
        pipe.send(Failure(reason, traceback.format_exc()))
        raise
    else:
        pipe.send(None)


def _train(work: Work, rank: int, pipe: Connection) -> None:
    import torch.distributed as together

    config = work.config
    set_threads(max(1, work.threads // work.processes))
    data = load_data(config.data, config.tokenizer, config.cache_dir)
    model = build_decoder(config, data.vocabulary, work.search)
    if work.source is not None:
        load_weights(work.source, model)
    device = work.device
    if device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    together.init_process_group("nccl" if device.type == "cuda" else "gloo")
    pipe.send(BEGUN)
    group = Group(rank, work.processes, device, pipe.poll)
    watch = pipe.send if group.is_first else _say_nothing
    take_steps(config, model, data, work.run, device, work.dtype, watch, group)
    together.destroy_process_group()


def _say_nothing(step: Step) -> None:
    pass


def _end_with_parent() -> None:
    """So that no process goes on with a run that another may have taken up."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
