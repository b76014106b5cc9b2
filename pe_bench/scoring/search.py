"""Options that a method searches for each trained model: the least loss where far text can be copied.

LongRoPE2 (Shang et al. 2025, arXiv:2502.20082) searches the factors of LongRoPE by the perplexity of tokens
that only far context can tell; here these are the targets of the slice `recall`. They lie in blocks that
follow those that a run is scored on, and share no target with them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pe_bench.config.schema import Config
from pe_bench.data.packed import Split
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, require
from pe_bench.runs.job import Job
from pe_bench.runs.scores import RECALL
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.scorer import Scorer, Unscored
from pe_bench.scoring.slices import text_slices
from pe_bench.scoring.targets import TargetBlocks, target_blocks

BLOCKS = 16
ROUNDS = 40  # after the first guesses
SPREAD = 0.15  # of the logarithm of a value, from one round to the next


def blocks_to_search_on(config: Config, split: Split, data_hash: str, length: int) -> TargetBlocks:
    """Return the blocks that follow those that a run is scored on, of the same half of the documents."""
    evaluation, trained, scored = config.eval, config.train.length, config.eval.targets
    longest = max(length, trained, evaluation.resolved_max_length(trained))
    size, count = evaluation.resolved_target_tokens(trained), scored + BLOCKS
    blocks = target_blocks(split, longest, size, count, evaluation.seed, data_hash, evaluation.half)
    names = ("document", "end", "turn", "donor_document", "donor_end")
    return replace(blocks, **{name: getattr(blocks, name)[blocks.turn >= scored] for name in names})


def search_option(job: Job, spec: EncodingSpec, option: str, length: int) -> Any:
    """Return the value of an option of the encoding's base with the least loss in windows of so many tokens.

    It begins with the best of the guesses of the encoding's class, and changes it at random, from a fixed
    seed, as long as that helps. job: with trained weights. Raises `RunError` where nothing can be scored.
    """
    config, split = job.config, job.data.validation
    blocks = blocks_to_search_on(config, split, job.data.hash, length)
    message = (
        f"no text is left to search {option} on beside eval.targets={config.eval.targets}: give {option}"
    )
    require(len(blocks) > 0, message)
    recall = text_slices(split, blocks, config.first_length)[RECALL]
    plan = paired_plan(blocks, length)

    def loss(value: Sequence[float]) -> float:
        encoding = EncodingSpec({**spec.values, option: list(value)}, spec.search)
        built = encoding.build(job.model.n_layers, job.data.vocabulary).to(job.device)
        model = job.model.with_encoding(built).eval()
        scorer = Scorer(model, split, job.device, config.eval, [plan], lambda *_: None)
        [(_, result)] = scorer.scores()
        if isinstance(result, Unscored):
            raise RunError(f"{option} cannot be searched at {length} tokens: {result.reason}")
        return float(result.nll[recall].mean() if recall.any() else result.nll.mean())

    random, encoding = np.random.default_rng(0), spec.base.encoding_class
    losses = {tuple(guess): loss(guess) for guess in encoding.guesses(spec.base.options, length)}
    for _ in range(ROUNDS):
        best = np.array(min(losses, key=lambda value: losses[value]))
        changed = best * np.exp(SPREAD * random.standard_normal(len(best)) * (random.random(len(best)) < 0.5))
        value = tuple(np.maximum.accumulate(np.round(changed, 2).clip(min=1)).tolist())
        if value not in losses:
            losses[value] = loss(value)
    return list(min(losses, key=lambda value: losses[value]))
