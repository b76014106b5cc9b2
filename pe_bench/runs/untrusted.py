"""The one reader of a run's folder, which may be a stranger's: plain files, plain values, plain text.

Whatever reads or writes a run calls `check_files` first, and opens each file by `open_regular`, because a run
may change in between; `docs/security.md` says what follows from it.
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
from pe_bench.system.terminal import CONTROL

# Bytes of what is read as a whole. Ours are hundreds of times smaller.
MAX_BYTES = {".yaml": 2**16, ".json": 2**20, ".csv": 2**27}
WAY_OUT = "delete it, or ask for a whole copy of the run"
MAX_DEPTH = 20  # lists and mappings inside one another
# libyaml's reader is as safe as Python's, and reads thousands of files in a second.
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_files(run: Path) -> None:
    """Raise `RunError` for a run that is no folder of plain files and folders, `OSError` where it is none.

    So nothing outside it is read as its own, written or deleted, and nothing in it is waited for.
    """
    os.lstat(run)  # which raises where there is none
    for path in chain([str(run)], _paths_below(run)):
        with suppress(FileNotFoundError):  # another process may delete it meanwhile
            mode = os.lstat(path).st_mode
            reason = "has control characters in its name" if CONTROL.search(os.path.basename(path)) else ""
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                reason = "is a symbolic link" if stat.S_ISLNK(mode) else "is not a regular file"
            if reason:
                raise RunError(f"{path} {reason}: {WAY_OUT}")


def _paths_below(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):  # which follows no link
        for name in (*folders, *files):
            yield os.path.join(place, name)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file to read, follow no link, and wait for nothing.

    Raise `RunError` where that is not permitted, and `OSError` for all that is no regular file.
    """
    # Windows has none of these, nor pipes that have a place among files.
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except PermissionError as error:
        raise RunError(f"{path} cannot be read (no permission): `chmod u+r` allows it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no plain file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> str:
    """Return a regular file of a sensible size as UTF-8. Raise as `open_regular`, and `ValueError`.

    Bytes would not do: YAML would read UTF-16 in them too, in which an alias looks different.
    """
    most = MAX_BYTES[path.suffix]
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"it has over {most:,} bytes")
    return content.decode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return the plain values of a file. Raise as `open_regular`, and `ValueError` for anything else."""
    try:
        values = json.loads(read_regular(path))
        _check_plain(values)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    return values


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the plain values in a text of YAML. Raise `ValueError`, whose text is one line.

    Aliases are refused: a few lines of them can stand for more than any memory holds, and no file of ours
    has one. Interpolations are refused because Hydra would resolve one, to a secret of the environment for
    example. They are looked for in the values, because an escape can hide a dollar sign in the text.
    """
    try:
        depth = 0
        for event in yaml.parse(text, _SAFE):  # before a nesting is built, which could end the process
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has aliases, such as *name")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
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
        if CONTROL.search(value):
            raise ValueError(f"it has control characters: {value!a:.60}")
    elif not (value is None or isinstance(value, (bool, int, float))):
        raise ValueError(f"it holds a {type(value).__name__}, which is no plain value")
