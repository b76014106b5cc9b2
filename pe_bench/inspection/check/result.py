"""What one check finds, and how errors are judged."""

import math
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from pe_bench.errors import first_line
from pe_bench.model.checks import user_code_line

State = Literal["holds", "fails", "not claimed", "not checked"]

EXACT = 1e-10  # float64, other shapes of the same products
SHOWS = 1e-6  # a larger difference is not rounding


class Finding(NamedTuple):
    """What one check found."""

    state: State
    measured: str
    note: str = ""  # shown even where all is well
    places: tuple[str, ...] = ()  # `FILE:LINE hook` of what may be wrong


class FailureError(Exception):
    """A property that does not hold; the text says what was measured."""


class UnclaimedError(Exception):
    """A property that the encoding does not claim, or that it has nothing to check of; the text says why."""


def expect(holds: bool, measured: str) -> None:
    if not holds:
        raise FailureError(measured)


def at_most(label: str, *errors: float, limit: float = EXACT) -> str:
    """Return the largest error after its label. Raises `FailureError` for one above the limit."""
    measured = f"{label} {largest(errors):.1e}"
    expect(largest(errors) <= limit, measured)
    return measured


def largest(errors: Iterable[float]) -> float:
    """Return the largest error, and infinity where one is not a number: `max` would pass over it."""
    return max(math.inf if math.isnan(error) else error for error in errors)


def worst(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; infinity where one of the two is not a number."""
    return float((a.detach().double() - b.detach().double()).abs().nan_to_num(math.inf).max())


def describe(error: BaseException) -> str:
    """Return an error with its type, and the file that raised it, or the user's that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if "/torch/" not in frame.filename), frames[-1])
    line = user_code_line(error) or f"{frame.filename}:{frame.lineno}"
    return f"{Path(line).name}: {type(error).__name__}: {first_line(error)}"
