"""Files written so that a reader, or a crash, never sees half of one; paths that a person names; owners."""

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from safetensors import SafetensorError

from pe_bench.errors import RunError, UserError, require
from pe_bench.system.terminal import CONTROL

TEMPORARY = ".partial-"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a file beside `path`, flush it to the disk, and rename it into place."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}")
    try:
        with name_write_errors(path):
            write(temporary)
            flush_to_disk(temporary)
            os.replace(temporary, path)
            flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def usual_permissions(path: Path) -> Iterator[None]:
    """Give a file that is written here the permissions of any new file: safetensors hides it from others."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield
    path.chmod(mode)


@contextmanager
def name_write_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, and whatever else stops a write, into a `RunError` that names the file."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror or error}") from error
    except SafetensorError as error:
        reason = str(error).rpartition("I/O error: ")[2].split(" (os error")[0]
        raise RunError(f"{path} could not be written: {reason}") from error


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file; with a mode, such as 0o444, it has these permissions from the start."""
    write_atomically(path, lambda temporary: _write(temporary, text, mode))


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process left half written, anywhere below; only its owner may call this."""
    for leftover in sorted(folder.rglob(f"{TEMPORARY}*")):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Flush a file's bytes, or a folder's list of names, so that a power cut keeps them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, text: str, mode: int | None) -> None:
    # newline="" keeps "\n" as it is on every system, so that hashes of the files agree.
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
    if mode is not None:
        path.chmod(mode)


MAX_PATH_BYTES = 1_000  # of a path: systems take 1,024 or more, and a run's files lie below it


def expand_path(path: str | Path, key: str = "") -> Path:
    """Return a path with the home folder in place of `~`; `key`, such as `cache_dir=`, is for messages.

    Raise `UserError` for a path that no system takes, or that a run's config.yaml cannot hold.
    """
    check_name(str(path), key)
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0]
        message = f"{key}{path}: the folder of {user} is not known: write the path without {user}"
        raise UserError(message) from error
    size = len(os.fsencode(os.path.abspath(expanded)))
    message = f"{key}{path!s:.40}... has {size:,} bytes: name a path of up to {MAX_PATH_BYTES:,}"
    require(size <= MAX_PATH_BYTES, message)
    return expanded


def check_folder(folder: str | Path, key: str, *, is_written: bool = False) -> Path:
    """Return the folder, which need not exist yet.

    Raises `UserError` where a file is in its way, or where nothing can be written that has to be.
    """
    require(str(folder) != "", f"{key} is empty: name a folder")
    path = expand_path(folder, f"{key}=")
    existing = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), Path())
    require(existing.is_dir(), f"{key}={folder}: {existing} is not a folder: name another place")
    if is_written and not os.access(existing, os.W_OK):
        way_out = f"say {key}=FOLDER with one that can, or change its permissions"
        raise UserError(f"{key}={folder}: {existing} cannot be written: {way_out}", key)
    return path


def require_writable(option: str, path: Path) -> None:
    """Raise `UserError` for the file of an option that could not be written."""
    folder = path.parent
    require(
        folder.is_dir(), f"{option} {path}: there is no folder {folder}; make it, or name a file elsewhere"
    )
    require(
        path.is_file() or not path.exists(), f"{option} {path} is not a regular file: name one in a folder"
    )
    allowed = os.access(folder, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
    require(allowed, f"{option} {path} cannot be written (no permission): name a file elsewhere")


def check_name(name: str, key: str = "") -> None:
    """Raise `UserError` for a name that would damage the files that hold it."""
    sign = "${" if "${" in name else next(iter(CONTROL.findall(name)), "")
    require(not sign, f"{key}{name!a} has {sign!a} in it, which no run may hold: give it another name")


@contextmanager
def same_working_folder() -> Iterator[None]:
    """Return to the working folder where a user's code leaves it: relative paths begin there."""
    before = os.getcwd()
    try:
        yield
    finally:
        if os.getcwd() != before:
            os.chdir(before)


def writable_by_others(path: Path) -> Path | None:
    """Return the first of a file and the folders above it that another user could change, or None.

    As ssh does for keys: each must belong to this user or to root, and be writable for nobody else. In a
    folder with the sticky bit, such as /tmp, others cannot touch what is not theirs. A link counts as what it
    points to.
    """
    if not hasattr(os, "getuid"):  # Windows has other means
        return None
    resolved = path.resolve()
    return next((entry for entry in (resolved, *resolved.parents) if not _is_private(entry)), None)


def _is_private(entry: Path) -> bool:
    try:
        status = entry.stat()
    except FileNotFoundError:  # whoever makes it will own it
        return True
    shared = status.st_mode & (stat.S_IWOTH if _is_own_group(status.st_gid) else stat.S_IWOTH | stat.S_IWGRP)
    return status.st_uid in (os.getuid(), 0) and (not shared or bool(status.st_mode & stat.S_ISVTX))


@cache
def _is_own_group(group: int) -> bool:
    """Return whether a group holds this user alone, as many systems make one for each user."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and not set(entry.gr_mem) - {user.pw_name}
