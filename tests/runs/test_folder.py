"""A run's folder is read once, says how it was made, and what is damaged in it hides nothing else."""

import json
import os
from dataclasses import replace
from pathlib import Path

from support.results import add_run, edit_rows

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.runs.commands import VARIABLE, called_with, record_command, recorded_commands, remember_command
from pe_bench.runs.folder import ENVIRONMENT, RunFolder, folders_in, provenance, write_config
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


def test_runs_are_described_with_commands_data_versions_machine_and_date(tmp_path, monkeypatch):
    run = add_whole_run(tmp_path, overrides=["train.length=64", "seed=1"], seed=1)
    monkeypatch.setenv(VARIABLE, "pe-bench train -m encoding=rope seed=0,1")
    record_command(run)
    edit_rows(run, lambda row: replace(row, torch="2.14.0", device="H200") if row.length == 256 else row)
    bare = add_run(tmp_path, "alibi", {128: 2.0}, date="2024-01-01")
    (bare / "config.yaml").unlink()
    first, record = provenance(map(folders_in(tmp_path / "runs"), (run.name, bare.name)))
    assert (record.run, record.note) == (run.name, "")
    assert record.commands == ("pe-bench train -m encoding=rope seed=0,1",)
    assert record.data == (("stdlib", "da7a0123456789", "bytes"),)
    trained, scored = record.environments
    assert trained == tuple(str(FACTS[name]) for name in ENVIRONMENT)
    elsewhere = dict(zip(ENVIRONMENT, scored, strict=True))
    assert (elsewhere["torch"], elsewhere["device"], elsewhere["python"]) == ("2.14.0", "H200", "")
    assert record.date == "2026-01-02T03:04:05+00:00"
    # What was not recorded is missing.
    assert (first.run, first.commands) == (bare.name, ()) and "none was kept" in first.note
    trained, scored = first.environments
    assert not any(trained) and "2.13.0" in scored and first.date == "2024-01-01"


def test_commands_of_a_run_from_outside_take_no_code_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    results = tmp_path / "results"
    run = add_whole_run(results)
    folder = f"results/runs/{run.name}"
    (run / "package").mkdir()
    for path in (run / "x.py", results / "x.py", tmp_path / "mine.py", run / "package" / "__init__.py"):
        path.write_text("raise SystemExit(1)")
    harmless = [
        f"pe-bench eval {folder} --results-dir results",
        "pe-bench train encoding.class=mine.py:Y --config-dir mine",
    ]
    taking = [
        f"pe-bench train encoding.class={folder}/x.py:Y",
        "pe-bench train encoding.class=results.x:Y",
        f"pe-bench train 'encoding.local={{name: rope, class: {folder}/x.py:Y}}'",
        f"pe-bench eval rope-s0 --code {run}/x.py",
        f"pe-bench train encoding=x --config-dir {folder}",
        f"pe-bench train encoding=x --config-dir=./{folder}",
        f"pe-bench train encoding=x -cd {folder}",
        f"pe-bench train encoding.class={folder.replace('/', '.')}.package:Y",
        f"pe-bench train 'encoding.class=~/{folder}/x.py:Y'",
    ]
    (run / "commands.json").write_text(json.dumps([*taking, *harmless]))
    [record] = provenance([RunFolder(run)])
    assert list(record.commands) == harmless
    assert "is not here" in record.note
