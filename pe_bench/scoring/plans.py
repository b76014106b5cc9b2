"""The plans of a run: the windows that are scored at each length; warnings of small sets of targets.

Position curves, the NLL of tokens by the number of tokens that they see, are of windows of the longest
length. Ranges of context are log-spaced, two an octave: 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12, ... Each
position scores text of its own, so a curve is no comparison of lengths and has no verdict. Each range has
windows that end with it, because a token's score may depend on the number of tokens that follow. If it does
not, all ranges are scored in one pass over the longest windows.

Each length of a task has its own examples: encodings are paired at one length, but lengths are not paired
with each other.

The controls of `paired` score the same targets without the use of context beyond the training length:

- `window`: every layer's attention is limited to the training length W. Through n layers information
  still travels n (W - 1) + 1 tokens. Is the whole context better than cropping it?
- `swap`: every token further than the training length before the first target comes from another
  document, under the same length, position ids and mask. Does the model read what is there?
- `offset`, on request: windows of the training length at later positions, which end at the position where the
  longer windows end. Do later positions alone change the scores? A scaling with a wrong
  setting, or a table of positions that ends, shows here.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pe_bench.config.schema import Config, EvalConfig, Half
from pe_bench.data.packed import Data, Split
from pe_bench.data.prompt import Prompts
from pe_bench.data.tasks import Task
from pe_bench.runs.rows import HALF, POSITIONS, TASK
from pe_bench.scoring.protocols import Examples, Plan, Window, nonoverlapping_plan, paired_plan, sliding_plan
from pe_bench.scoring.targets import (
    ScoredText,
    TargetBlocks,
    scored_documents,
    target_blocks,
    tokens_in_a_part,
    tokens_needed,
    with_half_prefix,
)

# Returns the plans of a run: `make_plans`, or the plans of a probe.
Planner = Callable[[Config, EvalConfig, Data], list[Plan]]
CONTROLLED_TIMES = (2, 16)  # times the training length: where far context begins to help, and the farthest


def make_plans(config: Config, evaluation: EvalConfig, data: Data) -> list[Plan]:
    """Return the plans of each length, in rising order of lengths. Raises `UserError`.

    Lengths up to `max_length` share one set of targets. Longer lengths share another set, on which the
    training length is scored too, for comparison. The controls of a set follow its lengths.
    """
    train_length = config.train.length
    lengths = evaluation.resolved_lengths(train_length)
    examples = data.task or data.prompts
    if examples is not None:
        count, seed, half = evaluation.targets, evaluation.seed, evaluation.half
        return [task_plan(examples, length, count, seed, half) for length in lengths]
    longest = max(train_length, evaluation.resolved_max_length(train_length))
    within = [length for length in lengths if length <= longest]
    beyond = [length for length in lengths if length > longest]
    plans = list(_plans_of_lengths(config, evaluation, data, within, longest)) if within else []
    if beyond:
        with_trained = sorted({train_length, *beyond})
        plans += _plans_of_lengths(config, evaluation, data, with_trained, max(beyond))
    if evaluation.per_position:
        farthest = max(lengths)
        plans += position_plans(data, _scored_text(data, evaluation, farthest), farthest)
    return plans


def shortages(evaluation: EvalConfig, plans: Sequence[Plan]) -> list[str]:
    """Return a sentence for each set of target blocks that is smaller than `eval.targets`.

    One more names the windows that are shorter than `eval.stride`, which advance by less.
    """
    sets = {plan.blocks.hash: plan.blocks for plan in plans if plan.blocks is not None}
    lines = []
    for blocks in sets.values():
        if len(blocks) < evaluation.targets:
            documents = len(np.unique(blocks.document))
            needed = tokens_needed(blocks.max_length, blocks.target_tokens)
            reach = f"{documents} reach the {needed} tokens of a target block and its context"
            room = f"with room for {len(blocks)} of eval.targets={evaluation.targets} target blocks"
            lines.append(f"too few documents: {reach}, {room}; those are scored")
    shorter = {plan.length for plan in plans if plan.stride and plan.stride < (evaluation.stride or 0)}
    if shorter:
        lengths = ", ".join(f"{length:,}" for length in sorted(shorter))
        message = f"eval.stride={evaluation.stride} is longer than windows of {lengths} tokens"
        lines.append(f"{message}, which follow each other without overlap: choose a smaller stride")
    return lines


def _plans_of_lengths(
    config: Config, evaluation: EvalConfig, data: Data, lengths: Sequence[int], longest: int
) -> Iterator[Plan]:
    """Yield the plans of the lengths on one set of targets, then the plans of its controls."""
    if evaluation.protocol == "paired":
        size = evaluation.resolved_target_tokens(config.train.length)
        count, seed, half = evaluation.targets, evaluation.seed, evaluation.half
        blocks = target_blocks(data.validation, longest, size, count, seed, data.hash, half)
        yield from (paired_plan(blocks, length) for length in lengths)
        is_of_hf_model = config.hf_model is not None
        yield from control_plans(
            evaluation, blocks, list(lengths), config.train.length, longest_too=is_of_hf_model
        )
        return
    text = _scored_text(data, evaluation, longest)
    for length in lengths:
        if evaluation.protocol == "nonoverlapping":
            yield nonoverlapping_plan(data, text, length)
        else:
            stride = evaluation.stride or max(1, length // 2)
            plan = sliding_plan(data, text, length, min(length, stride))
            yield replace(plan, stride_rule=str(evaluation.stride or HALF))


def control_plans(
    evaluation: EvalConfig,
    blocks: TargetBlocks,
    lengths: list[int],
    train_length: int,
    *,
    longest_too: bool = False,
) -> Iterator[Plan]:
    """Yield the controls of these lengths, which score one set of targets.

    longest_too: see `controlled_lengths`.
    """
    size = blocks.target_tokens
    for length in controlled_lengths(evaluation, lengths, train_length, size, longest_too=longest_too):
        plan = paired_plan(blocks, length)
        yield replace(plan, control="window", limit=train_length)
        swapped = list(_with_far_tokens_of_donor(blocks, plan.windows, train_length))
        yield replace(plan, control="swap", windows=swapped)
        if evaluation.controls == "offset":
            near = paired_plan(blocks, train_length)
            yield replace(near, length=length, control="offset", offset=length - train_length)


def _with_far_tokens_of_donor(
    blocks: TargetBlocks, windows: list[Window], train_length: int
) -> Iterator[Window]:
    """Yield the windows with far tokens from another document, the donor, for the control `swap`.

    A far token keeps its distance to the block: it has this distance to the donor's block in the donor."""
    parts = len(windows) // len(blocks)
    donors = np.repeat(blocks.donor_document, parts).tolist()
    shifts = np.repeat(blocks.donor_end - blocks.end, parts).tolist()
    for window, donor, shift in zip(windows, donors, shifts, strict=True):
        foreign = window.size - window.targets - train_length
        yield replace(window, donor=donor, donor_start=window.start + shift, foreign=foreign)


def controlled_lengths(
    evaluation: EvalConfig,
    lengths: list[int],
    train_length: int,
    target_tokens: int,
    *,
    longest_too: bool = False,
) -> list[int]:
    """Return the lengths that get controls: by default 2 and 16 times the training length.

    If neither is scored, only the longest possible length has controls. A control needs a token that is
    further than the training length before the first target.

    longest_too: the longest possible length has controls in any case, as for a Hugging Face model, whose
    lengths are rarely multiples of the length from which its changes are measured.
    """
    if evaluation.controls == "none":
        return []

    def has_far_token(length: int) -> bool:
        return length - tokens_in_a_part(target_tokens, length) > train_length

    possible = list(filter(has_far_token, lengths))
    if evaluation.controls == "all":
        return possible
    usual = [times * train_length for times in CONTROLLED_TIMES]
    chosen = [length for length in possible if length in usual]
    if longest_too or not chosen:
        chosen += possible[-1:]
    return sorted({*chosen})


def _scored_text(data: Data, evaluation: EvalConfig, longest: int) -> ScoredText:
    return scored_documents(data.validation, longest, evaluation.tokens, evaluation.seed, evaluation.half)


def position_plans(data: Data, text: ScoredText, longest: int) -> Iterator[Plan]:
    """Yield a plan for each range of positions, whose windows end with the last position of the range.

    The windows begin where documents are cut into windows of `longest` tokens; shorter rests are left out.
    """
    windowed = nonoverlapping_plan(data, text, longest)
    windows = [window for window in windowed.windows if window.size == longest]
    words = f"{POSITIONS}/{windowed.target_hash}/{longest}"
    digest = hashlib.sha256(words.encode()).hexdigest()
    target_hash = with_half_prefix(digest[:16], text.half)
    for first, last in pairwise(range_ends(longest)):
        count = last - first
        shorter = [replace(window, size=last, first=first, targets=count) for window in windows]
        yield Plan(POSITIONS, last, shorter, target_hash)


def range_ends(longest: int) -> list[int]:
    """Return 0, and the end of each range: 1, 2, 3, 4, 6, 8, 12, ... and the longest."""
    ends = {longest}
    for octave in range(longest.bit_length()):
        power = 2**octave
        ends |= {power, 3 * power // 2}
    return [0, *sorted(end for end in ends if end <= longest)]


def task_plan(task: Task | Prompts, length: int, count: int, seed: int, half: Half = "both") -> Plan:
    """Return the plan of `count` examples at a length, a function of the task, the seed and the length.

    The two halves are every other example, so that they share none, whatever their counts.
    """
    if half == "both":
        examples = task.examples_at(length, count, seed)
    else:
        first = 0 if half == "first" else 1
        examples = task.examples_at(length, 2 * count, seed)[first::2]
    tokens = np.concatenate([example.tokens for example in examples])
    is_answer = np.concatenate([example.is_answer for example in examples])
    sizes = [len(example.tokens) for example in examples]
    numbers = []
    for size, example in zip(sizes, examples, strict=True):
        numbers.append(np.arange(size) if example.number is None else example.number)
    # All windows have the same number of targets, so that windows of one size have one shape.
    first_answers = [int(example.is_answer.argmax()) for example in examples]
    targets = max(size - first for size, first in zip(sizes, first_answers, strict=True))
    windows = []
    for row, size in enumerate(sizes):
        fed = size - 1
        windows.append(Window(row, 0, fed, fed - targets, targets))
    is_target_answer = np.stack([example.is_answer[-targets:] for example in examples])
    target_numbers = np.stack([number[-targets:] for number in numbers])
    split = Split(tokens, np.cumsum([0, *sizes]))
    scored = Examples(split, is_target_answer, task.chance, target_numbers)
    shape = (count, *sorted(set(sizes)))
    words = repr((task.hash, length, seed, shape)).encode()
    content = tokens.astype("<i8").tobytes() + is_answer.tobytes()
    digest = hashlib.sha256(words + content).hexdigest()
    target_hash = with_half_prefix(digest[:16], half)
    return Plan(TASK, length, windows, target_hash, examples=scored)
