"""A file that another user could have changed is known before it is used."""

import os
from pathlib import Path

import pytest

from pe_bench.system import files as private
from pe_bench.system.files import writable_by_others

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="rights to write are as Unix has them")
STRANGER = 65533


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "entry" / "kernel.so"
    path.parent.mkdir(parents=True)
    path.write_text("code")
    return path


def test_a_file_in_private_folders_is_private(file):
    assert writable_by_others(file) is None


def test_a_file_that_is_not_there_yet_is_as_private_as_its_folders(file):
    missing = file.with_name("missing") / "kernel.so"
    assert writable_by_others(missing) is None
    file.parent.chmod(0o777)
    assert writable_by_others(missing) == file.parent


@pytest.mark.parametrize("mode", [0o020, 0o002])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_write_permission_for_group_or_others_is_named(file, mode, level, monkeypatch):
    monkeypatch.setattr(private, "_is_own_group", lambda group: False)
    place = [file, *file.parents][level]
    place.chmod(place.stat().st_mode | mode)
    assert writable_by_others(file) == place


def test_a_group_that_holds_this_user_alone_may_write(file, monkeypatch):
    file.chmod(0o664)
    monkeypatch.setattr(private, "_is_own_group", lambda group: group == file.stat().st_gid)
    assert writable_by_others(file) is None
    file.chmod(0o666)
    assert writable_by_others(file) == file


def test_a_sticky_folder_protects_what_is_in_it(file):
    file.parent.parent.chmod(0o1777)
    assert writable_by_others(file) is None


@pytest.mark.skipif(getattr(os, "getuid", lambda: 1)() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_named(file):
    os.chown(file, STRANGER, STRANGER)
    assert writable_by_others(file) == file


def test_a_link_counts_as_the_file_that_it_points_to(file, tmp_path):
    link = tmp_path / "link.so"
    link.symlink_to(file)
    assert writable_by_others(link) is None
    file.chmod(0o666)
    assert writable_by_others(link) == file
