"""Find an encoding's class: `module:Class` or `file.py:Class`."""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeGuard, get_args

from pe_bench.encodings.base import Claim, LayerEncoding, PastTraining, PositionalEncoding
from pe_bench.encodings.source import digest, find_file, is_file, sources
from pe_bench.errors import UserError, first_line, require
from pe_bench.system.files import same_working_folder
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.values import close_to, shown, unknown

# Nothing else is imported because a run's directory names it: no path, no other package.
BUILT_IN = re.compile(r"pe_bench\.encodings(\.(?!py:)[a-z0-9_]+){1,2}:[A-Za-z_]\w*")
OUTSIDE_MODULE = "pe_bench_code_"
EncodingClass = type[LayerEncoding] | type[PositionalEncoding]


class Code(NamedTuple):
    """The class of an encoding, and the source that it was loaded from."""

    encoding_class: EncodingClass
    path: Path
    sha256: str | None  # 16 characters; none for pe-bench's own


def find_code(specification: str, search: Sequence[Path] = ()) -> Code:
    """Load the class that `module:Class` or `file.py:Class` refers to.

    `search` are folders in which the file may lie. Raises `UserError`, also for a class that does nothing.
    """
    location, _, name = specification.rpartition(":")
    if is_built_in(specification) or not is_file(location):
        encoding_class = _checked(_load_module(location), name, specification)
        path = Path(inspect.getfile(encoding_class))
    else:
        path = find_file(location, search)
        encoding_class = _checked(_load_file(path), name, specification)
    return Code(encoding_class, path, None if is_built_in(specification) else digest(path))


def find_class(specification: str, search: Sequence[Path] = ()) -> EncodingClass:
    return find_code(specification, search).encoding_class


def is_built_in(specification: str) -> bool:
    return BUILT_IN.fullmatch(specification) is not None


def _load_file(path: Path) -> ModuleType:
    # By content, so that a file runs once in a process, and what it defines is found by its name.
    name = f"{OUTSIDE_MODULE}{digest(path)}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        with same_working_folder(), _importable_folder(path):
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise UserError(f"{_line_of(error, path)}: {_describe(error)}") from error
    return module


@contextmanager
def _importable_folder(path: Path) -> Iterator[None]:
    """Let a file import others of its folder, as they are now, before all of other folders."""
    for file in sources(path)[1:]:
        sys.modules.pop(".".join(file.relative_to(path.parent).with_suffix("").parts), None)
    sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(path.parent))
        if str(path.parent) not in sys.path:  # for what hooks import when they are called
            sys.path.append(str(path.parent))


def _line_of(error: BaseException, path: Path) -> str:
    """Return the line of a file at which loading it failed, as FILE:LINE."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines else str(path)


def _describe(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else first_line(error)
    return f"{type(error).__name__}: {text}"


def _load_module(name: str) -> ModuleType:
    require(name != "", "the class of an encoding is module:Class or file.py:Class")
    try:
        with same_working_folder():
            return importlib.import_module(name)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        reason = error if isinstance(error, ImportError) else _describe(error)
        raise UserError(f"the encoding's module {name} could not be imported: {reason}") from error


def _is_encoding(named: Any) -> TypeGuard[EncodingClass]:
    return isinstance(named, type) and issubclass(named, (LayerEncoding, PositionalEncoding))


def _checked(module: ModuleType, name: str, specification: str) -> EncodingClass:
    """Return what a specification names. Raises `UserError` where it is no encoding, or does nothing."""
    named = getattr(module, name, None)
    if not _is_encoding(named):
        own = [
            key
            for key, value in vars(module).items()
            if _is_encoding(value) and value.__module__ == module.__name__
        ]
        close = close_to(name, own)
        hint = f": did you mean '{close[0]}'?" if close else ""
        raise UserError(
            f"'{specification}' names no encoding: {name} must be a class there "
            f"that derives from LayerEncoding or PositionalEncoding{hint}"
        )
    if not is_built_in(specification):
        _refuse_no_hook(named)
        refuse_wrong_declarations(named)
    return named


def _refuse_no_hook(encoding: EncodingClass) -> None:
    """Raise `UserError` where a misspelt hook would silently train a model without any encoding."""
    base = LayerEncoding if issubclass(encoding, LayerEncoding) else PositionalEncoding
    hooks = [name for name, value in vars(base).items() if inspect.isfunction(value) and name[0] != "_"]
    hooks.remove("overrides")
    require(
        any(getattr(encoding, hook) is not getattr(base, hook) for hook in hooks),
        f"{encoding.__name__} overrides no hook, and would do nothing: define one of {', '.join(hooks)}",
    )


def refuse_wrong_declarations(encoding: EncodingClass | LayerEncoding | PositionalEncoding) -> None:
    """Raise `UserError` where a class, or an instance of it, declares what has no meaning."""
    name = encoding.__name__ if isinstance(encoding, type) else type(encoding).__name__
    claims, past_training = encoding.claims, str(encoding.past_training)
    require(
        isinstance(claims, (frozenset, set)), f"{name}.claims must be a set of texts, not {shown(claims)}"
    )
    for claim in sorted(map(str, claims - set(get_args(Claim)))):
        raise UserError(f"{name}: {unknown(claim, 'claim', get_args(Claim))}")
    if past_training not in get_args(PastTraining):
        raise UserError(f"{name}: {unknown(past_training, 'past_training', get_args(PastTraining))}")
