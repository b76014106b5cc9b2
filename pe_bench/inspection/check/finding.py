"""What came out of a check, and the tolerances: they are for rounding alone."""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

State = Literal["holds", "fails", "not claimed", "not checked"]

EXACT = 1e-10  # float64, other shapes of the same products
SHOWS = 1e-6  # what is more is no rounding


class Finding(NamedTuple):
    state: State
    measured: str
    raised: bool = False  # the encoding ended the check with an error, which is what `measured` says


def largest(errors: Iterable[float]) -> float:
    """Infinity where one is not a number: `max` would pass over it."""
    return max(math.inf if math.isnan(error) else error for error in errors)


def at_most(error: float, limit: float, words: str) -> Finding:
    # Not a number is no pass.
    return Finding("holds" if error <= limit else "fails", f"{words} {error:.1e}")


def as_claimed(claim: str, is_claimed: bool, error: float, words: str) -> Finding:
    """A claimed property must hold. One that could be claimed and is not must show its absence:

    a claim too few would leave the encoding unchecked.
    """
    if is_claimed:
        return at_most(error, EXACT, words)
    if error > SHOWS:
        return Finding("not claimed", f"{words} {error:.1e}")
    return Finding("fails", f"{claim} is not claimed, and holds: {words} {error:.1e}")
