"""Position curves: the NLL of tokens by how many tokens they see, in windows of the longest length.

Ranges of context are log-spaced, two an octave: 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12, ... Each position
scores text of its own, so a curve is no comparison of lengths and carries no verdict. Each range has windows
that end with it, because a token's score may depend on how many follow. Where it does not, all of them are
taken from one pass over the longest windows.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from pe_bench.data.packed import Data
from pe_bench.runs.rows import POSITIONS
from pe_bench.scoring.protocols import Plan, nonoverlapping_plan
from pe_bench.scoring.targets import ScoredText


def position_plans(data: Data, text: ScoredText, longest: int) -> Iterator[Plan]:
    """Yield for each range the plan that scores it by itself: windows that end with its last position.

    The windows begin where documents are cut into windows of `longest` tokens; shorter rests are left out.
    """
    whole = nonoverlapping_plan(data, text, longest)
    windows = [window for window in whole.windows if window.size == longest]
    words = f"{POSITIONS}/{whole.target_hash}/{longest}"
    target_hash = hashlib.sha256(words.encode()).hexdigest()[:16]
    for first, last in pairwise(range_ends(longest)):
        shorter = [replace(window, size=last, first=first, targets=last - first) for window in windows]
        yield Plan(POSITIONS, last, shorter, target_hash)


def range_ends(longest: int) -> list[int]:
    """Return 0, and where each range ends: 1, 2, 3, 4, 6, 8, 12, ... and the longest."""
    octaves = range(longest.bit_length())
    ends = {end for octave in octaves for end in (2**octave, 3 * 2**octave // 2) if end < longest}
    return [0, *sorted(ends), longest]
