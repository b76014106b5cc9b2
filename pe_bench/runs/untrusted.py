"""Checks of a run's folder, which may be a stranger's: it holds plain files, plain values, plain text.

Whatever reads or writes a run calls `check_files` first, and opens each file by `open_regular`, because a run
may change in between; `docs/security.md` says what follows from it.
"""

import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from pe_bench.errors import RunError
from pe_bench.system.terminal import CONTROL

# Bytes of what is read as a whole. Ours are hundreds of times smaller.
MAX_BYTES = {".yaml": 2**16, ".json": 2**20, ".csv": 2**27}
MAX_DEPTH = 20  # lists and mappings inside one another


def check_files(run: Path) -> None:
    """Raise `RunError` for a run that is no folder of plain files and folders, each of a sensible size.

    So nothing outside it is read as its own, written or deleted, and nothing in it is waited for.
    """
    try:
        mode = run.lstat().st_mode
        _check_kind(run, stat.S_ISLNK(mode), stat.S_ISDIR(mode) or stat.S_ISREG(mode))
        for entry in _below(run):
            _check_entry(entry)
    except PermissionError as error:
        raise RunError(unreadable(error)) from error


def unreadable(error: PermissionError) -> str:
    """Return what to do about a part of a run that its reader may not read."""
    return f"{error.filename} cannot be read (no permission): `chmod -R u+rwX` makes it readable to its owner"


def check_values(values: Any) -> None:
    """Raise `ValueError` for what is no plain value, nested too deeply, or text that steers a terminal."""
    for leaf in _leaves(values):
        if isinstance(leaf, str) and CONTROL.search(leaf):
            raise ValueError(f"it has control characters: {leaf!a:.60}")
        if not (leaf is None or isinstance(leaf, (str, bool, int, float))):
            raise ValueError(f"it holds a {type(leaf).__name__}, which is no plain value")


def _leaves(values: Any) -> Iterator[Any]:
    """Yield all that plain values hold, keys included. Raise `ValueError` for a deep nesting."""
    level = [values]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            else:
                yield value
        level = inner
    if level:
        raise ValueError("it is nested too deeply")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file to read, follow no link, and wait for nothing. Raise `OSError` for all else."""
    # Windows has none of these, nor pipes that have a place among files.
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError("it is a symbolic link") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no plain file")
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_regular(path: Path) -> str:
    """Return a regular file of a sensible size as UTF-8. Raise `OSError`, and `ValueError` for other text.

    Bytes would not do: YAML would read UTF-16 in them too, in which an alias looks different.
    """
    most = MAX_BYTES[path.suffix]
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"it has over {most:,} bytes")
    return content.decode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return the plain values of a file. Raise `OSError`, and `ValueError` where it holds anything else."""
    try:
        values = json.loads(read_regular(path))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    check_values(values)
    return values


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield everything below, following no link; what another process deletes meanwhile is left out."""
    folders = [str(folder)]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    yield entry


def _check_entry(entry: os.DirEntry[str]) -> None:
    """Check one of a run's files: a report sees tens of thousands, and asks no more than it needs."""
    path, is_file = entry.path, entry.is_file(follow_symlinks=False)
    _check_kind(path, entry.is_symlink(), is_file or entry.is_dir(follow_symlinks=False))
    most = MAX_BYTES.get(os.path.splitext(entry.name)[1]) if is_file else None
    if most is not None and (size := entry.stat(follow_symlinks=False).st_size) > most:
        raise RunError(f"{path} has {size:,} bytes, and such a file has at most {most:,}: {_WAY_OUT}")


def _check_kind(path: Path | str, is_link: bool, is_plain: bool) -> None:
    if is_link:
        raise RunError(f"{path} is a symbolic link, and a run's files lie in its own folder: {_WAY_OUT}")
    if not is_plain:
        raise RunError(f"{path} is not a regular file: {_WAY_OUT}")
    if CONTROL.search(os.path.basename(path)):
        raise RunError(f"{path} has control characters in its name: {_WAY_OUT}")


_WAY_OUT = "delete it, or ask for a whole copy of the run"


class InvalidYamlError(ValueError):
    """An error about a file that holds no mapping of plain values; its text says why."""


# libyaml's reader is as safe as Python's, and reads thousands of files in a second.
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the values in a text of YAML. Raise `InvalidYamlError`.

    Aliases are refused: a few lines of them can stand for more than any memory holds, and no file of ours
    has one. Interpolations are refused because Hydra would resolve one, to a secret of the environment for
    example. They are looked for in the values, because an escape can hide a dollar sign in the text.
    """
    try:
        depth = 0
        for event in yaml.parse(text, SAFE):  # before a nesting is built, which could end the process
            if isinstance(event, yaml.AliasEvent):
                raise InvalidYamlError("it has aliases, such as *name")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InvalidYamlError("it is nested too deeply")
        values = yaml.load(text, SAFE)
        if not isinstance(values, dict):
            raise InvalidYamlError("it holds no keys")
        check_values(values)
    except InvalidYamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidYamlError(" ".join(str(error).split())) from error
    if any(isinstance(leaf, str) and "${" in leaf for leaf in _leaves(values)):
        raise InvalidYamlError("it has interpolations, such as ${name}, and a run's values are resolved")
    return values
