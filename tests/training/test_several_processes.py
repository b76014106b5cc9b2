"""Training in several processes takes the steps of one, and loses nothing when a process dies."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.commands import at_work, children_of, living, losses, only_run, start

from pe_bench.config.compose import compose_config
from pe_bench.errors import RunError, UserError
from pe_bench.training.checkpoint import latest_checkpoint
from pe_bench.training.group import Group, check_processes, join_processes, start_processes

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that is stopped stays")
full = pytest.mark.full
FSDP, LONG = ["train.sharding=fsdp"], ["train.steps=50"]
TWO, THREE = ["train.processes=2"], ["train.processes=3"]
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")
IDLE = """
import torch
from pe_bench.encodings.nope import NoPE

class Idle(NoPE):
    def __init__(self, n_heads: int):
        super().__init__()
        self.used = torch.nn.Parameter(torch.ones(n_heads))
        self.idle = torch.nn.Parameter(torch.ones(n_heads))

    def distance_bias(self, distance):
        return -self.used[:, None] * distance.sqrt()
"""


def tensors(run: Path, file: str) -> dict[str, torch.Tensor]:
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None and checkpoint.step in (8, 50)
    files = enumerate(sorted(checkpoint.path.glob(f"{file}*.safetensors")))
    return {f"{name} {index}": t.clone() for index, path in files for name, t in load_file(path).items()}


def assert_equal_to_rounding(one: Path, other: Path) -> None:
    assert other.name == one.name, "how many work on a run is no part of what it is"
    assert losses(one) == pytest.approx(losses(other), rel=1e-5)
    # A step has the size of the learning rate, so that rounding in a small gradient moves a weight by less.
    torch.testing.assert_close(tensors(other, "weights"), tensors(one, "weights"), rtol=0, atol=2e-4)


@pytest.fixture
def run_of(train, folder):
    """Train with these arguments into a separate results folder. Return the run."""

    def begin(results: str, *arguments: str) -> Path:
        outcome = train("train.log_every=1", f"results_dir={folder / results}", *arguments)
        assert outcome.code == 0, outcome.err
        (run,) = (folder / results / "runs").iterdir()
        return run

    return begin


@pytest.mark.parametrize(
    ("processes", "arguments"),
    [
        (2, ["encoding=randomized", "train.micro_batches=2", "train.validation_tokens=40"]),
        (2, ["encoding=t5", *FSDP, "train.micro_batches=2"]),
        pytest.param(2, ["encoding=t5", *FSDP, *LONG], marks=full),
        pytest.param(2, ["encoding=fox", *FSDP], marks=full),
        pytest.param(2, ["encoding=t5", *LONG], marks=full),
        # fewer windows to validate than processes
        pytest.param(4, ["encoding=shaw", "train.validation_tokens=32"], marks=full),
    ],
)
def test_several_processes_take_the_steps_of_one(run_of, processes, arguments):
    alone = [argument for argument in arguments if argument not in FSDP]
    one, several = run_of("one", *alone), run_of("several", *arguments, f"train.processes={processes}")
    assert_equal_to_rounding(one, several)


@full
@pytest.mark.parametrize(
    ("before", "after"),
    [(TWO, []), (THREE, THREE), (TWO + FSDP, TWO + FSDP), (THREE + FSDP, TWO), ([], THREE + FSDP)],
)
def test_a_run_continues_with_other_processes_and_bit_for_bit_with_the_same(run_of, before, after):
    windows = ("encoding=t5", "train.batch_tokens=96")
    never_stopped, run = run_of("whole", *windows, *after), run_of("broken", *windows, *before)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    assert run_of("broken", *windows, *after) == run
    assert_equal_to_rounding(never_stopped, run)
    if before == after:
        for file in ("weights", "optimizer"):
            torch.testing.assert_close(tensors(run, file), tensors(never_stopped, file), rtol=0, atol=0)


@full
def test_a_parameter_without_gradient_and_an_encoding_from_outside_are_trained_together(run_of, folder):
    (folder / "mine.py").write_text(IDLE)
    encoding = f"encoding={folder}/mine.py:Idle"
    one, two = run_of("one", encoding), run_of("two", encoding, *TWO)
    assert_equal_to_rounding(one, two)
    assert not [name for name in tensors(two, "optimizer") if "idle" in name]


@full
@pytest.mark.parametrize("machines", [1, 2])
def test_torchrun_starts_a_run_on_one_machine_or_on_several(run_of, folder, machines):
    one, arguments = run_of("one", "encoding=nope"), ["encoding=nope", "train.log_every=1"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        several = ["--nnodes", "2", "--master-port", str(free.getsockname()[1])]  # both on this machine
    nodes = [["--standalone"]] if machines == 1 else [[*several, "--node-rank", str(n)] for n in range(2)]
    launchers = [(*TORCHRUN, str(2 // machines), *words) for words in nodes]
    commands = [start(folder, *arguments, launcher=launcher) for launcher in launchers]
    outputs = [command.communicate(timeout=120) for command in commands]
    assert [command.returncode for command in commands] == [0] * machines, outputs
    assert sum(out.count("works to") for out, _ in outputs) == 1, "the first process alone prints"
    assert_equal_to_rounding(one, only_run(folder))


@full
def test_each_process_of_torchrun_that_fails_says_which_it_is(folder):
    failing = start(folder, "encoding=nope", "train.lr=1e30", launcher=(*TORCHRUN, "2", "--standalone"))
    told = failing.communicate(timeout=120)[1]
    lines = [line for line in told.splitlines() if line.startswith("pe-bench: ")]
    assert failing.returncode == 1 and all("is not finite" in line for line in lines)
    assert any(line.endswith("(rank 1 of 2 processes)") for line in lines), told


def test_more_processes_than_gpus_are_refused():
    for device, told in [
        ("auto", r"train.processes=4 needs as many GPUs, and this machine has \d+"),
        ("cuda:1", "device=cuda:1 is one GPU, but train.processes=4: say device=cuda"),
    ]:
        config = compose_config(["train.processes=4", f"device={device}"])
        with pytest.raises(UserError, match=told):
            check_processes(config, torch.device("cuda"))


def test_the_shares_of_a_batch_add_up_to_it_in_order():
    rows = torch.arange(12).view(6, 2)
    assert torch.equal(torch.cat([Group(rank, 3).share(rows) for rank in range(3)]), rows)
    few = [Group(rank, 8).share(rows) for rank in range(8)]
    assert torch.equal(torch.cat(few[:6]), rows) and torch.equal(few[7], rows[:1])


def fail_in_the_second(error: Exception):
    with join_processes(torch.device("cpu"), 60) as group:
        if not group.is_first:
            raise error
        group.wait()


def test_processes_get_the_variables_of_now_and_one_that_fails_is_named(monkeypatch, tmp_path):
    for command in ("pe-bench train seed=1", "pe-bench train seed=2"):  # runs keep the one that made them
        monkeypatch.setenv("PE_BENCH_COMMAND", command)
        start_processes(1, partial(os.system, f"printenv PE_BENCH_COMMAND > {tmp_path}/command"))
        assert (tmp_path / "command").read_text() == f"{command}\n"
    of_its_own = partial(fail_in_the_second, ZeroDivisionError("of its own"))
    for count, work, kind, told in [
        (1, partial(os._exit, 3), RunError, "rank 0 of 1 processes ended with exit code 3"),
        (2, of_its_own, RunError, "rank 1 of 2 processes failed: ZeroDivisionError: of its own"),
        # a mistake of the user's is one in any process
        (2, partial(fail_in_the_second, UserError("no such run")), UserError, "no such run"),
    ]:
        with pytest.raises(kind, match=f"^{told}$"):
            start_processes(count, work)


@pytest.fixture
def working(folder) -> Iterator[subprocess.Popen[str]]:
    """A command of two processes that has saved a checkpoint and is far from its end."""
    long = ["train.steps=100000", "train.validate_every=100000", "train.checkpoint_every=20"]
    process = at_work(folder, "encoding=nope", *long, *TWO, "train.timeout=2")
    yield process
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The children of the process from which they are copied."""
    return [pid for child in children_of(process.pid) for pid in children_of(child)]


def listening_addresses(pids: list[int]) -> set[str]:
    """Return the addresses, as /proc/net writes them, on which these processes listen."""
    sockets = set()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):
            sockets.add(str(link.readlink()))
    tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in tables.splitlines() if " 0A " in line]  # that of LISTEN
    return {cells[1].split(":")[0] for cells in rows if f"socket:[{cells[9]}]" in sockets}


def assert_none_is_left(process: subprocess.Popen[str]) -> None:
    ended = time.monotonic() + 15
    while left := living(process.pid):
        assert time.monotonic() < ended, left
        time.sleep(0.05)


@linux
@pytest.mark.parametrize(
    ("send", "number"), [(os.killpg, signal.SIGTERM), pytest.param(os.kill, signal.SIGUSR2, marks=full)]
)
def test_processes_listen_on_loopback_and_a_signal_ends_all_after_a_saved_step(working, folder, send, number):
    addresses = listening_addresses([working.pid, *children_of(working.pid), *workers_of(working)])
    assert addresses and addresses <= {"0100007F", "0" * 24 + "01000000"}  # 127.0.0.1 and ::1
    send(working.pid, number)
    told = working.communicate(timeout=60)[1]
    assert working.returncode == 130, told
    saved = latest_checkpoint(only_run(folder) / "checkpoints")
    assert (
        saved and f"step {saved.step} of 100000 is saved, and the same command continues from there" in told
    )
    assert told.count("stopping after this step") == 1
    assert_none_is_left(working)


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=full)])
def test_a_lost_process_is_named_in_one_line_none_is_left_and_the_run_can_continue(working, folder, number):
    os.kill(workers_of(working)[1], number)
    told = working.communicate(timeout=60)[1]
    assert working.returncode == 1, told
    how = "died (killed by SIGKILL)" if number == signal.SIGKILL else "is gone"
    way_out = "and the others ended: the same command continues from the last checkpoint"
    line = f"rank 1 of 2 processes {how}, {way_out}"
    assert [each for each in told.splitlines() if each.startswith("pe-bench: ")] == [f"pe-bench: {line}"]
    assert line in (only_run(folder) / "error.txt").read_text()
    assert_none_is_left(working)


@linux
@pytest.mark.parametrize("is_stopped", [pytest.param(True, marks=full), False])
def test_no_process_is_left_when_the_command_is_killed_or_asked_to_end_twice(working, is_stopped):
    if is_stopped:  # no step can be finished
        for worker in workers_of(working):
            os.kill(worker, signal.SIGSTOP)
        working.send_signal(signal.SIGINT)
        time.sleep(1)
        working.send_signal(signal.SIGINT)
        assert working.wait(timeout=10) == 130
    else:
        working.kill()
    assert_none_is_left(working)


@linux
def test_what_a_run_in_several_processes_costs_is_said(working: subprocess.Popen[str]) -> None:
    assert working.stderr is not None
    end = threading.Timer(60, working.kill)
    end.start()
    said = (line for line in iter(working.stderr.readline, "") if ", about " in line)
    assert re.fullmatch(r"1 run, about [\dhmins ]+ on \d+ cores?\n", next(said, ""))
    end.cancel()
