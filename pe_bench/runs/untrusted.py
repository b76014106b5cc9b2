"""Checks of a run's folder, which may be a stranger's: it holds plain files, plain values, plain text.

Whatever reads or writes a run calls `check_files` first, and opens each file by `open_regular`, because a run
may change in between; `docs/security.md` says what follows from it.
"""

import errno
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator
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
    level = [values]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _inner(value)]
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


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        if CONTROL.search(value):
            raise ValueError(f"it has control characters: {value!a:.60}")
    elif not (value is None or isinstance(value, (bool, int, float))):
        raise ValueError(f"it holds a {type(value).__name__}, which is no plain value")
    return ()


_WAY_OUT = "delete it, or ask for a whole copy of the run"


class InvalidYamlError(ValueError):
    """An error about a file that holds no mapping of plain values; its text says why."""


MAX_KNOWN, MAX_LENGTH = 4096, 100  # scalars that are remembered, and their characters
_TAGS: dict[tuple[str, tuple[bool, bool]], str] = {}  # by a scalar's text, and whether it was plain or quoted
_SCALARS: dict[tuple[str, str], Any] = {}  # by a scalar's tag and text


def _remember(cache: dict[Any, Any], key: tuple[str, Any], value: Any) -> None:
    if len(cache) < MAX_KNOWN and sum(len(part) for part in key) < MAX_LENGTH:
        cache[key] = value


# libyaml's reader is as safe as Python's, and reads thousands of files in a second.
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(SAFE):
    """A loader that refuses deep nesting before libyaml's own recursion ends the process."""

    depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidYamlError("it is nested too deeply")

    def ascend_resolver(self) -> None:
        self.depth -= 1

    # Runs have nearly all of their values in common, and PyYAML finds out what a scalar is in Python.

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is not yaml.ScalarNode:
            return super().resolve(kind, value, implicit)
        tag = _TAGS.get((value, implicit))
        if tag is None:
            tag = super().resolve(kind, value, implicit)
            _remember(_TAGS, (value, implicit), tag)
        return tag

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        scalar = _SCALARS.get((node.tag, node.value), _SCALARS)
        if scalar is _SCALARS:
            scalar = super().construct_object(node, deep)
            if scalar is None or isinstance(scalar, (str, int, float)):  # a tag can make a scalar anything
                _remember(_SCALARS, (node.tag, node.value), scalar)
        return scalar


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the values in a text of YAML. Raise `InvalidYamlError`.

    Aliases are refused: a few lines of them can stand for more than any memory holds, and no file of ours
    has one.
    """
    try:
        return _mapping_in(text)
    except InvalidYamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidYamlError(" ".join(str(error).split())) from error


def _mapping_in(text: str) -> dict[str, Any]:
    if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader)):
        raise InvalidYamlError("it has aliases, such as *name")
    values = yaml.load(text, Loader)
    if not isinstance(values, dict):
        raise InvalidYamlError("it holds no keys")
    check_values(values)
    # Of the values, because an escape such as \x24 hides a dollar sign in the text. Hydra would resolve one,
    # to a secret of the environment for example.
    if _has_interpolation(values):
        raise InvalidYamlError("it has interpolations, such as ${name}, and a run's values are resolved")
    return values


def _has_interpolation(value: Any) -> bool:
    """Return whether a text in plain values, a key included, holds what OmegaConf would resolve."""
    if isinstance(value, dict):
        return any(_has_interpolation(inner) for pair in value.items() for inner in pair)
    if isinstance(value, list):
        return any(map(_has_interpolation, value))
    return isinstance(value, str) and "${" in value
