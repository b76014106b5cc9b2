"""A run's folder is read once, what is damaged in it hides nothing else, and it keeps its commands."""

import json
import os
from pathlib import Path

from support.results import add_run

from pe_bench.cli import program
from pe_bench.runs.folder import RunFolder, folder_finder
from pe_bench.runs.rows import read_rows
from pe_bench.runs.typed import COMMAND_VARIABLE, called_with, record_command, recorded_commands


def test_each_file_is_read_once_and_a_damaged_file_gives_empty_properties(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0, 256: 2.1})
    (run / "config.yaml").write_text("train:\n  lr: 0.001\n  optimizer: muon\nseed: 1\n")
    (run / "train.csv").write_text("step,loss,validation_loss\n1,3.0,\n2,2.0,2.5\n3,1.0,\n")
    folder_of, rows = folder_finder(tmp_path / "runs"), read_rows(run / "eval.csv")
    for _ in range(2):
        folder = folder_of(run.name)
        assert (folder.rows, folder.validation_loss) == (rows, 2.5)
        assert folder.flat_config == {"train.lr": 0.001, "train.optimizer": "muon", "seed": 1}
        (run / "config.yaml").unlink(missing_ok=True)
    for text in ("{", "[]", '{"device": "\\u001b[2J"}', '{"a":' * 50 + "1" + "}" * 50, "\0", "a: &a [*a]"):
        for name in ("config.yaml", "train.csv", "result.json"):
            (run / name).write_text(text)
        damaged = RunFolder(run)
        assert (damaged.validation_loss, damaged.flat_config, damaged.first_stage) == (None, {}, None)
        assert damaged.rows == rows


def test_a_command_is_kept_once_exactly_as_typed(tmp_path, monkeypatch):
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    run = tmp_path / "rope-s0-1a2b3c4d"
    run.mkdir()
    record_command(run)
    assert list(run.iterdir()) == [] and recorded_commands(run) == []
    monkeypatch.setenv(COMMAND_VARIABLE, "")
    kept = []
    swept, scored = "train -m encoding=rope,alibi 'data.path=a folder'", "eval rope-s0 --with 'yarn factor=4'"
    for typed, command in [
        (swept, swept),
        (scored, scored),
        # Another run may be the newest later.
        ("eval", "eval rope-s0-1a2b3c4d"),
        ("eval --lengths 512", "eval rope-s0-1a2b3c4d --lengths 512"),
    ]:
        monkeypatch.setenv(COMMAND_VARIABLE, f"pe-bench {typed}")
        record_command(run)
        record_command(run)
        kept.append(f"pe-bench {command}")
        assert recorded_commands(run) == kept
    assert program.run(["eval", "rope-s0", "--with", "yarn factor=4", "--mistyped"]) == 2
    assert os.environ[COMMAND_VARIABLE] == f"pe-bench {scored} --mistyped", "a word with a blank stays one"
    harmful = ("rm -rf ~", "pe-bench train; rm -rf ~", "pe-bench $(rm -rf ~)", "pe-bench '\x1b'")
    (run / "commands.json").write_text(json.dumps([*kept, *harmful, 7, None]))
    assert recorded_commands(run) == kept, "a stranger may have written others"
    for text in ("{", '{"a": 1}', "null"):
        (run / "commands.json").write_text(text)
        assert recorded_commands(run) == []
    monkeypatch.delenv(COMMAND_VARIABLE)
    with called_with(["encoding=rope", "data.path=a folder"]):  # by a Python program
        record_command(tmp_path)
    assert recorded_commands(tmp_path) == ["pe-bench train encoding=rope 'data.path=a folder'"]
    assert COMMAND_VARIABLE not in os.environ
