"""Find an encoding's class: one of pe-bench's own, or `file.py:Class`."""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_args

from pe_bench.encodings.base import ADVERSE_FIRST, Claim, LayerEncoding, PositionalEncoding
from pe_bench.encodings.source import digest, find_file, sources
from pe_bench.errors import UserError, first_line, require
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.values import unknown

# Nothing else is imported because a run's directory names it: no path, no other package.
BUILT_IN = re.compile(r"pe_bench\.encodings(\.(?!py:)[a-z0-9_]+){1,2}:[A-Za-z_]\w*")
OUTSIDE_MODULE = "pe_bench_code_"
EncodingClass = type[LayerEncoding] | type[PositionalEncoding]
DECLARED = (*get_args(Claim), *ADVERSE_FIRST)


class Code(NamedTuple):
    """The class of an encoding, and the source that it was loaded from."""

    encoding_class: EncodingClass
    path: Path
    sha256: str | None  # 16 characters; none for pe-bench's own


def find_code(specification: str, search: Sequence[Path] = ()) -> Code:
    """Load the class that `file.py:Class` refers to, or one of pe-bench's own by `module:Class`.

    `search` are folders to look for the file in. Raises `UserError`, also for a class that does nothing.
    """
    location, _, name = specification.rpartition(":")
    if BUILT_IN.fullmatch(specification):
        path = None
        try:
            module = importlib.import_module(location)
        except ImportError as error:
            raise UserError(f"pe-bench has no encoding {specification}") from error
    else:
        require(location.endswith(".py"), f"name an encoding's class as file.py:Class, not {specification}")
        path = find_file(location, search)
        module = _load_file(path)
    encoding_class = getattr(module, name, None)
    if not (
        isinstance(encoding_class, type) and issubclass(encoding_class, (LayerEncoding, PositionalEncoding))
    ):
        raise UserError(
            f"'{specification}' names no encoding: {name} must be a class there that derives from "
            "LayerEncoding or PositionalEncoding"
        )
    if path is None:
        return Code(encoding_class, Path(inspect.getfile(encoding_class)), None)
    _refuse_no_hook(encoding_class)
    for word in (*encoding_class.claims, encoding_class.past_training):
        require(word in DECLARED, unknown(word, "claim", DECLARED))
    return Code(encoding_class, path, digest(path))


def _load_file(path: Path) -> ModuleType:
    # By content, so that a file runs once in a process, and what it defines is found by its name.
    name = f"{OUTSIDE_MODULE}{digest(path)}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        with _importable_folder(path):
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise UserError(f"{_line_of(error, path)}: {type(error).__name__}: {first_line(error)}") from error
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
    """Return the line of a file at which loading it failed, as FILE:LINE; a `SyntaxError` says it itself."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _refuse_no_hook(encoding: EncodingClass) -> None:
    """Raise `UserError` where a misspelt hook would silently train a model without any encoding."""
    base = LayerEncoding if issubclass(encoding, LayerEncoding) else PositionalEncoding
    hooks = [name for name, value in vars(base).items() if inspect.isfunction(value) and name[0] != "_"]
    require(
        any(getattr(encoding, hook) is not getattr(base, hook) for hook in hooks),
        f"{encoding.__name__} overrides no hook, and would do nothing: define one of {', '.join(hooks)}",
    )
