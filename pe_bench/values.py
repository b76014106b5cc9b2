"""Values from outside as the types that the code needs, and words that are not known."""

import difflib
import math
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from pe_bench.errors import UserError

MAX_INTEGER = 2**63 - 1  # what PyTorch and numpy take for a whole number
MIN_LAST_PART = 0.75  # likeness of a word to the last part of a name
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


def unknown(word: str, kind: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `unknown key 'x': did you mean 'y'?`, or the known names when none is close."""
    names = sorted(names)
    close = close_to(word, names, cutoff)
    section = word.rpartition(".")[0]
    beside = [name for name in names if name.rpartition(".")[0] == section] or names
    offered = " or ".join(f"'{name}'" for name in close)
    hint = f"did you mean {offered}?" if close else f"there are: {', '.join(beside)}"
    return f"unknown {kind} '{word}': {hint}"


def close_to(word: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the names that were probably meant: the closest one, or those whose last part `word` is like.

    `lr` is for `train.lr`, and `lenght` for `train.length`.
    """
    names = list(names)
    by_last_part: dict[str, list[str]] = {}
    for name in names:
        by_last_part.setdefault(name.rpartition(".")[2], []).append(name)
    ends = [name for name in by_last_part.get(word, []) if name != word]
    if ends or "." in word:
        return ends or difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    for part in difflib.get_close_matches(word, by_last_part, n=1, cutoff=max(cutoff, MIN_LAST_PART)):
        return [part] if part in names else by_last_part[part]
    return difflib.get_close_matches(word, names, n=1, cutoff=cutoff)


def check_type(value: Any, kind: Any, key: str) -> Any:
    """Return `value` as `wanted`, or raise a `UserError` that names the key, the value and the type.

    Whole floats pass for integers (YAML reads `1e6` as a float) and integers for floats.
    """
    converted = _convert(value, kind)
    if converted is _WRONG:
        is_one = _convert([value], kind) is not _WRONG
        way = f": write {key}=[{value}]" if is_one else ""
        raise UserError(f"{key} must be {_describe(kind)}, not {shown(value)}{way}", key)
    return converted


def shown(value: Any) -> str:
    """Return a wrong value for a message: as it was given, and not at length."""
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


_WRONG = object()


def _convert(value: Any, kind: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _first(_convert(value, one) for one in sorted(arguments, key=_strictness))
    if origin is Literal:
        return value if value in arguments else _WRONG
    if origin in (list, tuple):
        return _convert_sequence(value, origin, arguments)
    if origin is dict or kind is dict:
        return dict(value) if isinstance(value, dict) else _WRONG
    if origin is Annotated:
        converted = _convert(value, arguments[0])
        return converted if converted is _WRONG or converted in arguments[1] else _WRONG
    if kind is Any:
        return value
    if kind is type(None):
        return None if value is None else _WRONG
    if kind is bool:
        return value if isinstance(value, bool) else _WRONG
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _WRONG
    if kind is int:
        return _whole(value)
    if kind is float:
        return _finite(value)
    return str(value) if kind is str else _WRONG


def _whole(value: int | float | str) -> Any:
    is_whole = not isinstance(value, str) and value == value // 1 and abs(value) <= MAX_INTEGER
    return int(value) if is_whole else _WRONG


def _finite(value: int | float | str) -> Any:
    try:
        return float(value) if not isinstance(value, str) and math.isfinite(value) else _WRONG
    except OverflowError:  # a whole number beyond any float
        return _WRONG


def _convert_sequence(value: Any, origin: type, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, (list, tuple)):
        return _WRONG
    kinds = arguments if origin is tuple else arguments * len(value)
    if len(kinds) != len(value):
        return _WRONG
    converted = [_convert(one, kind) for one, kind in zip(value, kinds, strict=True)]
    return _WRONG if any(one is _WRONG for one in converted) else origin(converted)


def _first(candidates: Iterable[Any]) -> Any:
    return next((one for one in candidates if one is not _WRONG), _WRONG)


def _strictness(kind: Any) -> int:
    """Return a rank with `str` last: it accepts numbers too, so that `tokenizer.name=123` is a name."""
    return 1 if kind is str else 0


def _describe(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(one) for one in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        return "a list of " + " and ".join(_describe(one) for one in arguments)
    if origin is Annotated:
        return f"{_describe(arguments[0])} {arguments[1]}"
    if origin is list:
        return f"a list, each {_describe(arguments[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(kind, "null" if kind is type(None) else getattr(kind, "__name__", str(kind)))
