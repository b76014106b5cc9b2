"""A tiny corpus and tiny runs, so that whole commands take a fraction of a second."""

import gc
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest
from support.commands import Command, Outcome, tiny_overrides, write_corpus

from pe_bench.cli import program
from pe_bench.system.files import cache_root

# A shell that starts tests in the background, and `nohup`, have these ignored; what tests send must arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.pop("COLUMNS", None)  # which some shells export: it says how wide reports are
os.fsync = lambda fd: None  # files of tests need not survive a power cut, and a flush takes milliseconds


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no garbage collection looks at it again."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a pe-bench command in this process."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = program.run(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed to the disk from now on, `file` or `folder`, and each `rename`, in their order."""
    happened, replace = list[str](), os.replace

    def sync(descriptor: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", lambda *paths: (happened.append("rename"), replace(*paths)))
    return happened


@pytest.fixture
def train(command: Command, folder: Path) -> Command:
    """Run `pe-bench train` on the tiny corpus, with more arguments behind the usual ones."""
    return lambda *arguments: command("train", *tiny_overrides(folder), *arguments)


@pytest.fixture
def evaluate(command: Command, folder: Path) -> Command:
    """Run `pe-bench eval` on the runs that `train` and `begin` made."""
    return lambda *arguments: command("eval", "--results-dir", str(folder / "results"), *arguments)


@pytest.fixture(scope="session")
def trained_before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, ...], Outcome]]:
    """A folder with a corpus, and what was trained on it: the nth results lie in folder `n`."""
    home = tmp_path_factory.mktemp("trained")
    write_corpus(home / "corpus")
    return home, {}


@pytest.fixture
def begin(
    command: Command, folder: Path, trained_before: tuple[Path, dict[tuple[str, ...], Outcome]]
) -> Command:
    """As `train`, for tests that begin with a run: a copy, where another test began with these arguments."""
    home, outcomes = trained_before

    def run(*arguments: str) -> Outcome:
        if arguments not in outcomes:
            results = f"results_dir={home / str(len(outcomes))}"
            outcomes[arguments] = command("train", *tiny_overrides(home), results, *arguments)
        shutil.copytree(home / str(list(outcomes).index(arguments)), folder / "results", dirs_exist_ok=True)
        return outcomes[arguments]

    return run
