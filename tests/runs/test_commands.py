"""The arguments that a user typed stay with the run that they made."""

import os

from pe_bench.runs.commands import VARIABLE, called_with, record_command, recorded_commands, remember_command


def test_a_command_is_kept_once_exactly_as_typed(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    remember_command(["train", "-m", "encoding=rope,alibi", "data.path=a folder"])
    record_command(tmp_path)
    record_command(tmp_path)
    remember_command(["eval", "rope-s0", "--with", "yarn factor=4"])
    record_command(tmp_path)
    assert recorded_commands(tmp_path) == (
        "pe-bench train -m encoding=rope,alibi 'data.path=a folder'",
        "pe-bench eval rope-s0 --with 'yarn factor=4'",
    )


def test_without_a_typed_command_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    record_command(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert recorded_commands(tmp_path) == ()


def test_a_program_s_call_is_kept_as_the_command_that_asks_for_the_same(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with called_with(["encoding=rope", "data.path=a folder"]):
        record_command(tmp_path)
    assert recorded_commands(tmp_path) == ("pe-bench train encoding=rope 'data.path=a folder'",)
    assert VARIABLE not in os.environ


def test_a_damaged_file_of_commands_hides_no_run(tmp_path):
    for text in ("{", '{"a": 1}', "null"):
        (tmp_path / "commands.json").write_text(text)
        assert recorded_commands(tmp_path) == ()


def test_a_command_that_scored_the_newest_run_is_kept_with_that_runs_name(tmp_path, monkeypatch):
    """Another run may be the newest later."""
    run = tmp_path / "rope-s0-1a2b3c4d"
    run.mkdir()
    for arguments, kept in [
        (["eval"], "pe-bench eval rope-s0-1a2b3c4d"),
        (["eval", "--lengths", "512"], "pe-bench eval rope-s0-1a2b3c4d --lengths 512"),
        (["eval", "rope-s0", "--lengths", "512"], "pe-bench eval rope-s0 --lengths 512"),
        (["train", "encoding=rope"], "pe-bench train encoding=rope"),
    ]:
        monkeypatch.setenv(VARIABLE, "")
        remember_command(arguments)
        record_command(run)
        assert recorded_commands(run)[-1] == kept
