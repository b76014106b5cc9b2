"""The one reader of a run's folder, which may be a stranger's: plain files, plain values, plain text.

All code that reads or writes a run calls `check_files` first, and opens each file with `open_regular`,
because a run may change in between. `docs/security.md` says what this protects from.
"""

import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from pe_bench.errors import RunError
from pe_bench.system.terminal import CONTROL_SIGNS

# Bytes of files that are read whole. Files of pe-bench are hundreds of times smaller.
MAX_BYTES = {".yaml": 2**16, ".json": 2**20, ".csv": 2**27}
WAY_OUT = "delete it, or ask for a whole copy of the run"
MAX_DEPTH = 20  # lists and mappings inside one another
# libyaml's reader is as safe as Python's, and reads thousands of files in a second.
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_files(run: Path) -> None:
    """Raise `RunError` unless a run is a folder of plain files and folders, `OSError` if it does not exist.

    So no path outside the run is read, written or deleted as a part of it, and no pipe in it is waited for.
    """
    os.lstat(run)  # raises if the run does not exist
    for path in chain([str(run)], _paths_below(run)):
        with suppress(FileNotFoundError):  # another process may delete it meanwhile
            mode = os.lstat(path).st_mode
            reason = (
                "has control characters in its name" if CONTROL_SIGNS.search(os.path.basename(path)) else ""
            )
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                reason = "is a symbolic link" if stat.S_ISLNK(mode) else "is not a regular file"
            if reason:
                raise RunError(f"{path} {reason}: {WAY_OUT}")


def _paths_below(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):  # which follows no link
        for name in (*folders, *files):
            yield os.path.join(place, name)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file to read, without following a link or waiting for a pipe.

    Raise `RunError` without the permission to read, and `OSError` for a path that is no regular file.
    """
    # Windows lacks the first three flags, and has no pipes among its files.
    names = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
    flags = sum(getattr(os, name, 0) for name in names)
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except PermissionError as error:
        raise RunError(f"{path} cannot be read (no permission): `chmod u+r` allows it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no plain file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> str:
    """Return the text of a regular file of a sensible size. Raises as `open_regular`, and `ValueError`.

    A file above `MAX_BYTES` is an `OSError` too. The text is decoded as UTF-8: YAML would also read bytes as
    UTF-16, in which an alias looks different.
    """
    most = MAX_BYTES[path.suffix]
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"it has over {most:,} bytes")
    return content.decode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises as `read_regular`, and `ValueError` if it is no object."""
    try:
        values = json.loads(read_regular(path))
        _check_plain(values)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    return values


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the plain values in a text of YAML. Raises `ValueError` with a text of one line.

    Aliases are refused: a few lines of aliases can expand to more than any memory holds, and no file of
    pe-bench has an alias. Interpolations are refused because Hydra would resolve them, to a secret of the
    environment for example. They are searched for in the values, because an escape can hide a dollar sign
    in the text.
    """
    try:
        depth = 0
        for event in yaml.parse(text, _SAFE):  # before a nesting is built, which could end the process
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has aliases, such as *name")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError("it is nested too deeply")
        values = yaml.load(text, _SAFE)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(values, dict):
        raise ValueError("it holds no keys")
    _check_plain(values)
    if "${" in json.dumps(values):
        raise ValueError("it has interpolations, such as ${name}, and a run's values are resolved")
    return values


def _check_plain(value: Any) -> None:
    """Raise `ValueError` for values that are not plain, and for control characters."""
    if isinstance(value, (dict, list)):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_plain(inner)
    elif isinstance(value, str):
        if CONTROL_SIGNS.search(value):
            raise ValueError(f"it has control characters: {value!a:.60}")
    elif not (value is None or isinstance(value, (bool, int, float))):
        raise ValueError(f"it holds a {type(value).__name__}, which is no plain value")
