"""Files that are written so that a reader, or a crash, never sees half of one."""

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from pe_bench.errors import RunError

TEMPORARY = ".partial-"


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
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
