"""A tiny corpus and tiny runs, so that whole commands take a fraction of a second."""

import csv
import gc
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.hydra import Hydra

from pe_bench import cli, hydra_app
from pe_bench.cache import cache_root

# Encodings that act each through other hooks: what takes minutes over all of them meets these in CI.
ONE_OF_A_KIND = ("learned", "rope", "yarn", "alibi", "fox", "shaw", "cope", "irope", "t5", "streaming")


def one_of_a_kind(names: Iterable[str]) -> list[Any]:
    """The names, of which all but those are for `scripts/test --full`."""
    return [name if name in ONE_OF_A_KIND else pytest.param(name, marks=pytest.mark.full) for name in names]


WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "away", "from", "them", "all")


@dataclass(frozen=True)
class Outcome:
    """What a command gave: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on standard error that begins with the program's name."""
        lines = [line for line in self.err.splitlines() if line.startswith("pe-bench:")]
        assert len(lines) == 1, self.err
        return lines[0]


def write_corpus(folder: Path, documents: int = 12, words: int = 120) -> Path:
    """Documents of some 450 bytes, drawn anew but the same at every call."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    for number in range(documents):
        text = " ".join(drawn.choice(WORDS) for _ in range(words))
        (folder / f"{number:02}.txt").write_text(f"document {number}: {text}\n", encoding="utf-8")
    return folder


def children_of(parent: int) -> list[int]:
    asked = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(pid) for pid in asked.stdout.split()]


def losses(run: Path) -> list[float]:
    with (run / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("loss", "validation_loss", "gradient_norm")
    return [float(row[name]) for row in rows for name in names if row[name]]


def tiny_words(folder: Path) -> list[str]:
    """The words of a run of eight steps on the corpus in `folder`/corpus, in about 0.2 s."""
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


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no garbage collection looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def composed_once() -> Iterator[None]:
    """Hydra takes longer than a tiny run: no configuration is composed twice from the files that we ship.

    Every one was composed once more to read `hydra.mode` alone.
    """
    read_mode, compose = Hydra.get_mode, hydra_app._compose
    composed: dict[tuple[Any, ...], dict[str, Any]] = {}

    def get_mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        is_given = config_name != hydra_app.CONFIG or any("hydra" in word for word in overrides)
        return read_mode(self, config_name, overrides) if is_given else None

    def compose_once(overrides: Sequence[str], directories: Sequence[str], name: str) -> dict[str, Any]:
        if directories:  # of a test's own
            return compose(overrides, directories, name)
        key = (*overrides, name, Path.home())
        if key not in composed:
            composed[key] = compose(overrides, directories, name)
        return deepcopy(composed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hydra, "get_mode", get_mode)
        patch.setattr(hydra_app, "_compose", compose_once)
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a corpus beside."""
    write_corpus(tmp_path / "corpus")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    # A cache of its own but for the kernel, which each process would compile again.
    compiled = cache_root(None) / "kernel"
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    compiled.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernel").symlink_to(compiled)
    return tmp_path


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a pe-bench command in this process."""

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code = cli.run(list(words))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def train(command: Command, folder: Path) -> Command:
    """Run `pe-bench train` on the tiny corpus, with more words behind the usual ones."""
    return lambda *words: command("train", *tiny_words(folder), *words)


@pytest.fixture(scope="session")
def trained_before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, ...], Outcome]]:
    """A folder with a corpus, and what was trained on it: the results of the nth words lie in folder `n`."""
    home = tmp_path_factory.mktemp("trained")
    write_corpus(home / "corpus")
    return home, {}


@pytest.fixture
def begin(
    command: Command, folder: Path, trained_before: tuple[Path, dict[tuple[str, ...], Outcome]]
) -> Command:
    """As `train`, for tests that begin with a run: a copy, where another test began with these words."""
    home, outcomes = trained_before

    def run(*words: str) -> Outcome:
        if words not in outcomes:
            results = f"results_dir={home / str(len(outcomes))}"
            outcomes[words] = command("train", *tiny_words(home), results, *words)
        shutil.copytree(home / str(list(outcomes).index(words)), folder / "results", dirs_exist_ok=True)
        return outcomes[words]

    return run


def only_run(folder: Path) -> Path:
    runs = list((folder / "results" / "runs").iterdir())
    assert len(runs) == 1, runs
    return runs[0]


def files_in(folder: Path) -> list[str]:
    """Every file below a folder, by its path from there."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
