"""Runs of two encodings, of one setting and of several."""

from pathlib import Path

import pytest
from support.results import add_run
from support.tables import BREAKING, HOLDING

from pe_bench.config.schema import Config, TrainConfig
from pe_bench.runs.folder import write_config


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for seed in range(3):
        add_run(tmp_path, "rope", BREAKING, seed=seed)
        add_run(tmp_path, "alibi", HOLDING, seed=seed, parameters=900_000, tokens_per_second=5_000.0)
    return tmp_path


def configured(results_dir: Path, encoding: str, lr: float, seed: int, levels: dict[int, float]) -> Path:
    """Add a run whose configuration has its learning rate."""
    run = add_run(results_dir, encoding, levels, seed=seed, setting=f"{lr}", code=f"{lr}")
    options = {"name": encoding, "class": f"pe_bench.encodings.{encoding}:Any"}
    write_config(run, Config(options, train=TrainConfig(lr=lr), seed=seed))
    return run


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    for seed in range(2):
        for lr in (0.001, 0.003):
            configured(tmp_path, "rope", lr, seed, {length: level + lr for length, level in BREAKING.items()})
            configured(tmp_path, "alibi", lr, seed, HOLDING)
    return tmp_path
