"""Outside values and paths, converted to the types that the code needs, and errors for unknown words."""

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

MAX_INTEGER = 2**63 - 1  # the largest integer of PyTorch and NumPy
SHOWN_CHARACTERS = 60  # characters of a wrong value
# What pe-bench keeps in the folder of results. A picture or table of a person may lie beside them.
FILES_OF_RESULTS = ("results.csv", "speed.csv", "tries.json", "tries", "runs", "anchors", "sweeps")


class Range(NamedTuple):
    """The range of a numeric type such as `Annotated[int, Range(1)]`."""

    least: float
    most: float = math.inf
    is_open: bool = False  # `least` itself is outside

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, (int, float))
        if self.is_open and number == self.least:
            return False
        return self.least <= number <= self.most

    @property
    def inequality(self) -> str:
        """Return the closed range as an inequality, such as `2<=x<=1000` or `x>=2`."""
        return f"x>={self.least}" if self.most == math.inf else f"{self.least}<=x<={self.most}"

    def __str__(self) -> str:
        least = f"above {self.least}" if self.is_open else f"of at least {self.least}"
        if self.most == math.inf:
            return least
        return f"{least} and at most {self.most}"


# Types of numbers for `check_type`.
Natural = Annotated[int, Range(0)]
AtLeast1 = Annotated[int, Range(1)]
AtLeast2 = Annotated[int, Range(2)]
ProbeDepths = Annotated[int, Range(2, 1_000)]  # more would have the same spans in most windows
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, is_open=True)]
Share = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1, is_open=True)]  # a share that is not 0


def unknown(word: str, kind: str, names: Iterable[str]) -> str:
    """Return a message: `unknown key 'x': did you mean 'y'?`, or all names if no name is close.

    kind: the word for the thing, such as key.
    """
    names = sorted({*names})
    close = [f"'{name}'" for name in close_to(word, names)]
    hint = f"there are: {', '.join(_same_section(word, names))}"
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    return f"unknown {kind} '{word}': {hint}"


def close_to(word: str, names: Sequence[str]) -> list[str]:
    """Return the names that `word` probably means: names with a close last part in the section of `word`.

    `lr` is for `train.lr`, and `lenght` and `train_length` for `train.length`.
    """
    dotted = [name for name in names if name.replace(".", "_") == word]
    if dotted:  # `train_length`, the spelling of an argument of Python
        return dotted
    last_parts = {name: _last_part(name) for name in _same_section(word, names)}
    close = difflib.get_close_matches(_last_part(word), last_parts.values(), n=1)
    whole = [name for name in names if name in close]
    return whole or [name for name, part in last_parts.items() if part in close]


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _section_of(name: str) -> str:
    return name.rpartition(".")[0]


def _same_section(word: str, names: Sequence[str]) -> Sequence[str]:
    """Return the names in the section of a word such as `train.lenght`, or all names for no such section."""
    section = _section_of(word)
    same = [name for name in names if _section_of(name) == section]
    return same if section and same else names


def check_type(value: Any, kind: Any, key: str) -> Any:
    """Convert `value` to the type `kind`, or raise a `UserError` that names the key, the value and the type.

    Whole floats pass for integers (YAML reads `1e6` as a float) and integers for floats.
    """
    try:
        return _convert(value, kind)
    except ValueError:
        is_integer = kind is int or typing.get_args(kind)[:1] == (int,)
        too_large = is_integer and isinstance(value, int) and value > MAX_INTEGER
        require(not too_large, f"{key} must be at most {MAX_INTEGER}, not {shown(value)}")
        way_out = ""
        with suppress(ValueError):
            _convert([value], kind)
            way_out = f": write [{value}]"
        raise UserError(f"{key} must be {_describe_type(kind)}, not {shown(value)}{way_out}") from None


def read_count(text: str) -> int | str:
    """Return 128000 for 128000 and 128k, 1000000 for 1M; the text itself if it is no whole number."""
    if text.isdecimal():
        return int(text)
    units = {"k": 1_000, "M": 1_000_000}
    try:
        count = Decimal(text[:-1]) * units[text[-1:]]
    except (InvalidOperation, KeyError):
        return text
    return int(count) if count == count.to_integral_value() else text


def shown(value: Any) -> str:
    """Return a wrong value as text for a message, shortened; `null` for None."""
    return "null" if value is None else repr(value)[:SHOWN_CHARACTERS]


def _convert(value: Any, kind: Any) -> Any:
    """Convert a value to the type `kind`. Raise `ValueError` for a value of another type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # Text comes last: it accepts numbers too, so that `tokenizer.name=123` is a name.
        for choice in sorted(arguments, key=lambda choice: choice is str):
            with suppress(ValueError):
                return _convert(value, choice)
    elif origin is Annotated:
        number = _convert(value, arguments[0])
        if number in arguments[1]:
            return number
    elif origin in (list, tuple) and isinstance(value, (list, tuple)):
        kinds = arguments if origin is tuple else arguments * len(value)
        if len(kinds) == len(value):
            return origin(map(_convert, value, kinds))
    elif kind in (int, float, str):
        return _convert_scalar(value, kind)
    elif origin is Literal or kind is Any:
        if kind is Any or value in arguments:
            return value
    elif isinstance(value, origin or kind):
        return value
    raise ValueError


def _convert_scalar(value: Any, kind: type) -> Any:
    """Convert a value to `kind`: str, int or float. Raise `ValueError` for a value of another type."""
    if kind is str and isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError
    if kind is str:
        return str(value)
    if kind is float and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is int and value == value // 1 and abs(value) <= MAX_INTEGER:
        return int(value)
    raise ValueError


def _describe_type(kind: Any) -> str:
    """Return a type in words for a message: `a whole number`, `one of auto, cpu`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe_type, arguments))
    if origin is Literal:
        choices = ", ".join(map(str, arguments))
        return f"one of {choices}" if len(arguments) > 1 else choices
    if origin is tuple:
        return "a list of " + " and ".join(map(_describe_type, arguments))
    if origin is Annotated:
        return f"{_describe_type(arguments[0])} {arguments[1]}"
    if origin is list:
        return f"a list, each item {_describe_type(arguments[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    names[type(None)] = "null"
    return names.get(kind) or getattr(kind, "__name__", str(kind))


def parse_lengths(text: str) -> list[int]:
    """Read `512,2048` as numbers. Raises `UserError` for anything but positive whole numbers."""
    lengths = [length.strip() for length in text.split(",")]
    numbers = [int(length) if length.isdecimal() else 0 for length in lengths]
    message = f"--lengths takes positive whole numbers such as 512,2048, not '{text}'"
    require(min(numbers) > 0, message)
    return numbers


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def listed(values: str | Path | Sequence[Any] | None) -> list[Any]:
    """Return values as a list: [] for None, one item for a text or a path.

    Raises `UserError` for other types.
    """
    if values is None:
        return []
    if isinstance(values, str | Path):
        return [values]
    is_single = isinstance(values, bytes | Mapping) or not isinstance(values, Iterable)
    require(not is_single, f"give a string, a path, or a list of these, not {shown(values)}")
    return [*values]


def check_texts(key: str, *values: Any) -> None:
    """Raise `UserError` for a value that is neither text nor a path: `check_type` takes a number for text."""
    for value in values:
        is_text = isinstance(value, str | Path)
        require(is_text, f"{key} must be text, not {shown(value)}")


def plain_value(value: Any) -> Any:
    """Convert a value for YAML: a path to text, a tuple to a list, NumPy's numbers and arrays to Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [plain_value(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def listed_lengths(lengths: Any) -> list[Any]:
    """Convert lengths, an array of NumPy or a single length to a list, without a check of its items.

    Text such as `512,2048` is read as on the command line. Raises `UserError` for an empty list and for text
    without lengths.
    """
    plain = plain_value(lengths)
    if isinstance(plain, str):
        return parse_lengths(plain)
    listed_values = plain if isinstance(plain, list) else [plain]
    message = "lengths is an empty list: leave it out, or give lengths such as [128, 512]"
    require(bool(listed_values), message)
    return listed_values


# Paths and texts that a person names


def expand_user(path: str | Path, option: str) -> str:
    """Return a path with a home folder for `~` or `~USER`. Raise `UserError` for an unknown user.

    option: the text before the path in the message, such as `data.path=`.
    """
    expanded = os.path.expanduser(path)
    typed = str(path)
    is_unknown = typed.startswith("~") and str(Path(expanded)).startswith("~")
    user, _, _ = typed[1:].partition("/")
    message = f"{option}{path}: no user {user!r} has a home folder here"
    require(not is_unknown, f"{message}: give the full path, or ./{path}")
    return expanded


def check_utf8(values: Any, key: str) -> None:
    """Raise `UserError` for a text that is no UTF-8, such as a path with a byte of latin-1.

    The files of a run are UTF-8, and could not name such a path.
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
    """Return the path of a folder, which need not exist yet, with a home folder for `~`.

    Raises `UserError` if a file is in its way, if a folder that `is_written` cannot be written, or for the
    folder `runs` of a folder of results, which is easily named in its place.
    """
    require(str(folder) != "", f"{key} is empty: name a folder")
    path = Path(expand_user(folder, f"{key}="))
    whole = Path(os.path.abspath(path))
    parent = path.parent if path.name == whole.name else whole.parent
    message = f"{key}={folder} has runs and is no folder of results: say {key}={parent}"
    is_named_runs = whole.name == "runs" and not (path / "runs").is_dir()
    require(not (is_named_runs and _has_runs(path)), message)
    existing_folders = filter(os.path.lexists, (path, *path.parents))
    existing = next(existing_folders, Path())
    message = f"{key}={folder}: {existing} is not a folder"
    require(existing.is_dir(), f"{message}: give another folder")
    way_out = f"say {key}=FOLDER with one that can, or change its permissions"
    message = f"{key}={folder}: {existing} cannot be written: {way_out}"
    require(not is_written or os.access(existing, os.W_OK), message)
    return path


def _has_runs(folder: Path) -> bool:
    """Return whether a folder has runs of pe-bench in it; other programs write a config.yaml too."""
    for config in folder.glob("*/config.yaml"):
        if config.with_name("environment.json").exists() or config.with_name("eval.csv").exists():
            return True
    return False


def require_writable(option: str, path: Path) -> None:
    """Raise `UserError` if the file of an option cannot be written, or lies among the files of results."""
    message = f"{option} {path}: there is no folder {path.parent}; make it, or name a file elsewhere"
    require(path.parent.is_dir(), message)
    message = f"{option} {path} is not a regular file: name one in a folder"
    require(path.is_file() or not path.exists(), message)
    real = Path(os.path.realpath(path))
    is_tries = real.name == "tries.json" and real.exists()  # they are kept where their runs were deleted too
    require(not is_tries, _among_results_text(option, path))
    for folder in real.parents:
        is_beside_runs = _is_file_of_results(real, folder) and _has_runs(folder / "runs")
        require(not is_beside_runs, _among_results_text(option, path))


def _is_file_of_results(file: Path, results: Path) -> bool:
    """Return whether a file is one that pe-bench keeps in a folder of results; both are real paths."""
    return any(file.is_relative_to(results / name) for name in FILES_OF_RESULTS)


def _among_results_text(option: str, path: Path) -> str:
    return f"{option} {path} lies among the files of the results: name one elsewhere"


def require_apart(files: Mapping[str, Path], results_dir: str | Path) -> None:
    """Raise `UserError` for two options with one file, and for an option with a file of the results.

    files: the files to write, by option.
    """
    results = Path(os.path.realpath(results_dir))
    options: dict[Path, str] = {}
    for option, path in files.items():
        real = Path(os.path.realpath(path))
        message = f"{options.get(real)} and {option} both name {path}, which can hold only one of them"
        require(real not in options, f"{message}: give another file")
        options[real] = option
        require(real != results, f"{option} {path} is the folder of results: name a file")
        require(not _is_file_of_results(real, results), _among_results_text(option, path))
