"""A finished run, and its copy as a stranger's."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from support.commands import Command, Outcome, tiny_overrides, write_corpus

from pe_bench.cli import program


@dataclass(frozen=True)
class Stranger:
    """A copy of that run, which a test may damage, and all commands that read it."""

    home: Path
    results: Path
    run: Path
    command: Command

    def eval(self, *arguments: str) -> Outcome:
        arguments = (str(self.run), "--lengths", "16,32", "--threads", "1", *arguments)
        return self.command("eval", *arguments, *self._in_results, "--cache-dir", str(self.home / "cache"))

    def report(self, *arguments: str) -> Outcome:
        return self.command("report", *self._in_results, *arguments)

    def list(self) -> Outcome:
        return self.command("list", "runs", *self._in_results)

    def train(self, *arguments: str) -> Outcome:
        arguments = (f"results_dir={self.results}", "encoding=rope", *arguments)
        return self.command("train", *tiny_overrides(self.home), *arguments)

    def start_from(self, results: Path) -> Outcome:
        return self.train(f"train.from={self.run}", f"results_dir={results}")

    def each(self) -> Iterator[tuple[str, Outcome]]:
        """Run every command on it. An unexpected error is raised here."""
        yield "eval", self.eval()
        yield "report", self.report("--html", str(self.page), "--by", "train.lr")
        yield "list", self.list()
        yield "train", self.train()

    @property
    def page(self) -> Path:
        return self.results.parent / "page.html"

    @property
    def step(self) -> Path:
        return self.run / "checkpoints" / "step-00000008"

    @property
    def score(self) -> Path:
        return min((self.run / "scores").iterdir())

    def change_config(self, change: Callable[[dict], object]) -> None:
        values = yaml.safe_load((self.run / "config.yaml").read_text())
        change(values)
        (self.run / "config.yaml").write_text(yaml.safe_dump(values))

    def sign(self) -> None:
        """Write matching checksums, as a stranger can."""
        meta = json.loads((self.step / "meta.json").read_text())
        names = ("weights.safetensors", "optimizer.safetensors")
        meta["checksums"] = {
            name: hashlib.sha256((self.step / name).read_bytes()).hexdigest() for name in names
        }
        (self.step / "meta.json").write_text(json.dumps(meta))

    def unfinish(self) -> None:
        """Make the run look as if training had stopped at this checkpoint."""
        (self.run / "result.json").unlink()
        meta = self.step / "meta.json"
        meta.write_text(meta.read_text().replace('"step": 8', '"step": 7'))
        self.step.rename(self.step.with_name("step-00000007"))

    @property
    def _in_results(self) -> tuple[str, str]:
        return ("--results-dir", str(self.results))


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
