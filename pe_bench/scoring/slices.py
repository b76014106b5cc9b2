"""Slices: subsets of targets that the text alone defines, the same for every encoding, length and seed.

The n-gram of a target is the fewest whole tokens directly before it that hold at least 8 bytes of the text.
Its source is the last earlier occurrence of that n-gram, with the token that follows it. In the window of
the set's longest length a target is

- `recall` where the source lies more than the training length back, and the target follows it there: a
  model that reads no further than its training length cannot copy it, and one that does can;
- `novel` where there is no source at all.

All others belong to neither. A target is

- `key` where another run predicts it well, and much better with far context than without.

The rule of `key` is LongPPL's (Fang et al., 2024, "What is Wrong with Perplexity for Long-context Language
Modeling?", arXiv:2410.23771, with the thresholds of its code): the other run's loss falls by more than
2 nats from the short context to the long one, and is then below 2 nats. Here the short context is the
training length and the long one the longest context that every target of a set has, whichever lengths are
scored. In LongPPL a large model of subword tokens decides; a small one, or one of bytes, finds fewer.
"""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pe_bench.data.packed import Data, Split
from pe_bench.errors import UserError
from pe_bench.runs.means import keep_means
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.runs.slices import KEY, NOVEL, RECALL, TEXT_SLICES, KeptSlices, Masks, keep_slices
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.targets import TargetBlocks, tokens_in_a_part

MIN_BYTES = 8  # of an n-gram
TEXT = set(TEXT_SLICES)
NONE = -1  # where there is no place
MIN_GAIN = 2.0  # nats
MAX_LOSS = 2.0  # nats
OPTION = "--key-tokens-of"
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd: of a polynomial in the ids of an n-gram, modulo 2**64


@dataclass(frozen=True)
class Sources:
    """The last earlier occurrences of the n-grams of a text's tokens.

    place: of the token that follows the n-gram there, int64 [tokens], `NONE` where there is none; begin:
    where the n-gram before that place begins.
    """

    place: np.ndarray
    begin: np.ndarray


def keep_derived(
    run: Path, data: Data, plans: Sequence[Plan], rows: Collection[Row], train_length: int
) -> None:
    """Write the slices of the targets of rows, and the means over them.

    Only the holder of the run's lock may call this.
    """
    keep_slices(run, _missing(data.validation, plans, rows, train_length, KeptSlices(run)))
    keep_means(run, rows)


def _missing(
    split: Split, plans: Sequence[Plan], rows: Collection[Row], train_length: int, kept: KeptSlices
) -> dict[str, Masks]:
    """Return the slices of the sets of rows that lack them, by their hash.

    They are found without a score, for the sets of the plans and for larger and smaller ones that these
    are nested in.
    """
    largest = {plan.blocks.hash: plan.blocks for plan in plans if plan.blocks is not None}.values()
    sizes = {
        row.target_hash: row.targets // row.target_tokens
        for row in rows
        if row.protocol == "paired" and row.target_tokens and not kept.of(row.target_hash).keys() >= TEXT
    }
    sets = (blocks.first(size) for blocks in largest for size in set(sizes.values()))
    return {found.hash: text_slices(split, found, train_length) for found in sets if found.hash in sizes}


def text_slices(split: Split, blocks: TargetBlocks, train_length: int) -> Masks:
    """Return which targets of a set are in each slice, bool [targets] in the order of its blocks."""
    found: dict[str, list[np.ndarray]] = {RECALL: [], NOVEL: []}
    for tokens, sources, target, window in _documents(split, blocks):
        place, begin = sources.place[target], sources.begin[target]
        has_source = (place != NONE) & (begin >= window)
        is_far = has_source & (target - place > train_length)
        found[RECALL].append(is_far & (tokens[place] == tokens[target]))
        found[NOVEL].append(~has_source)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def find_sources(tokens: np.ndarray, byte_ends: np.ndarray) -> Sources:
    """Return the sources of all tokens of a text; both arguments are [tokens]."""
    before = np.concatenate([[0], byte_ends[:-1]]).astype(np.int64)
    begin = np.searchsorted(before, before - MIN_BYTES, side="right") - 1
    known = np.flatnonzero(begin != NONE)
    key = _keys(tokens, known, known - begin[known])
    order = np.argsort(key, kind="stable")  # equal n-grams become neighbours, in the order of the text
    is_same = key[order[1:]] == key[order[:-1]]
    place = np.full(len(tokens), NONE, np.int64)
    place[known[order[1:]]] = np.where(is_same, known[order[:-1]], NONE)
    return Sources(place, np.where(place == NONE, NONE, begin[place]))


def _keys(tokens: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return a hash of the `sizes` tokens before each place, uint64 [places]."""
    ids = tokens.astype(np.uint64)
    key = sizes.astype(np.uint64)
    for back in range(1, int(sizes.max(initial=0)) + 1):
        longer = key * MULTIPLIER + ids[places - np.minimum(back, sizes)]
        key = np.where(back <= sizes, longer, key)
    return key


def _documents(
    split: Split, blocks: TargetBlocks
) -> Iterator[tuple[np.ndarray, Sources, np.ndarray, np.ndarray]]:
    """Yield each document's part that is fed at the longest length, in the order of the blocks.

    That is its tokens, their sources, and for each target its place and that of the first token of its
    window, int64 [targets].
    """
    assert split.byte_ends is not None, "training documents are not scored"
    size = tokens_in_a_part(blocks.target_tokens, blocks.max_length)
    place = np.arange(blocks.target_tokens)
    begins = np.flatnonzero(np.diff(blocks.document, prepend=NONE))
    for document, ends in zip(blocks.document[begins], np.split(blocks.end, begins[1:]), strict=True):
        target = (ends[:, None] - blocks.target_tokens + place).ravel()
        part_end = (ends[:, None] - blocks.target_tokens + (place // size + 1) * size).ravel()
        window = part_end - blocks.max_length
        first, last = int(window.min()), int(ends.max())
        start = int(split.starts[document])
        tokens, byte_ends = (array[start + first : start + last] for array in (split.tokens, split.byte_ends))
        base = split.byte_ends[start + first - 1] if first else 0
        found = find_sources(tokens, byte_ends.astype(np.int64) - int(base))
        yield tokens, found, target - first, window - first


def key_slices(judge: Path, plans: Sequence[Plan], train_length: int, data: Data) -> dict[str, Masks]:
    """Return which targets are key to a judge, by the hash of their set.

    A set that is scored at no length beyond the training length is left out.
    Raise `UserError` for a judge of other data, without scores of these targets, or to which none is key.
    """
    rows = [row for row in read_rows(judge / "eval.csv") if row.scored_with == row.encoding]
    sets = {plan.target_hash: plan.blocks for plan in plans if plan.blocks is not None}
    if not sets:
        raise UserError(f"{OPTION} works with --protocol paired alone: leave one of them out")
    _require_same_data(judge, rows, data)
    beyond = {plan.target_hash for plan in plans if plan.length > train_length} & sets.keys()
    if not beyond:
        raise UserError(
            f"{OPTION} needs a length beyond the training length {train_length}: add it with --lengths"
        )
    found: dict[str, Masks] = {
        target_hash: {KEY: _key_mask(judge, rows, blocks, train_length)}
        for target_hash, blocks in sets.items()
        if target_hash in beyond
    }
    if not any(masks[KEY].any() for masks in found.values()):
        raise UserError(
            f"{OPTION} {judge.name}: no target is key to it: the loss of none falls by more than "
            f"{MIN_GAIN:g} nats to below {MAX_LOSS:g} beyond {train_length} tokens; name a run that uses "
            "far context"
        )
    return found


def _require_same_data(judge: Path, rows: Sequence[Row], data: Data) -> None:
    known = {(row.data, row.tokenizer, row.data_hash) for row in rows}
    if any(data_hash == data.hash for _, _, data_hash in known) or not known:
        return
    name, tokenizer, data_hash = sorted(known)[0]
    raise UserError(
        f"{OPTION} {judge.name}: it was scored on {name} with {tokenizer} ({data_hash[:8]}), and here is "
        f"{data.name} with {data.tokenizer} ({data.hash[:8]}): name a run of the same data and tokenizer"
    )


def _key_mask(judge: Path, rows: Sequence[Row], blocks: TargetBlocks, train_length: int) -> np.ndarray:
    scored = {
        row.length: row
        for row in rows
        if (row.target_hash, row.control, row.protocol) == (blocks.hash, "none", "paired")
        and (row.status, row.score_dtype) == ("ok", "float32")
    }
    longest = blocks.max_length
    if not {train_length, longest} <= scored.keys():
        there = ", ".join(map(str, sorted(scored))) or "no length"
        raise UserError(
            f"{OPTION} {judge.name}: it needs scores at {train_length} and {longest} on the same targets "
            f"({blocks.hash}), and has {there}: `pe-bench eval {shlex.quote(judge.name)} --lengths "
            f"{train_length},{longest} --max-length {blocks.max_length} --targets {len(blocks)}`"
        )
    short, long = (load_scores(score_file(judge, scored[length])).nll for length in (train_length, longest))
    return (short - long > MIN_GAIN) & (long < MAX_LOSS)
