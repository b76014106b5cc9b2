"""Values and paths from outside as the types that the code needs, and words that are not known."""

import difflib
import math
import os
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pe_bench.errors import UserError, require

MAX_INTEGER = 2**63 - 1  # what PyTorch and numpy take for a whole number
SHOWN = 60  # characters of a wrong value


class Range(NamedTuple):
    """The numbers that `Annotated[int, Range(1)]` takes."""

    least: float
    most: float = math.inf
    is_open: bool = False  # `least` is too small

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, (int, float))
        return (self.least < number if self.is_open else self.least <= number) and number <= self.most

    def __str__(self) -> str:
        least = f"above {self.least}" if self.is_open else f"of at least {self.least}"
        return least if self.most == math.inf else f"{least} and at most {self.most}"


# Types of numbers that `check_type` takes.
Natural = Annotated[int, Range(0)]
AtLeast1 = Annotated[int, Range(1)]
AtLeast2 = Annotated[int, Range(2)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, is_open=True)]
Share = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1, is_open=True)]  # a share that is not 0


def unknown(word: str, kind: str, names: Iterable[str]) -> str:
    """Return `unknown key 'x': did you mean 'y'?`, or the names that there are when none is close."""
    names = sorted({*names})
    offered = " or ".join(f"'{name}'" for name in close_to(word, names))
    hint = f"did you mean {offered}?" if offered else f"there are: {', '.join(_beside(word, names))}"
    return f"unknown {kind} '{word}': {hint}"


def close_to(word: str, names: Sequence[str]) -> list[str]:
    """Return the names that were probably meant: the closest, or those whose last part `word` is like.

    `lr` is for `train.lr`, and `lenght` and `train_length` for `train.length`.
    """
    dotted = [name for name in names if name.replace(".", "_") == word]
    if dotted:  # `train_length`, as an argument of Python may be spelled
        return dotted
    last_parts = {name: name.rpartition(".")[2] for name in _beside(word, names)}
    close = difflib.get_close_matches(word.rpartition(".")[2], last_parts.values(), n=1)
    return [name for name in names if name in close] or [
        name for name, part in last_parts.items() if part in close
    ]


def _beside(word: str, names: Sequence[str]) -> Sequence[str]:
    """Return the names in the section of a word such as `train.lenght`, or all where it has none."""
    section = word.rpartition(".")[0]
    beside = [name for name in names if name.rpartition(".")[0] == section]
    return beside if section and beside else names


def check_type(value: Any, kind: Any, key: str) -> Any:
    """Return `value` as a type, or raise a `UserError` that names the key, the value and the type.

    Whole floats pass for integers (YAML reads `1e6` as a float) and integers for floats.
    """
    try:
        return _convert(value, kind)
    except ValueError:
        way_out = ""
        with suppress(ValueError):
            _convert([value], kind)
            way_out = f": write [{value}]"
        raise UserError(f"{key} must be {_describe(kind)}, not {shown(value)}{way_out}") from None


def read_count(text: str) -> int | str:
    """Return 128000 for 128000 and 128k, 1000000 for 1M; the text itself where that is no whole number."""
    if text.isdecimal():
        return int(text)
    try:
        count = Decimal(text[:-1]) * {"k": 1_000, "M": 1_000_000}[text[-1:]]
    except (InvalidOperation, KeyError):
        return text
    return int(count) if count == count.to_integral_value() else text


def shown(value: Any) -> str:
    """Return a wrong value for a message: as it was given, and not at length."""
    return "null" if value is None else repr(value)[:SHOWN]


def _convert(value: Any, kind: Any) -> Any:
    """Raise `ValueError` for a value that is not of this type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # Text comes last: it accepts numbers too, so that `tokenizer.name=123` is a name.
        for one in sorted(arguments, key=lambda one: one is str):
            with suppress(ValueError):
                return _convert(value, one)
    elif origin is Annotated:
        number = _convert(value, arguments[0])
        if number in arguments[1]:
            return number
    elif origin in (list, tuple) and isinstance(value, (list, tuple)):
        kinds = arguments if origin is tuple else arguments * len(value)
        if len(kinds) == len(value):
            return origin(_convert(one, kind) for one, kind in zip(value, kinds, strict=True))
    elif kind in (int, float, str):
        return _convert_scalar(value, kind)
    elif origin is Literal or kind is Any:
        if kind is Any or value in arguments:
            return value
    elif isinstance(value, origin or kind):
        return value
    raise ValueError


def _convert_scalar(value: Any, kind: type) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int and is_number and value == value // 1 and abs(value) <= MAX_INTEGER:
        return int(value)
    if kind is float and is_number and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is str and (is_number or isinstance(value, str)):
        return str(value)
    raise ValueError


def _describe(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, arguments))
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(str, arguments))
    if origin is tuple:
        return "a list of " + " and ".join(map(_describe, arguments))
    if origin is Annotated:
        return f"{_describe(arguments[0])} {arguments[1]}"
    if origin is list:
        return f"a list, each item {_describe(arguments[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(kind, "null" if kind is type(None) else getattr(kind, "__name__", str(kind)))


def parse_lengths(text: str) -> list[int]:
    """Read `512,2048` as numbers. Raises `UserError` for anything but positive whole ones."""
    lengths = [length.strip() for length in text.split(",")]
    are_lengths = all(length.isdecimal() and int(length) > 0 for length in lengths)
    require(are_lengths, f"--lengths takes positive whole numbers such as 512,2048, not '{text}'")
    return [int(length) for length in lengths]


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def listed(values: str | Path | Sequence[Any] | None) -> list[Any]:
    """Return values, or a single one, as a list; an empty list for None. Raise `UserError` for all else."""
    if values is None:
        return []
    if isinstance(values, str | Path):
        return [values]
    is_list = isinstance(values, Iterable) and not isinstance(values, bytes | Mapping)
    require(is_list, f"give a text, a path or a list of them, not {shown(values)}")
    return [*values]


def check_texts(key: str, *values: Any) -> None:
    """Raise `UserError` for a value that is neither text nor a path: `check_type` takes a number for text."""
    for value in values:
        require(isinstance(value, str | Path), f"{key} must be text, not {shown(value)}")


def plain_value(value: Any) -> Any:
    """Return a value as YAML has it: paths as text, numbers and arrays of NumPy as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [plain_value(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def list_of_numbers(value: Any) -> list[Any]:
    """Return numbers, an array of NumPy or a single number as a list; what it contains is not checked."""
    plain = plain_value(value)
    return plain if isinstance(plain, list) else [plain]


# Paths and texts that a person names


def expand_user(path: str | Path, option: str) -> str:
    """Return a path with a home folder for `~` or `~USER`. Raise `UserError` for a user that there is not.

    option: what the path was typed after, such as `data.path=`.
    """
    expanded = os.path.expanduser(path)
    first = Path(expanded).parts[:1]
    is_left = str(path).startswith("~") and first != () and first[0].startswith("~")
    message = f"{option}{path}: no user {str(path)[1:].partition('/')[0]!r} has a home folder here"
    require(not is_left, f"{message}: name the folder from / on, or as ./{path}")
    return expanded


def check_utf8(values: Any, key: str) -> None:
    """Raise `UserError` for a text that UTF-8 cannot have, such as a path with a byte of latin-1.

    The files of a run are UTF-8, and could not say what it was trained on.
    """
    if isinstance(values, Mapping):
        for name, inner in values.items():
            check_utf8(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list | tuple):
        for inner in values:
            check_utf8(inner, key)
    elif isinstance(values, str):
        readable = values.encode("utf-8", "backslashreplace").decode()
        message = f"{key} has a byte that is no UTF-8, which no file of a run can have: {readable}"
        require(readable == values, f"{message}: rename the file or folder, or name it by a link")


def check_folder(folder: str | Path, key: str, *, is_written: bool = False) -> Path:
    """Return the folder, which need not exist yet.

    Raises `UserError` where a file is in its way, or where nothing can be written that has to be.
    """
    require(str(folder) != "", f"{key} is empty: name a folder")
    path = Path(expand_user(folder, f"{key}="))
    existing = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), Path())
    require(existing.is_dir(), f"{key}={folder}: {existing} is not a folder: name another place")
    way_out = f"say {key}=FOLDER with one that can, or change its permissions"
    message = f"{key}={folder}: {existing} cannot be written: {way_out}"
    require(not is_written or os.access(existing, os.W_OK), message)
    return path


def require_writable(option: str, path: Path) -> None:
    """Raise `UserError` for the file of an option that could not be written."""
    message = f"{option} {path}: there is no folder {path.parent}; make it, or name a file elsewhere"
    require(path.parent.is_dir(), message)
    message = f"{option} {path} is not a regular file: name one in a folder"
    require(path.is_file() or not path.exists(), message)
