"""Training in several processes takes the steps of one, and loses nothing when a process dies."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.commands import children_of, living, losses, only_run, tiny_overrides

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.data.packed import load_data
from pe_bench.errors import RunError, UserError
from pe_bench.model.decoder import build_decoder
from pe_bench.runs.job import Job
from pe_bench.training.checkpoint import latest_checkpoint
from pe_bench.training.group import Group
from pe_bench.training.launch import Failure, _raise_first_failure, check_processes
from pe_bench.training.trainer import fit

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that is stopped stays")
CPU = torch.device("cpu")
# An encoding whose second parameter has a gradient nowhere.
CODE = """
import torch
from pe_bench.encodings import LayerEncoding


class Idle(LayerEncoding):
    family = "bias"
    claims = frozenset()

    def __init__(self, n_heads: int):
        super().__init__()
        self.used = torch.nn.Parameter(torch.ones(n_heads))
        self.idle = torch.nn.Parameter(torch.ones(n_heads))

    def distance_bias(self, distance):
        return -self.used[:, None] * distance.sqrt()
"""


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None and found.meta.step == 8
    return {name: tensor.clone() for name, tensor in load_file(found.path / "weights.safetensors").items()}


def moments(run: Path) -> dict[str, torch.Size]:
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None
    return {name: tensor.shape for name, tensor in load_file(found.path / "optimizer.safetensors").items()}


def assert_equal_to_rounding(one: Path, other: Path) -> None:
    assert losses(one) == pytest.approx(losses(other), rel=1e-5)
    expected, found = weights(one), weights(other)
    assert list(found) == list(expected) and moments(one) == moments(other)
    # A step has the size of the learning rate, so that rounding in a small gradient moves a weight by less.
    assert all(torch.allclose(found[name], expected[name], atol=2e-4) for name in expected)


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
        (2, ["encoding=shape"]),  # position ids are drawn for each window
        pytest.param(
            2,
            ["encoding=randomized", "train.micro_batches=2", "train.validation_tokens=40"],
            marks=pytest.mark.full,
        ),
        (4, ["encoding=shaw", "train.validation_tokens=32"]),  # fewer windows to validate than processes
    ],
)
def test_several_processes_take_the_steps_of_one(run_of, processes, arguments):
    one, several = run_of("one", *arguments), run_of("several", *arguments, f"train.processes={processes}")
    assert several.name == one.name, "how many work on a run is no part of what it is"
    assert_equal_to_rounding(one, several)


ONE, TWO = [], ["train.processes=2"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ONE, TWO),
        pytest.param(TWO, ONE, marks=pytest.mark.full),
    ],
)
def test_a_run_continues_with_another_number_of_processes(run_of, folder, before, after):
    whole, run = run_of("whole", "encoding=rope"), run_of("broken", "encoding=rope", *before)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    run_of("broken", "encoding=rope", *after)
    assert_equal_to_rounding(whole, run)


@pytest.mark.full
def test_a_parameter_without_gradient_and_an_encoding_from_outside_are_trained_together(run_of, folder):
    (folder / "mine" / "encoding").mkdir(parents=True)
    (folder / "mine" / "encoding" / "mine.py").write_text(CODE)
    text = "name: mine\nclass: mine.py:Idle\nn_heads: ${model.n_heads}\n"
    (folder / "mine" / "encoding" / "mine.yaml").write_text(text)
    arguments = ("--config-dir", str(folder / "mine"), "encoding=mine")
    one, two = run_of("one", *arguments), run_of("two", *arguments, "train.processes=2")
    assert_equal_to_rounding(one, two)
    assert not [name for name in moments(two) if "idle" in name]


def test_a_loss_that_is_not_finite_ends_all_processes_in_one_line(train):
    outcome = train("encoding=rope", "train.lr=1e30", "train.processes=2")
    assert outcome.code == 1
    assert "is not finite at step" in outcome.line and "lower train.lr" in outcome.line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train.processes=3"], "train.processes=3 does not divide the 4 windows of a step"),
        (
            ["train.processes=4", "train.micro_batches=2"],
            "train.processes=4 times train.micro_batches=2 does not divide the 4 windows",
        ),
        (["train.processes=0"], "train.processes must be positive, and"),
        (["train.processes=2", "device=cuda:1"], "device=cuda:1 is one GPU, but train.processes=2"),
    ],
)
def test_windows_that_processes_cannot_share_are_refused_with_both_values(train, folder, arguments, told):
    outcome = train("encoding=rope", *arguments)
    assert outcome.code == 2 and told.split(", and")[0] in outcome.line
    assert not (folder / "results").exists()


class Blind(Group):
    """Start a process with the name of a checkpoint that it does not find."""

    def broadcast(self, text: str) -> str:
        return "step-00000004"


def test_a_process_that_cannot_read_the_checkpoint_does_not_start_over(folder):
    config = parse_config(compose(tiny_overrides(folder)))
    data = load_data(config.data, config.tokenizer, config.cache_dir)
    model = build_decoder(config, data.vocabulary)
    job = Job(config, folder, "5e7710", "nope", "nope", CPU, torch.float32, 1, data, model)
    with pytest.raises(RunError, match="step-00000004 cannot be read: repeat the command"):
        fit(job, lambda step: None, Blind(1, 2))


def test_more_processes_than_gpus_are_refused(folder):
    config = parse_config(compose([*tiny_overrides(folder), "train.processes=4"]))
    with pytest.raises(UserError, match=r"train.processes=4 needs as many GPUs, and this machine has \d+"):
        check_processes(config, torch.device("cuda"))


# A group of its own


def test_a_single_process_gets_every_batch_whole(folder):
    config = parse_config(compose(tiny_overrides(folder)))
    model = build_decoder(config, load_data(config.data, config.tokenizer, config.cache_dir).vocabulary)
    group, rows = Group(), torch.arange(6).view(3, 2)
    assert group.share(rows) is rows
    assert group.sum(0.1, 2.0) == [0.1, 2.0] and group.any(True) and not group.any(False)
    group.sum_gradients(model)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_shares_of_a_batch_add_up_to_it_in_order():
    rows = torch.arange(12).view(6, 2)
    assert torch.equal(torch.cat([Group(rank, 3).share(rows) for rank in range(3)]), rows)
    few = [Group(rank, 8).share(rows) for rank in range(8)]
    assert torch.equal(torch.cat(few[:6]), rows) and torch.equal(few[7], rows[:1])


def test_a_lost_process_is_named_before_what_followed_from_it():
    followed = Failure("rank 0 of 2 processes failed: RuntimeError: Connection closed by peer", "trace")
    with pytest.raises(RunError, match="rank 1 of 2 processes died"):
        _raise_first_failure({0: followed}, None, 2)
    with pytest.raises(RunError, match="rank 0 of 2 processes failed: RuntimeError: Connection closed"):
        _raise_first_failure({0: followed, 1: None}, None, 2)
    with pytest.raises(RunError, match="no space"):
        _raise_first_failure({1: followed, 0: RunError("no space")}, None, 2)


# Signals and losses


@pytest.fixture
def working(folder):
    """A command of two processes that has saved a checkpoint and is far from its end."""
    arguments = [*tiny_overrides(folder), "encoding=nope", "train.steps=100000", "train.processes=2"]
    arguments += ["train.validate_every=100000", "train.checkpoint_every=20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pe_bench", "train", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    while not list((folder / "results").glob("runs/*/checkpoints/step-*")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The children of the process from which they are copied."""
    return [pid for child in children_of(process.pid) for pid in children_of(child)]


def listening_addresses(pids: list[int]) -> list[str]:
    """Return the addresses, as /proc/net writes them, on which these processes listen."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(str(link.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:  # that of LISTEN
                found.append(cells[1].split(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="/proc/net is of Linux")
def test_processes_on_one_machine_listen_on_loopback_alone(working):
    loopback = {"0100007F", "0" * 24 + "01000000"}  # 127.0.0.1 and ::1
    found = listening_addresses([working.pid, *children_of(working.pid), *workers_of(working)])
    assert found and set(found) <= loopback


def saved_step(folder: Path) -> int:
    found = latest_checkpoint(only_run(folder) / "checkpoints")
    assert found is not None
    return found.meta.step


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (os.killpg, signal.SIGTERM),  # to every process, as schedulers do
        pytest.param(os.killpg, signal.SIGINT, marks=pytest.mark.full),  # as a terminal does
        pytest.param(os.kill, signal.SIGUSR2, marks=pytest.mark.full),
    ],
)
def test_a_signal_ends_all_processes_after_the_same_step_which_is_saved(working, folder, send, number):
    send(working.pid, number)
    told = working.communicate(timeout=60)[1]
    assert working.returncode == 130, told
    assert f"stopped at step {saved_step(folder)} of 100000, which is saved" in told
    assert told.count("stopping after this step") == 1


@pytest.mark.full
def test_a_second_signal_ends_all_processes_at_once(working):
    workers = workers_of(working)
    os.kill(workers[0], signal.SIGSTOP)  # no step can be finished
    os.kill(working.pid, signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    os.kill(working.pid, signal.SIGINT)
    told = working.communicate(timeout=60)[1]
    assert working.returncode == 130, told
    assert time.monotonic() - began < 10
    assert not [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()]


def test_a_lost_process_is_reported_in_one_line_and_the_run_can_continue(working, folder):
    workers = workers_of(working)
    assert len(workers) == 2
    os.kill(workers[-1], signal.SIGKILL)
    told = working.communicate(timeout=60)[1]
    assert working.returncode == 1, told
    (line,) = [line for line in told.splitlines() if line.startswith("pe-bench: ")]
    # By what it was killed is told where PyTorch saw it end before the others, which follow at once.
    assert "of 2 processes died" in line and "and the others ended" in line
    assert "the same command continues from the last checkpoint" in line
    assert saved_step(folder) >= 20
    assert "processes died" in (only_run(folder) / "error.txt").read_text()
    assert not [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()]


@pytest.mark.full
def test_an_error_of_the_first_process_alone_ends_all_processes(folder):
    arguments = " ".join([*tiny_overrides(folder), "encoding=nope", "train.processes=2"])
    command = (
        f"ulimit -f 20; exec {sys.executable} -m pe_bench train {arguments}"  # a disk that takes 20 KB a file
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=folder, timeout=120)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "spawn.py" in line] == []
    assert "step-00000002 could not be written: File too large" in done.stderr.splitlines()[-1]


def assert_none_is_left(session: int, seconds: float = 30) -> None:
    ended = time.monotonic() + seconds
    while left := living(session):
        assert time.monotonic() < ended, left
        time.sleep(0.05)


@linux
def test_no_process_is_left_when_the_command_is_killed_though_all_are_stopped(working):
    for worker in workers_of(working):
        os.kill(worker, signal.SIGSTOP)
    working.kill()
    working.wait()
    assert_none_is_left(working.pid)


@linux
@pytest.mark.parametrize(
    ("number", "is_stopped"),
    [
        (signal.SIGSEGV, True),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.full),
        pytest.param(signal.SIGSEGV, False, marks=pytest.mark.full),
    ],
)
def test_no_process_is_left_when_a_worker_dies_though_the_other_is_stopped(working, number, is_stopped):
    first, last = workers_of(working)
    if is_stopped:
        os.kill(first, signal.SIGSTOP)
    os.kill(last, number)
    told = working.communicate(timeout=30)[1]
    assert working.returncode == 1, told
    assert re.search(r"pe-bench: rank \d of 2 processes died.*, and the others ended: the same command", told)
    assert_none_is_left(working.pid)


@linux
def test_a_stopped_worker_is_named_once_and_the_run_goes_on_with_it(working, folder):
    worker = workers_of(working)[-1]
    os.kill(worker, signal.SIGSTOP)
    assert working.stderr is not None
    line = next(line for line in working.stderr if "was stopped" in line)
    assert re.match(r"warning: rank \d of 2 processes was stopped, and the others wait: ", line)
    assert line.endswith(f"kill -CONT {worker} lets it go on, and in 15 s the run ends without it\n")
    before = saved_step(folder)
    time.sleep(2.5)  # in which it is looked at again
    os.kill(worker, signal.SIGCONT)
    while saved_step(folder) <= before + 20:
        assert working.poll() is None
        time.sleep(0.05)
    working.send_signal(signal.SIGTERM)
    assert "was stopped" not in working.communicate(timeout=60)[1]


@linux
@pytest.mark.full
def test_a_worker_that_stays_stopped_ends_the_run_and_none_is_left(working):
    os.kill(workers_of(working)[-1], signal.SIGSTOP)
    told = working.communicate(timeout=30)[1]
    assert working.returncode == 1, told
    assert "was stopped, and the others wait" in told
    assert re.search(r"pe-bench: rank \d of 2 processes died.*, and the others ended: the same command", told)
    assert_none_is_left(working.pid)


@pytest.mark.full
def test_no_process_continues_without_the_one_that_holds_the_run(working):
    workers = workers_of(working)
    working.kill()
    ended = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
        assert time.monotonic() < ended
        time.sleep(0.05)
