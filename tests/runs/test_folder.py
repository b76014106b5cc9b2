"""A run's folder is read once, says how it was made, and what is damaged in it hides nothing else."""

import json
import os
from pathlib import Path

from support.results import add_run

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.runs.commands import VARIABLE, called_with, record_command, recorded_commands, remember_command
from pe_bench.runs.folder import RunFolder, folders_in, write_config
from pe_bench.runs.rows import read_rows

FACTS = {"pe_bench": "0.1.0", "git": "", "torch": "2.13.0", "device": "cpu", "threads": 2}
FACTS |= {"python": "3.11.2", "platform": "Linux", "processor": "EPYC", "cores": 4}


def add_whole_run(results: Path, encoding="rope", overrides=(), **changes) -> Path:
    run = add_run(results, encoding, {128: 2.0, 256: 2.1}, **changes)
    write_config(run, parse_config(compose([f"encoding={encoding}", *overrides])))
    (run / "environment.json").write_text(json.dumps({**FACTS, "date": "2026-01-02T03:04:05+00:00"}))
    return run


def test_each_file_is_read_once_and_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    run = add_whole_run(tmp_path)
    (run / "config.yaml").write_text("train:\n  lr: 0.001\n  optimizer: muon\nseed: 1\n")
    folder_of, rows = folders_in(tmp_path / "runs"), read_rows(run / "eval.csv")
    for _ in range(2):
        folder = folder_of(run.name)
        assert (folder.rows, folder.environment["processor"]) == (rows, "EPYC")
        assert folder.flat_config == {"train.lr": 0.001, "train.optimizer": "muon", "seed": 1}
        for name in ("config.yaml", "environment.json"):
            (run / name).unlink(missing_ok=True)
    for text in ("{", "[]", '{"device": "\\u001b[2J"}', '{"a":' * 50 + "1" + "}" * 50, "\0", "a: &a [*a]"):
        (run / "environment.json").write_text(text)
        (run / "config.yaml").write_text(text)
        damaged = RunFolder(run)
        assert (damaged.environment, damaged.flat_config, damaged.rows) == ({}, {}, rows)


def test_a_command_is_kept_once_exactly_as_typed(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    run = tmp_path / "rope-s0-1a2b3c4d"
    run.mkdir()
    record_command(run)
    assert list(run.iterdir()) == [] and recorded_commands(run) == []
    monkeypatch.setenv(VARIABLE, "")
    kept = []
    swept = ["train", "-m", "encoding=rope,alibi", "data.path=a folder"]
    for arguments, command in [
        (swept, "train -m encoding=rope,alibi 'data.path=a folder'"),
        (["eval", "rope-s0", "--with", "yarn factor=4"], "eval rope-s0 --with 'yarn factor=4'"),
        # Another run may be the newest later.
        (["eval"], "eval rope-s0-1a2b3c4d"),
        (["eval", "--lengths", "512"], "eval rope-s0-1a2b3c4d --lengths 512"),
    ]:
        remember_command(arguments)
        record_command(run)
        record_command(run)
        kept.append(f"pe-bench {command}")
        assert recorded_commands(run) == kept
    for text in ("{", '{"a": 1}', "null"):
        (run / "commands.json").write_text(text)
        assert recorded_commands(run) == []
    monkeypatch.delenv(VARIABLE)
    with called_with(["encoding=rope", "data.path=a folder"]):  # by a Python program
        record_command(tmp_path)
    assert recorded_commands(tmp_path) == ["pe-bench train encoding=rope 'data.path=a folder'"]
    assert VARIABLE not in os.environ
