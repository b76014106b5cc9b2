"""Paths that a person names, and the working folder that they begin in."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pe_bench.errors import UserError, require
from pe_bench.system.terminal import CONTROL

MAX_BYTES = 1_000  # of a path: systems take 1,024 or more, and a run's files lie below it


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
    require(size <= MAX_BYTES, f"{key}{path!s:.40}... has {size:,} bytes: name a path of up to {MAX_BYTES:,}")
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
