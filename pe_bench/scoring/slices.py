"""Slices: subsets of targets, defined by only the text, the same for every encoding, length and seed.

The n-gram of a target is the fewest whole tokens directly before it that hold at least 8 bytes of the text.
Its source is the last earlier occurrence of that n-gram, with the token that follows it. In the window of
the set's longest length a target is

- `recall` if the source lies more than the training length back, and the target follows it there: a model can
  copy the target only if it reads further than its training length;
- `novel` if there is no source.

All other targets belong to neither slice. A target is

- `key` if another run predicts it well, and much better with far context than without.

The rule of `key` is LongPPL's (Fang et al., 2024, "What is Wrong with Perplexity for Long-context Language
Modeling?", arXiv:2410.23771, with the thresholds of its code): the other run's loss falls by more than
2 nats from the short context to the long one, and is then below 2 nats. Here the short context is the
training length, and the long context the longest that every target of a set has, whichever lengths are
scored. In LongPPL a large model of subword tokens decides; a small model, or a model of bytes, finds fewer.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pe_bench.data.packed import Data, Split
from pe_bench.errors import UserError, require
from pe_bench.runs.rows import is_as_trained, read_rows
from pe_bench.runs.scores import KEY, NOVEL, RECALL, Masks, keep_slices, load_scores, read_means, score_file
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.targets import TargetBlocks, tokens_in_a_part

MIN_NGRAM_BYTES = 8  # the fewest bytes of an n-gram
NO_INDEX = -1  # in place of a missing index
MIN_KEY_GAIN = 2.0  # nats
MAX_KEY_LOSS = 2.0  # nats
KEY_TOKENS_OPTION = "--key-tokens-of"
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd: of a polynomial in the ids of an n-gram, modulo 2**64


def write_slices_and_means(run: Path, data: Data, plans: Sequence[Plan], train_length: int) -> None:
    """Write the slices of the plans' targets, and the means of a run's scores over them.

    Only the holder of the run's lock may call this.
    """
    kept = read_means(run).slices
    masks = {}
    for plan in plans:
        blocks = plan.blocks
        if blocks is None or blocks.hash in masks:
            continue
        is_kept = f"{blocks.hash} {RECALL}" in kept and f"{blocks.hash} {NOVEL}" in kept
        if not is_kept:
            masks[blocks.hash] = text_slices(data.validation, blocks, train_length)
    keep_slices(run, masks)


def text_slices(split: Split, blocks: TargetBlocks, train_length: int) -> Masks:
    """Return the masks of each slice over the targets of a set, bool [targets] in the order of its blocks."""
    assert split.byte_ends is not None, "training documents are not scored"
    size = tokens_in_a_part(blocks.target_tokens, blocks.max_length)
    offset = np.arange(blocks.target_tokens)
    recall = []
    novel = []
    begins = np.flatnonzero(np.diff(blocks.document, prepend=NO_INDEX))
    ends_by_document = np.split(blocks.end, begins[1:])
    for document, ends in zip(blocks.document[begins], ends_by_document, strict=True):
        block = ends[:, None] - blocks.target_tokens
        target = (block + offset).ravel()
        end_of_part = block + (offset // size + 1) * size
        window = end_of_part.ravel() - blocks.max_length  # the first token of each target's window
        start = int(split.starts[document])
        read = slice(start, start + int(ends.max()))
        tokens = split.tokens[read]
        source, begin = find_sources(tokens, split.byte_ends[read])
        has_source = (source[target] != NO_INDEX) & (begin[target] >= window)
        is_far = has_source & (target - source[target] > train_length)
        recall.append(is_far & (tokens[source[target]] == tokens[target]))
        novel.append(~has_source)
    return {RECALL: np.concatenate(recall), NOVEL: np.concatenate(novel)}


def find_sources(tokens: np.ndarray, byte_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last earlier occurrence of the n-gram before each token [tokens] of a text.

    The first array has the index of the token that follows the n-gram there, the second the index of the
    n-gram's first token; both are int64 [tokens], and `NO_INDEX` without an occurrence. byte_ends: the number
    of bytes of the text up to the end of each token.
    """
    before = np.concatenate([[0], byte_ends[:-1]]).astype(np.int64)
    begin = np.searchsorted(before, before - MIN_NGRAM_BYTES, side="right") - 1
    after = np.flatnonzero(begin != NO_INDEX)  # tokens that have an n-gram before them
    key = _ngram_hashes(tokens, after, after - begin[after])
    order = np.argsort(key, kind="stable")  # equal n-grams become neighbours, in the order of the text
    is_same = key[order[1:]] == key[order[:-1]]
    source = np.full(len(tokens), NO_INDEX, np.int64)
    source[after[order[1:]]] = np.where(is_same, after[order[:-1]], NO_INDEX)
    return source, np.where(source == NO_INDEX, NO_INDEX, begin[source])


def _ngram_hashes(tokens: np.ndarray, index: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return a hash of the `sizes` tokens before each token of `index`, uint64 [tokens]."""
    ids = tokens.astype(np.uint64)
    key = sizes.astype(np.uint64)
    for back in range(1, int(sizes.max(initial=0)) + 1):
        longer = key * HASH_MULTIPLIER + ids[index - np.minimum(back, sizes)]
        key = np.where(back <= sizes, longer, key)
    return key


def key_slices(judge: Path, plans: Sequence[Plan], train_length: int) -> Mapping[str, Masks]:
    """Return the mask of key targets for each set of targets, by its hash; the run `judge` decides.

    A set that is scored at no length beyond the training length is left out. Raise `UserError` for a run
    without scores of these targets, and for a run by which no target is key.
    """
    paired = [plan for plan in plans if plan.blocks is not None]
    require(bool(paired), f"{KEY_TOKENS_OPTION} works with --protocol paired alone: leave one of them out")
    masks: dict[str, Masks] = {}
    for plan in paired:
        if plan.blocks is not None and plan.length > train_length and plan.target_hash not in masks:
            masks[plan.target_hash] = {KEY: _key_mask(judge, plan.blocks, train_length)}
    message = (
        f"{KEY_TOKENS_OPTION} needs a length beyond the training length {train_length}: add it with --lengths"
    )
    require(bool(masks), message)
    message = (
        f"{KEY_TOKENS_OPTION} {judge.name}: no target is key to it: the loss of none falls by more than "
        f"{MIN_KEY_GAIN:g} nats to below {MAX_KEY_LOSS:g} beyond {train_length} tokens; "
        "name a run that uses far context"
    )
    require(any(mask[KEY].any() for mask in masks.values()), message)
    return masks


def _key_mask(judge: Path, blocks: TargetBlocks, train_length: int) -> np.ndarray:
    """Return the mask of a set's key targets, bool [targets]. Raise `UserError` for a run without scores."""
    longest = blocks.max_length
    rows = [row for row in read_rows(judge / "eval.csv") if row.target_hash == blocks.hash]
    rows = [row for row in rows if row.status == "ok" and is_as_trained(row)]
    rows = [row for row in rows if row.protocol == "paired" and row.score_dtype == "float32"]
    scored = {row.length: row for row in rows}
    if train_length not in scored or longest not in scored:
        command = f"pe-bench eval {shlex.quote(judge.name)} --lengths {train_length},{longest}"
        options = f"--max-length {longest} --targets {len(blocks)}"
        targets = f"on the same targets ({blocks.hash}), with the same data and tokenizer"
        needed = f"it needs scores at {train_length} and {longest} {targets}"
        raise UserError(f"{KEY_TOKENS_OPTION} {judge.name}: {needed}: `{command} {options}`")
    short = load_scores(score_file(judge, scored[train_length])).nll
    long = load_scores(score_file(judge, scored[longest])).nll
    return (short - long > MIN_KEY_GAIN) & (long < MAX_KEY_LOSS)
