"""Files appear whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from pe_bench.errors import RunError
from pe_bench.system.files import write_atomically, write_text


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
        temporary.write_text("first, begun earlier")
        assert temporary.parent == path.parent, "a rename works within one file system only"
        assert path.read_text() == "old"
        write_text(path, "second")
        assert temporary.read_text() == "first, begun earlier"

    write_atomically(path, write)
    assert_alone(path, "first, begun earlier")
    write_text(path, "héllo\nb\r\n")
    assert_alone(path, "héllo\nb\r\n")


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError("no space"), RunError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_writer_or_a_rename_that_fails_leaves_the_old_file_and_no_other(path, error, raised, monkeypatch):
    def refuse(*_: object) -> None:
        raise error

    def half(temporary: Path) -> None:
        temporary.write_text("half of")
        raise error

    with pytest.raises(raised):
        write_atomically(path, half)
    assert_alone(path, "old")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(raised):
        write_text(path, "new")
    assert_alone(path, "old")


def test_bytes_are_on_the_disk_before_the_rename_and_the_name_after_it(path, monkeypatch):
    """Otherwise a power cut may leave the new name without its bytes."""
    happened, sync, replace = [], os.fsync, os.replace

    def recorded_sync(descriptor: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "replace", lambda *paths: (happened.append("rename"), replace(*paths)))
    write_text(path, "new")
    assert happened == ["file", "rename", "folder"]
