"""A finished run, and its copy as a stranger's."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import Command, tiny_overrides, write_corpus
from support.untrusted_run import Stranger

from pe_bench.cli import program


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a finished run."""
    home = tmp_path_factory.mktemp("strangers")
    write_corpus(home / "corpus")
    assert program.run(["train", *tiny_overrides(home), "encoding=rope"]) == 0
    return home


@pytest.fixture
def stranger(
    trained: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stranger]:
    results = Path(shutil.copytree(trained / "results", tmp_path / "results"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("CANARY", str(tmp_path / "canary"))
    yield Stranger(trained, results, next((results / "runs").iterdir()), command)
    assert not (tmp_path / "canary").exists(), "code of the run was executed"
