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


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_holds_the_written_text_and_no_other_file_is_left(tmp_path: Path) -> None:
    write_text(tmp_path / "new.txt", "héllo\n")
    assert (tmp_path / "new.txt").read_bytes() == "héllo\n".encode()
    assert names(tmp_path) == ["new.txt"]


def test_line_endings_are_written_as_they_are(tmp_path: Path) -> None:
    write_text(tmp_path / "new.txt", "a\nb\r\n")
    assert (tmp_path / "new.txt").read_bytes() == b"a\nb\r\n"


def test_readers_see_the_old_file_until_the_new_one_is_whole(path: Path) -> None:
    seen = []

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        assert temporary.parent == path.parent, "a rename works within one file system only"
        seen.append(path.read_text())

    write_atomically(path, write)
    assert seen == ["old"]
    assert path.read_text() == "new"


def test_a_writer_that_fails_halfway_leaves_the_old_file_and_no_other(path: Path) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text("half of")
        raise OSError("no space left")

    with pytest.raises(RunError, match="no space left"):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert names(path.parent) == ["eval.csv"]


def test_a_writer_that_fails_before_it_begins_raises_its_own_error(path: Path) -> None:
    def write(temporary: Path) -> None:
        raise ValueError("nothing to write")

    with pytest.raises(ValueError, match="nothing to write"):
        write_atomically(path, write)
    assert names(path.parent) == ["eval.csv"]


def test_an_interrupt_leaves_the_old_file_and_no_other(path: Path) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text("half of")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert names(path.parent) == ["eval.csv"]


def test_a_rename_that_fails_leaves_the_old_file_and_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunError):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names(path.parent) == ["eval.csv"]


def test_bytes_are_on_the_disk_before_the_rename_and_the_name_after_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut may leave the new name without its bytes."""
    happened = []
    sync, replace = os.fsync, os.replace

    def recorded_sync(descriptor: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def recorded_replace(source: Path, target: Path) -> None:
        happened.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write_text(path, "new")
    assert happened == ["file", "rename", "folder"]


def test_writers_of_one_file_do_not_disturb_each_other(path: Path) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text("first, begun earlier")
        write_text(path, "second")
        assert temporary.read_text() == "first, begun earlier"

    write_atomically(path, write)
    assert path.read_text() == "first, begun earlier"
    assert names(path.parent) == ["eval.csv"]
