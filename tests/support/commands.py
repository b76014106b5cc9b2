"""Tiny runs of whole commands, and the files that they leave."""

import csv
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "away", "from", "them", "all")
# Keys of a tiny `try`; data.path is missing.
TRIED = (
    *("train.length=16", "train.tokens=256", "train.batch_tokens=64", "train.warmup_steps=1"),
    *("model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=24", "threads=1"),
    *("train.validation_tokens=64", "eval.targets=6", "data=files"),
)
# What makes them learn how often each letter is, and more.
LEARNED = ("train.tokens=2048", "train.lr=0.02", "eval.targets=64")


@dataclass(frozen=True)
class Outcome:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """Return the one line on standard error that begins with the program's name."""
        lines = [line for line in self.err.splitlines() if line.startswith("pe-bench:")]
        assert len(lines) == 1, self.err
        return lines[0]


def write_corpus(folder: Path, documents: int = 12, words: int = 120) -> Path:
    """Write random documents of some 450 bytes, the same at every call."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    for number in range(documents):
        text = " ".join(drawn.choice(WORDS) for _ in range(words))
        (folder / f"{number:02}.txt").write_text(f"document {number}: {text}\n", encoding="utf-8")
    return folder


def children_of(parent: int) -> list[int]:
    asked = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(pid) for pid in asked.stdout.split()]


def living(session: int) -> list[str]:
    """Return the processes that a command left running, by its session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((stat.parent / "cmdline").read_text().replace("\0", " ")[:100])
    return found


def losses(run: Path) -> list[float]:
    with (run / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("loss", "validation_loss", "gradient_norm")
    return [float(row[name]) for row in rows for name in names if row[name]]


def tiny_overrides(folder: Path) -> list[str]:
    """Return the overrides of a run of eight steps on the corpus in `folder`/corpus, in about 0.2 s."""
    return [
        "data=files",
        f"data.path={folder / 'corpus'}",
        f"cache_dir={folder / 'cache'}",
        f"results_dir={folder / 'results'}",
        "threads=1",
        *("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24"),
        *("train.length=16", "train.batch_tokens=64", "train.steps=8", "train.warmup_steps=2"),
        *("train.checkpoint_every=2", "train.validate_every=4", "train.validation_tokens=64"),
        "train.log_every=2",
        *("eval.lengths=[16,32]", "eval.max_length=64", "eval.targets=6", "eval.controls=none"),
    ]


def start(folder: Path, *arguments: str, launcher: tuple[str, ...] = (), **options) -> subprocess.Popen[str]:
    """Start a training, of which both streams can be read unless one of them goes elsewhere."""
    command = [sys.executable, *launcher, "-m", "pe_bench", "train", *tiny_overrides(folder), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, cwd=folder, start_new_session=True, **{**pipes, **options})


def at_work(folder: Path, *arguments: str, **options) -> subprocess.Popen[str]:
    """Start one and wait until it has saved a checkpoint."""
    process = start(folder, *arguments, **options)
    while not list((folder / "results").glob("runs/*/checkpoints/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


Command = Callable[..., Outcome]


def stop_before(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End the training of this process as Ctrl-C does, before a step."""
    from pe_bench.training.trainer import Trainer

    step = Trainer.step

    def stopped(self: Trainer, at: int, seconds: float):
        if at == number:
            raise KeyboardInterrupt
        return step(self, at, seconds)

    monkeypatch.setattr(Trainer, "step", stopped)


def only_run(folder: Path) -> Path:
    runs = list((folder / "results" / "runs").iterdir())
    assert len(runs) == 1, runs
    return runs[0]


def files_in(folder: Path) -> list[str]:
    """Return every file below a folder, by its relative path."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
