"""One window through a model before anything is written, so that an encoding that fails says where."""

import inspect
import sys
import traceback

import torch

from pe_bench.encodings import LengthError
from pe_bench.encodings.load import OUTSIDE_MODULE
from pe_bench.errors import UserError, first_line
from pe_bench.model import Decoder


@torch.no_grad()
def try_one_window(model: Decoder, length: int) -> None:
    """Raises `UserError` for a length that the encoding refuses, and for what fails in code from outside."""
    tokens = torch.zeros(1, length, dtype=torch.long)
    try:
        ids = model.encoding.ids(tokens, train=True, generator=torch.Generator().manual_seed(0))
        model.hidden(tokens, ids)
    except LengthError as error:
        raise UserError(f"train.length={length}: {error}") from error
    except Exception as error:
        where = _outside_line(error)
        if where is None:
            raise
        raise UserError(f"{where}: {type(error).__name__}: {first_line(error)}") from error


def _outside_line(error: Exception) -> str | None:
    """The innermost line of a person's own code that an error passed through, or the one that it speaks of.

    Code that takes other arguments than it is called with is never entered: the error names the function.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith(OUTSIDE_MODULE)]
    names = {module.__file__ for module in modules}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in names:
            return f"{frame.filename}:{frame.lineno}"
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    for function in (one for each in classes for one in vars(each).values() if inspect.isfunction(one)):
        if function.__code__.co_filename in names and str(error).startswith(f"{function.__qualname__}()"):
            return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    return None
