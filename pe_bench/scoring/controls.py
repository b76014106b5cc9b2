"""The controls of `paired`: the same targets at the same length, kept from the context beyond training.

- `window`: every layer's attention is limited to the training length W. Through n layers information
  still travels n (W - 1) + 1 tokens. Is the whole context better than cropping it?
- `swap`: every token further than the training length before the first target comes from another
  document, under the same length, position ids and mask. Does the model read what is there?
- `offset`, if it is asked for: windows of the training length, all of whose positions are later, so that they
  end where those of the longer length do. Do later positions alone change the scores? A scaling with a wrong
  setting, or a table of positions that ends, shows here.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from pe_bench.config.schema import EvalConfig
from pe_bench.encodings.base import PositionalEncoding, Side
from pe_bench.model.decoder import LanguageModel
from pe_bench.scoring.protocols import Plan, Window, paired_plan
from pe_bench.scoring.targets import TargetBlocks, tokens_in_a_part

DEFAULT_TIMES = (2, 16)  # the training length: where context should begin to help, and where most is asked


def control_plans(
    evaluation: EvalConfig, blocks: TargetBlocks, lengths: list[int], train_length: int
) -> Iterator[Plan]:
    """Yield the controls of these lengths, which score one set of targets."""
    for length in controlled_lengths(evaluation, lengths, train_length, blocks.target_tokens):
        plan = paired_plan(blocks, length)
        yield replace(plan, control="window", limit=train_length)
        yield replace(plan, control="swap", windows=[*_swapped(blocks, plan.windows, train_length)])
        if evaluation.controls == "offset":
            near = paired_plan(blocks, train_length)
            yield replace(near, length=length, control="offset", offset=length - train_length)


def _swapped(blocks: TargetBlocks, windows: list[Window], train_length: int) -> Iterator[Window]:
    """Yield the windows with donors, which lie before a donor's block as they do before their own."""
    parts = len(windows) // len(blocks)
    donors = np.repeat(blocks.donor_document, parts).tolist()
    shifts = np.repeat(blocks.donor_end - blocks.end, parts).tolist()
    for window, donor, shift in zip(windows, donors, shifts, strict=True):
        foreign = window.size - window.targets - train_length
        yield replace(window, donor=donor, donor_start=window.start + shift, foreign=foreign)


def controlled_lengths(
    evaluation: EvalConfig, lengths: list[int], train_length: int, target_tokens: int
) -> list[int]:
    """Return the lengths that get controls: by default those of 2 and 16 times the training length.

    Where none of these is scored, it is the longest. A control needs a token that is further than the
    training length before the first target.
    """
    possible = [
        length for length in lengths if length - tokens_in_a_part(target_tokens, length) > train_length
    ]
    if evaluation.controls in ("all", "none"):
        return possible if evaluation.controls == "all" else []
    default = [length for length in possible if length in [times * train_length for times in DEFAULT_TIMES]]
    return default or possible[-1:]


def why_not(plan: Plan, model: LanguageModel) -> str:
    """Return the reason why a control would say nothing; empty for one to score."""
    if plan.control == "window" and is_windowed(model.encoding, model.n_layers, plan.length):
        return "the encoding is windowed itself"
    if plan.control == "swap" and any(window.donor == window.document for window in plan.windows):
        return "all targets are of one document, and there is no other to swap with"
    return model.control_refusal(plan.control, plan.length)


def is_windowed(encoding: PositionalEncoding, n_layers: int, length: int) -> bool:
    """Return whether every layer by itself hides some of `length` tokens from the last one."""
    index = torch.arange(length)
    nothing = torch.empty(1, 1, length, 0)
    keys = Side(nothing, nothing, index, index, {})
    query = Side(nothing[:, :, -1:], nothing[:, :, -1:], index[-1:], index[-1:], {})
    return not any(bool(encoding.layer(n).visible(query, keys).all()) for n in range(n_layers))
