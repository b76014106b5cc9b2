"""A run's folder is read once, and what is damaged in it hides nothing else."""

import json
from pathlib import Path

import pytest
from support.results import add_run

from pe_bench.runs.folder import RunFolder, folders_in
from pe_bench.runs.rows import read_rows


def whole_run(results: Path) -> Path:
    run = add_run(results, "rope", {128: 3.0})
    (run / "config.yaml").write_text("train:\n  lr: 0.001\n  optimizer: muon\nseed: 1\n")
    (run / "environment.json").write_text(json.dumps({"device": "cpu"}))
    return run


def test_each_file_is_read_once_whoever_asks_by_the_runs_name(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    folder_of = folders_in(tmp_path / "runs")
    rows = read_rows(run / "eval.csv")
    for _ in range(2):
        folder = folder_of(run.name)
        assert (folder.rows, folder.environment) == (rows, {"device": "cpu"})
        assert folder.flat_config == {"train.lr": 0.001, "train.optimizer": "muon", "seed": 1}
        for name in ("eval.csv", "config.yaml", "environment.json"):
            (run / name).unlink(missing_ok=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"device": "\\u001b[2J"}', '{"a":' * 50 + "1" + "}" * 50])
def test_what_cannot_be_read_is_empty_and_hides_nothing_else(tmp_path: Path, text: str) -> None:
    run = whole_run(tmp_path)
    (run / "environment.json").write_text(text)
    assert (RunFolder(run).environment, RunFolder(run).flat_config["seed"]) == ({}, 1)
    (run / "config.yaml").write_text("a: *b\n")
    assert (RunFolder(run).flat_config, len(RunFolder(run).rows)) == ({}, 1)
