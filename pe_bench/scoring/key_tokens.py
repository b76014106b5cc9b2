"""Key targets: what another run predicts well, and much better with far context than without.

The rule is LongPPL's (Fang et al., 2024, "What is Wrong with Perplexity for Long-context Language Modeling?",
arXiv:2410.23771, with the thresholds of its code): a target is key where the judge's loss falls by more than
2 nats from the short context to the long one, and is then below 2 nats. Here the short context is the
training length and the long one the longest context that every target of a set has, whichever lengths are
scored. LongPPL's judge is a large model of subword tokens; a small one, or one of bytes, finds fewer.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pe_bench.data.packed import Data
from pe_bench.errors import UserError
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.runs.slices import KEY, Masks
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.targets import TargetBlocks

MIN_GAIN = 2.0  # nats
MAX_LOSS = 2.0  # nats
OPTION = "--key-tokens-of"


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
