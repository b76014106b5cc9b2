"""An untrained model to score, on one thread."""

from pathlib import Path

import pytest
import torch
from support.scoring import trained_model

from pe_bench.runs.job import Job

torch.set_num_threads(1)


@pytest.fixture
def trained(tmp_path: Path) -> Job:
    return trained_model(tmp_path / "run")
