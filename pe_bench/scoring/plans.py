"""The plans of a run: the windows that are scored at each length, and sets of targets that are too small."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pe_bench.config.schema import Config, EvalConfig
from pe_bench.data.packed import Data
from pe_bench.runs.rows import HALF, POSITIONS, PROBE, TASK
from pe_bench.scoring.controls import control_plans
from pe_bench.scoring.positions import position_plans
from pe_bench.scoring.protocols import (
    Plan,
    nonoverlapping_plan,
    paired_plan,
    sliding_plan,
)
from pe_bench.scoring.targets import scored_documents, target_blocks, tokens_needed
from pe_bench.scoring.task_plans import task_plan

# What a run is to be scored on: `make_plans`, or the plans of a probe.
Planner = Callable[[Config, EvalConfig, Data], list[Plan]]


def make_plans(config: Config, evaluation: EvalConfig, data: Data) -> list[Plan]:
    """Return what to score at each length, in rising order of lengths. Raises `UserError`.

    Lengths up to `max_length` share one set of targets. Longer ones make another set, on
    which the training length is scored too, so that there is something to compare with. The controls of a
    set follow its lengths.
    """
    train_length = config.train.length
    lengths = evaluation.resolved_lengths(train_length)
    examples = data.task or data.prompts
    if examples is not None:
        return [task_plan(examples, length, evaluation.targets, evaluation.seed) for length in lengths]
    longest = max(train_length, evaluation.resolved_max_length(train_length))
    within = [length for length in lengths if length <= longest]
    beyond = [length for length in lengths if length > longest]
    plans = list(_plans(config, evaluation, data, within, longest)) if within else []
    if beyond:
        plans += _plans(config, evaluation, data, sorted({train_length, *beyond}), max(beyond))
    if evaluation.per_position:
        text = scored_documents(data.validation, max(lengths), evaluation.tokens, evaluation.seed)
        plans += position_plans(data, text, max(lengths))
    return plans


def count_parts(plans: Sequence[Plan]) -> int:
    """Count what there is to wait for: all ranges of positions are one, and so are all depths of a probe."""
    ranges = sum(plan.protocol == POSITIONS for plan in plans)
    probes = [plan.length for plan in plans if plan.protocol == PROBE]
    return len(plans) - max(0, ranges - 1) - len(probes) + len(set(probes))


def shortages(evaluation: EvalConfig, plans: Sequence[Plan]) -> list[str]:
    """Return a line for each set of target blocks that is smaller than was asked for."""
    sets = {plan.blocks.hash: plan.blocks for plan in plans if plan.blocks is not None}
    return [
        f"too few documents: {len(np.unique(blocks.document))} reach the "
        f"{tokens_needed(blocks.max_length, blocks.target_tokens)} tokens of a target block and its context, "
        f"with room for {len(blocks)} of eval.targets={evaluation.targets} target blocks; those are scored"
        for blocks in sets.values()
        if len(blocks) < evaluation.targets
    ]


def _plans(
    config: Config, evaluation: EvalConfig, data: Data, lengths: Sequence[int], longest: int
) -> Iterator[Plan]:
    if evaluation.protocol == "paired":
        size = evaluation.resolved_target_tokens(config.train.length)
        blocks = target_blocks(data.validation, longest, size, evaluation.targets, evaluation.seed, data.hash)
        yield from (paired_plan(blocks, length) for length in lengths)
        yield from control_plans(evaluation, blocks, list(lengths), config.train.length)
        return
    text = scored_documents(data.validation, longest, evaluation.tokens, evaluation.seed)
    if evaluation.protocol == "nonoverlapping":
        yield from (nonoverlapping_plan(data, text, length) for length in lengths)
    elif evaluation.protocol == "sliding":
        strides = {length: min(length, evaluation.stride or max(1, length // 2)) for length in lengths}
        rule = str(evaluation.stride or HALF)
        for length in lengths:
            yield replace(sliding_plan(data, text, length, strides[length]), stride_rule=rule)
    else:
        assert evaluation.protocol == TASK, "a task's examples are its plans"
