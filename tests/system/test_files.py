"""Files appear whole or not at all."""

import errno
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.commands import Command, tiny_overrides

from pe_bench.errors import RunError, UserError
from pe_bench.runs.folder import gather
from pe_bench.system.files import Lock, cache_root, cached_folder, write_atomically, write_text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "eval.csv"
    path.write_text("old")
    return path


def assert_alone(path: Path, text: str) -> None:
    assert path.read_bytes() == text.encode()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_readers_see_the_old_file_until_the_new_one_is_whole_and_writers_disturb_nobody(path):
    def write(temporary: Path) -> None:
        temporary.write_text("begun earlier")
        write_text(path, "héllo\nb\r\n")
        assert path.read_bytes() == "héllo\nb\r\n".encode()
        assert temporary.read_text() == "begun earlier"

    write_atomically(path, write)
    assert_alone(path, "begun earlier")


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError("no space"), RunError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(path, error, raised, function, monkeypatch):
    monkeypatch.setattr(os, function, Mock(side_effect=error))
    with pytest.raises(raised):
        write_text(path, "new")
    assert_alone(path, "old")


def test_bytes_are_on_the_disk_before_the_rename_and_the_name_after_it(path, writes):
    """Otherwise a power cut may leave the new name without its bytes."""
    write_text(path, "new")
    assert writes == ["file", "rename", "folder"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_with_a_way_out(tmp_path, monkeypatch, number):
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    for use in (
        lambda: Lock(tmp_path / "lock").acquire(timeout=0),
        lambda: cached_folder(tmp_path, "key", lambda folder: {}),
        lambda: gather(tmp_path),
    ):
        with pytest.raises(RunError, match=f"the file system of {tmp_path} has no locks .*on another one"):
            use()


@pytest.mark.parametrize("home", ["~no_such_user/x", "~no_such_user"])
def test_the_cache_of_a_user_that_there_is_not_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("PE_BENCH_CACHE", home)
    message = f"PE_BENCH_CACHE={home}: no user 'no_such_user' has a home folder here: give the full path"
    with pytest.raises(UserError, match=re.escape(message)):
        cache_root(None)
    monkeypatch.setenv("PE_BENCH_CACHE", "~/x")
    assert cache_root(None) == Path.home() / "x"


def test_no_command_makes_a_cache_in_the_folder_that_it_is_called_in(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_BENCH_CACHE", "~no_such_user/x")
    arguments = [text for text in tiny_overrides(folder) if not text.startswith("cache_dir=")]
    outcome = command("train", *arguments, "encoding=rope")
    assert outcome.code == 2 and "PE_BENCH_CACHE=~no_such_user/x" in outcome.line
    assert [*Path().iterdir()] == []
