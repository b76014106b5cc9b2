"""One window through a model before anything is written, so that an encoding that fails says where."""

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from torch import nn

from pe_bench.encodings import LengthError
from pe_bench.encodings.load import OUTSIDE_MODULE
from pe_bench.errors import UserError, first_line
from pe_bench.system.memory import is_out_of_memory


@contextmanager
def outside_code_told(*encodings: nn.Module) -> Iterator[None]:
    """What fails in code from outside is a `UserError` of one line, other failures are what they were.

    Of `encodings` those from outside are told too where what they returned fails in other code.
    """
    try:
        yield
    except (LengthError, UserError):
        raise
    except Exception as error:
        told = told_of_outside(error) or _told_of_values(error, encodings)
        if told is None or is_out_of_memory(error):
            raise
        raise UserError(told) from error


def told_of_outside(error: Exception) -> str | None:
    """`FILE:LINE: AttributeError: ...` of what failed in code from outside; None for other failures."""
    where = outside_line(error)
    return where and f"{where}: {type(error).__name__}: {first_line(error)}"


def outside_line(error: Exception) -> str | None:
    """The innermost line of a person's own code that an error passed through, or the one that it speaks of.

    Code that takes other arguments than it is called with is never entered: the error names the function.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith(OUTSIDE_MODULE)]
    names = {module.__file__ for module in modules}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in names:
            return f"{frame.filename}:{frame.lineno}"
    # Of several with the same names, the one that was loaded last is meant.
    return next((line for module in reversed(modules) if (line := _line_spoken_of(error, module))), None)


def _told_of_values(error: Exception, encodings: Sequence[nn.Module]) -> str | None:
    modules = (type(part).__module__ for encoding in encodings for part in encoding.modules())
    file = next((sys.modules[name].__file__ for name in modules if name.startswith(OUTSIDE_MODULE)), None)
    return file and f"{file}: what a hook returns cannot be used: {type(error).__name__}: {first_line(error)}"


def _line_spoken_of(error: Exception, module: ModuleType) -> str | None:
    """Where the function begins whose name the error's text begins with."""
    classes = [one for one in vars(module).values() if isinstance(one, type)]
    for function in (one for each in classes for one in vars(each).values() if inspect.isfunction(one)):
        code = function.__code__
        if code.co_filename == module.__file__ and str(error).startswith(f"{function.__qualname__}()"):
            return f"{code.co_filename}:{code.co_firstlineno}"
    return None
