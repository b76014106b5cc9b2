"""Find an encoding's class: `class: module:Class`, a file, or an entry point."""

import hashlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

from pe_bench.encodings.base import Claim, LayerEncoding, PositionalEncoding
from pe_bench.errors import UserError, first_line
from pe_bench.system.paths import same_working_folder
from pe_bench.values import unknown

# Nothing else is imported because a run's directory names it: no path, no other package.
BUILT_IN = re.compile(r"pe_bench\.encodings\.[a-z0-9_]+:[A-Za-z_]\w*")
OUTSIDE_MODULE = "pe_bench_code_"
ENTRY_POINTS = "pe_bench.encodings"
# Names of attributes in version 0.1.0. A file that has them still works, because a run that was trained with
# it holds its hash: editing the file would part the two.
EARLIER_NAMES = {"may_follow": "compatible_with", "may_change": "changeable_after_training"}
EncodingClass = type[LayerEncoding] | type[PositionalEncoding]


class Code(NamedTuple):
    """The class of an encoding, and the source that it was loaded from."""

    encoding_class: EncodingClass
    specification: str  # `module:Class` or `file.py:Class`, also for an entry point
    path: Path
    sha256: str | None  # 16 characters; none for pe-bench's own


def find_code(specification: str, search: Sequence[Path] = ()) -> Code:
    """Load the class that `module:Class`, `file.py:Class` or an entry point's name refers to.

    `search` are folders in which the file may lie. Raises `UserError`, also for a class that does nothing.
    """
    location, _, name = specification.rpartition(":")
    if location and is_file(location):
        path = find_file(location, search)
        content = path.read_bytes()
        found = _checked(getattr(_load_file(path, content), name, None), specification)
        return Code(found, specification, path, digest(content))
    found = _checked(
        getattr(_load_module(location), name, None) if location else _entry_point(specification),
        specification,
    )
    path = Path(inspect.getfile(found))
    if is_built_in(specification):
        return Code(found, specification, path, None)
    if not location:
        specification = f"{found.__module__}:{found.__qualname__}"
    return Code(found, specification, path, digest(path.read_bytes()))


def find_class(specification: str, search: Sequence[Path] = ()) -> EncodingClass:
    return find_code(specification, search).encoding_class


def is_built_in(specification: str) -> bool:
    return BUILT_IN.fullmatch(specification) is not None


def is_file(location: str) -> bool:
    return location.endswith(".py") or "/" in location or os.sep in location


def find_file(location: str, search: Sequence[Path]) -> Path:
    folders = [Path(), *(folder / inner for folder in search for inner in ("", "encoding"))]
    for folder in folders:
        if (folder / location).is_file():
            return (folder / location).resolve()
    searched = ", ".join(str(folder) for folder in folders)
    raise UserError(f"the encoding's file {location} was not found in: {searched}")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _load_file(path: Path, content: bytes) -> ModuleType:
    # By content, so that a file runs once in a process, and what it defines is found by its name.
    name = f"{OUTSIDE_MODULE}{digest(content)}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        with same_working_folder():
            exec(compile(content, str(path), "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{_line_of(error, path)}: {type(error).__name__}: {_text_of(error)}") from error
    return module


def _line_of(error: Exception, path: Path) -> str:
    """Return the line of a file at which loading it failed, as FILE:LINE."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines else str(path)


def _text_of(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else first_line(error)


def _load_module(name: str) -> ModuleType:
    try:
        with same_working_folder():
            return importlib.import_module(name)
    except Exception as error:
        reason = error if isinstance(error, ImportError) else f"{type(error).__name__}: {_text_of(error)}"
        raise UserError(f"the encoding's module {name} could not be imported: {reason}") from error


def _entry_point(name: str) -> Any:
    found = entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        raise UserError(
            f"class: {name} is no installed encoding; say module:Class, file.py:Class, or a name of: "
            f"{', '.join(sorted(found.names)) or '(none is installed)'}"
        )
    return found[name].load()


def _checked(found: Any, specification: str) -> EncodingClass:
    """Return `found` as an encoding's class. Raises `UserError` where it is none, or does nothing."""
    if not (isinstance(found, type) and issubclass(found, (LayerEncoding, PositionalEncoding))):
        raise UserError(
            f"'{specification}' names no encoding: {specification.rpartition(':')[2]} must be a class there "
            "that derives from LayerEncoding or PositionalEncoding"
        )
    if not is_built_in(specification):
        _adopt_earlier_names(found)
        _refuse_no_hook(found)
        _refuse_unknown_claims(found)
    return found


def _adopt_earlier_names(encoding: EncodingClass) -> None:
    """Set attributes from those that have their earlier names, where the class does not set them itself."""
    for earlier, name in EARLIER_NAMES.items():
        if hasattr(encoding, earlier) and not getattr(encoding, name):
            setattr(encoding, name, getattr(encoding, earlier))
    if hasattr(encoding, "pieces"):
        raise UserError(f"{encoding.__name__}.pieces is called terms: see pe_bench/encodings/base.py")


def _refuse_no_hook(encoding: EncodingClass) -> None:
    """Raise `UserError` where a misspelt hook would silently train a model without any encoding."""
    base = LayerEncoding if issubclass(encoding, LayerEncoding) else PositionalEncoding
    hooks = [name for name, value in vars(base).items() if inspect.isfunction(value) and name[0] != "_"]
    hooks.remove("overrides")
    if not any(getattr(encoding, hook) is not getattr(base, hook) for hook in hooks):
        raise UserError(
            f"{encoding.__name__} overrides no hook, and would do nothing: define one of {', '.join(hooks)}"
        )


def _refuse_unknown_claims(encoding: EncodingClass) -> None:
    for claim in sorted(encoding.claims - set(get_args(Claim))):
        raise UserError(f"{encoding.__name__}: {unknown(claim, 'claim', get_args(Claim))}")
