"""The result of a check, and the tolerances, which allow for rounding alone."""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

State = Literal["holds", "fails", "not claimed", "not checked"]

EXACT = 1e-10  # float64, other shapes of the same products
SHOWS = 1e-6  # a larger difference is not rounding


class Finding(NamedTuple):
    state: State
    measured: str
    note: str = ""  # shown even where all is well
    places: tuple[str, ...] = ()  # `FILE:LINE hook` of what may be wrong


def largest(errors: Iterable[float]) -> float:
    """Return the largest error, and infinity where one is not a number: `max` would pass over it."""
    return max(math.inf if math.isnan(error) else error for error in errors)


def at_most(error: float, limit: float, label: str) -> Finding:
    # A value that is not a number fails.
    return Finding("holds" if error <= limit else "fails", f"{label} {error:.1e}")


def as_claimed(claim: str, is_claimed: bool, error: float, label: str) -> Finding:
    """Judge a property that the class claims or does not claim.

    A claimed one must hold. One that is not claimed must visibly not hold, because a missing claim leaves an
    encoding unchecked.
    """
    if is_claimed:
        return at_most(error, EXACT, label)
    if error > SHOWS:
        return Finding("not claimed", f"{label} {error:.1e}")
    return Finding("fails", f"{claim} is not claimed, and holds: {label} {error:.1e}")
