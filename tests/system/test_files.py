"""Files appear whole or not at all, and a file that another user could have changed is known."""

import os
import stat
from pathlib import Path

import pytest

from pe_bench.errors import RunError
from pe_bench.system import files
from pe_bench.system.files import writable_by_others, write_atomically, write_text

STRANGER = 65533


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


@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_file_or_folder_that_another_user_may_write_is_named(tmp_path, mode, monkeypatch):
    monkeypatch.setattr(files, "_is_own_group", lambda group: False)
    file, link = tmp_path / "cache" / "entry" / "kernel.so", tmp_path / "link.so"
    file.parent.mkdir(parents=True)
    assert writable_by_others(file) is None, "one that is not there yet is as private as its folders"
    file.write_text("code")
    link.symlink_to(file)
    for changed in (file, file.parent, file.parent.parent):
        assert writable_by_others(link) is writable_by_others(file) is None
        before = changed.stat().st_mode
        changed.chmod(before | mode)
        assert writable_by_others(file) == writable_by_others(link) == changed
        if changed.is_dir():
            changed.chmod(before | mode | stat.S_ISVTX)
            assert writable_by_others(file) is None, "a sticky folder protects what is in it"
        changed.chmod(before)
    monkeypatch.setattr(files, "_is_own_group", lambda group: True)
    file.chmod(0o664)
    assert writable_by_others(file) is None, "a group with only this user in it"
    if os.getuid() == 0:  # only root can give a file away
        os.chown(file, STRANGER, STRANGER)
        assert writable_by_others(file) == file
