"""An untrained model to score, and scoring that tries no encoding first."""

from pathlib import Path

import pytest
import torch
from support.commands import Command
from support.scoring import trained_model

from pe_bench.runs.job import Job

torch.set_num_threads(1)


@pytest.fixture
def trained(tmp_path: Path) -> Job:
    return trained_model(tmp_path / "run")


@pytest.fixture
def evaluate(command: Command, folder: Path) -> Command:
    """Run `pe-bench eval` at the lengths of the tiny runs."""
    return lambda *arguments: command("eval", "--results-dir", str(folder / "results"), *arguments)
