"""Files appear whole or not at all."""

import os
from pathlib import Path
from unittest.mock import Mock

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
