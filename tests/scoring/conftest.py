"""An untrained model to score, and scoring without the probe for lookahead."""

from pathlib import Path

import pytest
from support.commands import Command
from support.scoring import trained_model

from pe_bench.scoring.evaluate import TrainedModel


@pytest.fixture
def trained(tmp_path: Path) -> TrainedModel:
    return trained_model(tmp_path / "run")


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the probe, so that an encoding that records its calls is called for scores alone."""
    monkeypatch.setattr("pe_bench.scoring.scorer.find_lookahead", lambda model, length, first: "")


@pytest.fixture
def evaluate(command: Command, folder: Path) -> Command:
    """Run `pe-bench eval` at the lengths of the tiny runs."""
    return lambda *arguments: command("eval", "--results-dir", str(folder / "results"), *arguments)
