"""Errors in encodings that users wrote: one line that says where, in place of a traceback."""

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from torch import nn

from pe_bench.encodings import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.load import OUTSIDE_MODULE
from pe_bench.errors import RunError, UserError, first_line, text_of
from pe_bench.system.memory import is_out_of_memory
from pe_bench.system.paths import same_working_folder
from pe_bench.system.signals import INTERRUPTIONS


@contextmanager
def user_code_errors(
    *encodings: nn.Module, kind: type[UserError] | type[RunError] = UserError
) -> Iterator[None]:
    """Raise an error of one line, of this kind, for errors in users' code, and let all other errors pass.

    Where one of `encodings` is a user's, errors of pe-bench's code are blamed on what its hooks returned.
    """
    try:
        with same_working_folder():
            yield
    except (LengthError, UserError, *INTERRUPTIONS):
        raise
    except BaseException as error:  # also SystemExit, which would end the program as if all was done
        description = describe_user_code_error(error, *encodings)
        if description is None or is_out_of_memory(error):
            raise
        raise kind(description) from error


def describe_user_code_error(error: BaseException, *encodings: nn.Module) -> str | None:
    """Return `FILE:LINE: AttributeError: ...` for an error in a user's code, None for any other.

    Where one of `encodings` is a user's, errors of pe-bench's code are blamed on what its hooks returned.
    """
    where = user_code_line(error, *encodings)
    if where is None:
        return _describe_bad_values(error, encodings)
    return f"{where}: {type(error).__name__}: {first_line(error)}"


def user_code_line(error: BaseException, *encodings: nn.Module) -> str | None:
    """Return the innermost line of users' code in the traceback, or else the function that the error names.

    Users' code is what was loaded from a file, and the modules of those of `encodings` that are not
    pe-bench's. A function called with the wrong arguments is never entered: none of its lines is there.
    """
    files = [module for name, module in sys.modules.items() if name.startswith(OUTSIDE_MODULE)]
    modules = [*files, *_users_modules(encodings)]
    names = {module.__file__ for module in modules}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in names:
            return f"{frame.filename}:{frame.lineno}"
    # Where several modules have such a function, the one that was loaded last is meant.
    return next((line for module in reversed(modules) if (line := _find_named_function(error, module))), None)


def _describe_bad_values(error: BaseException, encodings: Sequence[nn.Module]) -> str | None:
    if isinstance(error, (UserError, RunError, OSError)):
        return None
    file = next((module.__file__ for module in _users_modules(encodings)), None)
    return file and f"{file}: what a hook returns cannot be used: {type(error).__name__}: {first_line(error)}"


def is_users_own(encoding: nn.Module) -> bool:
    """Return whether any part of an encoding is a user's."""
    return bool(_users_modules([encoding]))


def _users_modules(encodings: Sequence[nn.Module]) -> list[ModuleType]:
    """Return the modules of the classes of encodings that are not pe-bench's own."""
    parts = [type(part) for encoding in encodings for part in encoding.modules()]
    names = [part.__module__ for part in parts if issubclass(part, (LayerEncoding, PositionalEncoding))]
    return [sys.modules[name] for name in dict.fromkeys(names) if name.partition(".")[0] != "pe_bench"]


def _find_named_function(error: BaseException, module: ModuleType) -> str | None:
    """Find the user function named at the start of the error message; return where it begins."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    for function in filter(inspect.isfunction, (value for kind in classes for value in vars(kind).values())):
        code = function.__code__
        if code.co_filename == module.__file__ and text_of(error).startswith(f"{function.__qualname__}()"):
            return f"{code.co_filename}:{code.co_firstlineno}"
    return None
