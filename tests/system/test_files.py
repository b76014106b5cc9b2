"""Files appear whole or not at all."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.commands import Command, tiny_overrides

from pe_bench.errors import RunError, UserError
from pe_bench.runs.folder import gather, locked
from pe_bench.system.files import (
    TEMPORARY_PREFIX,
    Lock,
    cache_root,
    cached_folder,
    replace_folder,
    write_atomically,
    write_text,
)


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


def write_folder(target: Path, text: str) -> None:
    with replace_folder(target) as temporary:
        (temporary / "a").write_text(text)
        (temporary / "b").write_text(text)


def text_of(folder: Path) -> str:
    [text] = {(folder / name).read_text() for name in ("a", "b")}
    return text


def test_an_error_of_a_read_only_file_system_names_the_file_or_run_of_the_caller(tmp_path, monkeypatch):
    def refuse(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    for name in ("open", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(RunError) as of_file:
        write_atomically(tmp_path / "a.csv", lambda path: os.open(path, os.O_WRONLY))
    with pytest.raises(RunError) as of_run, locked(tmp_path):
        pass
    monkeypatch.undo()
    assert str(of_file.value) == f"{tmp_path}/a.csv could not be written: Read-only file system"
    reason = f"{tmp_path} cannot be written (Read-only file system)"
    assert str(of_run.value) == f"{reason}: copy it to a folder that can be written"


def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    target = tmp_path / "run"
    write_folder(target, "old")
    rename = os.replace

    def refuse(source: Path, destination: Path) -> None:
        if Path(source).name.startswith(TEMPORARY_PREFIX):
            raise OSError("no space")
        rename(source, destination)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunError, match="run could not be written: no space"):
        write_folder(target, "new")
    assert text_of(target) == "old" and [*tmp_path.iterdir()] == [target]


def test_a_kill_while_a_folder_is_replaced_leaves_the_old_or_the_new_one_for_the_next_call(
    tmp_path, monkeypatch
):
    target, moments = tmp_path / "live" / "run", []

    def keeping(act: Callable[..., object]) -> Callable[..., None]:
        def watched(*arguments: object, **options: object) -> None:
            for each in (lambda: None, lambda: act(*arguments, **options)):
                each()
                moments.append(shutil.copytree(target.parent, tmp_path / f"{len(moments)}"))

        return watched

    write_folder(target, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", keeping(os.replace))
        patch.setattr(shutil, "rmtree", keeping(shutil.rmtree))
        patch.setattr(os, "unlink", keeping(os.unlink))
        write_folder(target, "new")
    assert text_of(target) == "new" and [*target.parent.iterdir()] == [target]
    found = []
    for moment in moments:
        with replace_folder(moment / "run") as temporary:
            found.append(text_of(moment / "run"))
            shutil.copytree(moment / "run", temporary, dirs_exist_ok=True)
        assert text_of(moment / "run") == found[-1]
        write_folder(moment / "run", "newer")
        assert text_of(moment / "run") == "newer" and not [*moment.glob(".replaced-*")]
    assert found == sorted(found, reverse=True) and {*found} == {"old", "new"}


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
