"""The tokens that are scored: the same at every context length, a pure function of data and seed.

Blocks of tokens lie in places that each document decides, and are visited in a fixed order: a smaller set of
blocks is part of every larger one.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from pe_bench.config.schema import Half
from pe_bench.data.packed import Split
from pe_bench.errors import require

PART_DIVISOR = 8  # a window scores at most its length / PART_DIVISOR tokens, so that they see nearly the same


@dataclass(frozen=True, eq=False)
class TargetBlocks:
    """A set of blocks: the `target_tokens` tokens before `end[b]` in `document[b]`, int64 [blocks]."""

    document: np.ndarray
    end: np.ndarray
    turn: np.ndarray  # each block's rank, from 0; the first n ranks are the set of n blocks
    donor_document: np.ndarray  # for each block, the document of another block; its own if there is no other
    donor_end: np.ndarray  # the end of the other block
    max_length: int  # the longest context for which the documents have room
    target_tokens: int
    data_hash: str  # the hash of the tokenized text
    half: Half = "both"  # the half of the documents from which the blocks are chosen

    def __len__(self) -> int:
        return len(self.end)

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """Return the document and the end of each block."""
        return zip(self.document.tolist(), self.end.tolist(), strict=True)

    @cached_property
    def hash(self) -> str:
        """Return a hash of the text, the places and the longest context: equal hashes, equal targets."""
        facts = repr((self.data_hash, self.max_length, self.target_tokens))
        hasher = hashlib.sha256(facts.encode())
        for places in (self.document, self.end):
            hasher.update(places.astype("<i8").tobytes())
        return with_half_prefix(hasher.hexdigest()[:16], self.half)

    def chosen(self, is_chosen: np.ndarray) -> "TargetBlocks":
        """Return the set of the chosen blocks. is_chosen: bool [blocks]."""
        names = ("document", "end", "turn", "donor_document", "donor_end")
        arrays = {name: getattr(self, name)[is_chosen] for name in names}
        return replace(self, **arrays)


def with_half_prefix(target_hash: str, half: Half) -> str:
    """Return the hash of a target set, prefixed with the name of the half of the documents, unless both."""
    return target_hash if half == "both" else f"{half}-{target_hash}"


def tokens_in_a_part(target_tokens: int, length: int) -> int:
    """Return the number of a block's tokens that a window of this length scores, a divisor of the block."""
    most = max(1, length // PART_DIVISOR)
    return max(divisor for divisor in _divisors(target_tokens) if divisor <= most)


def tokens_needed(max_length: int, target_tokens: int) -> int:
    """Return the number of tokens before a block's end that windows of up to `max_length` tokens need."""
    # Windows begin furthest back at the longest length, or just below a length at which parts grow.
    lengths = [max_length, *(PART_DIVISOR * size - 1 for size in _divisors(target_tokens))]
    possible = [length for length in lengths if length <= max_length]
    before = [length - tokens_in_a_part(target_tokens, length) for length in possible]
    return target_tokens + max(before)


@cache
def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def target_blocks(
    split: Split,
    max_length: int,
    target_tokens: int,
    count: int,
    seed: int,
    data_hash: str,
    half: Half = "both",
) -> TargetBlocks:
    """Choose at most `count` blocks, each with room for windows of up to `max_length` tokens in its document.

    Blocks are dealt round-robin over the documents of a half, spread out in each, and never overlap. Raise
    `UserError` if no document is long enough.
    """
    needed = tokens_needed(max_length, target_tokens)
    order = _ordered_documents(split, needed, seed, half)
    rooms = split.lengths[order] - needed
    places = [_spread_places(int(room), target_tokens) for room in rooms]
    sizes = np.array([len(starts) for starts in places])
    starts = np.cumsum(sizes) - sizes
    ends = np.concatenate(places) + needed
    dealt = np.repeat(np.arange(len(order)), sizes)
    round_ = np.arange(len(dealt)) - starts[dealt]
    turn = np.empty_like(dealt)
    turn[np.lexsort((dealt, round_))] = np.arange(len(dealt))
    donor = (dealt + 1) % len(order)  # the next document
    donor_block = starts[donor] + round_ % sizes[donor]
    in_text = np.lexsort((ends, dealt))
    unsorted = {"document": order[dealt], "end": ends, "turn": turn}
    unsorted |= {"donor_document": order[donor], "donor_end": ends[donor_block]}
    arrays = {name: values[in_text].astype(np.int64) for name, values in unsorted.items()}
    largest = TargetBlocks(
        **arrays, max_length=max_length, target_tokens=target_tokens, data_hash=data_hash, half=half
    )
    return largest.chosen(largest.turn < count)


@dataclass(frozen=True)
class ScoredText:
    """A text to cut into windows: the beginnings of documents."""

    beginnings: list[tuple[int, int]]  # a document, and the number of its first tokens
    half: Half = "both"


def scored_documents(
    split: Split, longest: int, token_budget: int, seed: int, half: Half = "both"
) -> ScoredText:
    """Return beginnings of documents, each of more than `longest` tokens, for the protocols that cut windows.

    The budget is dealt evenly over as many documents as it has room for, at least one. Raises `UserError` if
    no document is long enough.
    """
    least = longest + 1
    most = max(1, token_budget // least)
    order = _ordered_documents(split, least, seed, half)[:most]
    spare = max(0, token_budget - least * len(order))
    tokens = least + _share_out(split.lengths[order] - least, spare)
    return ScoredText([*zip(order.tolist(), tokens.tolist(), strict=True)], half)


def _ordered_documents(split: Split, length: int, seed: int, half: Half) -> np.ndarray:
    """Return the documents of at least `length` tokens, ordered by a hash of the seed and their content.

    The half of a document follows only from its content. Raises `UserError` without such documents.
    """
    lengths = split.lengths
    longest = int(lengths.max(initial=0))
    message = (
        f"no validation document has the {length} tokens that are needed: the longest has {longest}; "
        "score shorter lengths (--lengths, eval.max_length), or use data with longer documents"
    )
    require(longest >= length, message)

    def hash_rank(index: int, word: str = f"{seed}") -> bytes:
        content = split.document(index).astype("<u4").tobytes()
        return hashlib.sha256(f"{word}:".encode() + content).digest()

    def half_of(index: int) -> str:
        return "first" if hash_rank(index, "half")[0] < 128 else "second"

    eligible = np.flatnonzero(lengths >= length).tolist()
    if half != "both":
        eligible = [index for index in eligible if half_of(index) == half]
    message = f"the {half} half of the documents has none of {length} tokens: say eval.half=both"
    require(bool(eligible), message)
    return np.array(sorted(eligible, key=hash_rank), np.int64)


def _share_out(room: np.ndarray, amount: int) -> np.ndarray:
    """Return each document's share of `amount`, int64 [documents]: equal, but at most the document's room."""
    shares = np.zeros(len(room), np.int64)
    for served, document in enumerate(np.argsort(room, kind="stable")):
        equal = amount // (len(room) - served)
        shares[document] = min(int(room[document]), equal)
        amount -= int(shares[document])
    return shares


def _spread_places(room: int, gap: int) -> np.ndarray:
    """Return evenly spaced whole numbers between 0 and `room`, both included, as int64 [numbers].

    There are as many as fit at least `gap` apart; a single number is in the middle. They are in the order of
    reversed bits (van der Corput, 1935), from the middle on: the first numbers are spread out too.
    """
    count = room // gap + 1
    spaced = np.array([room // 2])
    if count > 1:
        spaced = np.linspace(0, room, count).astype(np.int64)
    bits = (count - 1).bit_length()
    numbers = np.arange(1 << bits)
    mirrored = np.zeros_like(numbers)
    for bit in range(bits):
        mirrored |= (numbers >> bit & 1) << (bits - 1 - bit)
    order = mirrored[mirrored < count]
    return spaced[(order + count // 2) % count]
