"""Needles, the spans of a text that a model is to find, and nested sets of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Needle:
    """A span of a window's document that is to be found in the window, by places in the document.

    target: the first of the targets, in the span. replacement: the span that takes its place; None where it
    stays. others: the starts of spans whose ends are the wrong answers.
    """

    start: int
    target: int
    others: tuple[int, ...]
    replacement: int | None = None


@dataclass(frozen=True, eq=False)
class NeedleSet:
    """The needles of a length and a depth, by document, start of the window, and needle.

    turn: the rank of each window, int64 [windows]: the set of n windows has ranks 0 to n - 1. about: what
    else enters the hash. target_tokens: of each needle.
    """

    places: Sequence[tuple[int, int, Needle | None]]
    turn: np.ndarray
    about: tuple[object, ...]
    target_tokens: int

    def __len__(self) -> int:
        return len(self.places)

    @property
    def hash(self) -> str:
        words = repr((*self.about, [*self.places]))
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def first(self, count: int) -> "NeedleSet":
        """Return the set of the first `count` needles, or of all that there are."""
        kept = self.turn < count
        places = [place for place, is_kept in zip(self.places, kept, strict=True) if is_kept]
        return replace(self, places=places, turn=self.turn[kept])
