"""The tokens that are scored: the same at every context length, a pure function of data and seed."""

import hashlib
from dataclasses import dataclass

import numpy as np

from pe_bench.data.packed import Split
from pe_bench.errors import UserError


@dataclass(frozen=True)
class TargetBlocks:
    """A set of blocks: the `target_tokens` tokens before `end[b]` in `document[b]`, int64 [blocks].

    `hash` stands for the text, the places and the longest context: equal hashes, equal targets.
    """

    document: np.ndarray
    end: np.ndarray
    max_length: int
    target_tokens: int
    hash: str


def target_blocks(
    split: Split, max_length: int, target_tokens: int, count: int, seed: int, data_hash: str
) -> TargetBlocks:
    """Choose at most `count` blocks, each with `max_length` tokens that end with it in its document.

    They are dealt round-robin over the documents, evenly spaced in each, and never overlap. Raise
    `UserError` when no document is long enough.
    """
    order = _eligible(split, max_length, seed)
    room = split.lengths[order] - max_length
    shares = _deal(room // target_tokens + 1, count)
    ends = [
        max_length + _evenly_spaced(int(space), int(share), target_tokens)
        for space, share in zip(room, shares, strict=True)
    ]
    document, end = np.repeat(order, shares), np.concatenate(ends)
    hasher = hashlib.sha256(repr((data_hash, max_length, target_tokens)).encode())
    hasher.update(document.astype("<i8").tobytes() + end.astype("<i8").tobytes())
    return TargetBlocks(document, end, max_length, target_tokens, hasher.hexdigest()[:16])


@dataclass(frozen=True)
class ScoredText:
    """A text to cut into windows: the first `tokens[d]` tokens of each `document[d]`, int64 [documents]."""

    document: np.ndarray
    tokens: np.ndarray


def scored_documents(split: Split, longest: int, token_budget: int, seed: int) -> ScoredText:
    """Return beginnings of documents, each of more than `longest` tokens, for the protocols that cut windows.

    As many documents as the budget lets take part, at least one, and it is dealt evenly over them.
    Raises `UserError` when no document is long enough.
    """
    least = longest + 1
    order = _eligible(split, least, seed)[: max(1, token_budget // least)]
    spare = max(0, token_budget - least * len(order))
    return ScoredText(order, least + _pour(split.lengths[order] - least, spare))


def _eligible(split: Split, length: int, seed: int) -> np.ndarray:
    """Return the documents of at least `length` tokens, ordered by a hash of the seed and their content."""
    lengths = split.lengths
    longest = int(lengths.max(initial=0))
    if longest < length:
        raise UserError(
            f"no validation document has the {length} tokens that are needed: the longest has {longest}; "
            "score shorter lengths (eval.lengths, eval.max_length), or use data with longer documents"
        )

    def place(index: int) -> bytes:
        content = split.document(index).astype("<u4").tobytes()
        return hashlib.sha256(f"{seed}:".encode() + content).digest()

    return np.array(sorted(np.flatnonzero(lengths >= length).tolist(), key=place), np.int64)


def _deal(capacities: np.ndarray, count: int) -> np.ndarray:
    """Return how many of `count` each gets, int64 [documents], when they are dealt one by one in rounds."""
    shares = np.zeros_like(capacities)
    left = count
    while left and (shares < capacities).any():
        served = np.flatnonzero(shares < capacities)[:left]
        shares[served] += 1
        left -= len(served)
    return shares


def _pour(room: np.ndarray, amount: int) -> np.ndarray:
    """Return how much of `amount` each gets, int64 [documents]: the same, or all that it has room for."""
    shares = np.zeros(len(room), np.int64)
    for served, place in enumerate(np.argsort(room, kind="stable")):
        shares[place] = min(int(room[place]), amount // (len(room) - served))
        amount -= int(shares[place])
    return shares


def _evenly_spaced(space: int, count: int, gap: int) -> np.ndarray:
    """Return `count` whole numbers from 0 to `space`, at least `gap` apart, centred: int64 [count]."""
    step = max(gap, space / max(1, count))
    margin = (space - step * (count - 1)) / 2
    return np.floor(margin + step * np.arange(count)).astype(np.int64)
