"""One window through a model before anything is written, so that an encoding that fails says where."""

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import nn

from pe_bench.encodings import LengthError
from pe_bench.encodings.load import OUTSIDE_MODULE
from pe_bench.errors import UserError, first_line
from pe_bench.machine import is_out_of_memory
from pe_bench.model import Decoder


def try_one_window(model: Decoder, length: int, name: str = "NAME") -> None:
    """Raises `UserError` for a length that the encoding refuses, and for what `run_one_window` does."""
    try:
        run_one_window(model, length, name)
    except LengthError as error:
        raise UserError(f"train.length={length}: {error}") from error


@torch.no_grad()
def run_one_window(model: Decoder, length: int, name: str = "NAME") -> None:
    """Raises `LengthError` of an encoding that has no meaning there.

    `UserError` for what fails in code from outside, and for finite weights that give what is not finite;
    `name` is what `check` calls the encoding.
    """
    tokens = torch.zeros(1, length, dtype=torch.long)
    with outside_code_told(model.encoding):
        ids = model.encoding.ids(tokens, train=True, generator=torch.Generator().manual_seed(0))
        hidden = model.hidden(tokens, ids)
    if not hidden.isfinite().all() and all(weight.isfinite().all() for weight in model.parameters()):
        raise UserError(
            f"the encoding gives values that are not finite in a window of {length} tokens: "
            f"try `pe-bench check {name}`"
        )


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
