"""The check before every score that our attention gives the same logits as that of transformers.

Random tokens pass through the model both ways. The logits may differ by a small share of the largest one,
and by a small share of what leaving out the rotation would change, so that a part which is silently dropped
shows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pe_bench.checkpoints.attention import NAME, PassState
from pe_bench.checkpoints.model import CheckpointModel
from pe_bench.errors import UserError

MIN_TOKENS = 64
MAX_WINDOW = 4_096
MAX_SCORES = 2**28  # of one layer, which transformers makes all at once
MAX_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest logit
MAX_SHARE = 1e-2  # of what leaving out the rotation changes


@torch.no_grad()
def require_equality(model: CheckpointModel, heads: int) -> float:
    """Return the largest difference of logits over the largest logit. Raise `UserError` if it is large."""
    count = _tokens(model, heads)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator).to(model.device)
    states: list[Sequence[Tensor]] = []
    logits = []
    begin, model.begin = model.begin, None
    try:
        for way in ("eager", NAME):
            model.causal.set_attn_implementation(way)
            hidden, layers = _layers(model, tokens, is_ours=way == NAME)
            logits.append(
                model.logits(hidden) if way == NAME else model.causal(tokens, use_cache=False).logits
            )
            states.append(layers)
    finally:
        model.begin = begin
    theirs, ours = (found.float() for found in logits)
    difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    allowed = MAX_DIFFERENCE.get(logits[0].dtype, 2e-2) * largest
    if model.is_neutral and logits[0].dtype == torch.float32 and not torch.equal(ours, theirs):
        allowed = min(allowed, max(MAX_SHARE * _movement(model, tokens, theirs), 1e-6 * largest))
    if not difference <= allowed:  # a NaN is not
        raise UserError(
            f"its logits differ from transformers' own by {difference:.2g} of {largest:.2g} with our "
            f"attention, and {allowed:.2g} is allowed: {_first_different(states[0], states[1])}"
        )
    return difference / largest


def _tokens(model: CheckpointModel, heads: int) -> int:
    """Return how many tokens to compare: two windows, where a window is not too large for that."""
    seen = [mask.count(MAX_WINDOW) for mask in model.masks if mask is not None]
    windows = [count for count in seen if count < MAX_WINDOW]
    fitting = int((MAX_SCORES / heads) ** 0.5)
    count = max(MIN_TOKENS, min(2 * max(windows, default=0), fitting))
    return count if model.max_positions is None else min(count, model.max_positions)


def _layers(model: CheckpointModel, tokens: Tensor, *, is_ours: bool) -> tuple[Tensor, list[Tensor]]:
    """Return the output of the last layer, and that of every layer."""
    found: list[Tensor] = []
    ids = torch.arange(tokens.shape[1], device=tokens.device)

    def keep(module: Any, given: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_hook(keep) for layer in _decoder_layers(model.causal, model.n_layers)]
    try:
        hidden = (
            model.hidden(tokens, ids)
            if is_ours
            else model.trunk(input_ids=tokens, position_ids=ids[None], use_cache=False)[0]
        )
    finally:
        for handle in handles:
            handle.remove()
    return hidden, found


def _decoder_layers(model: Any, n_layers: int) -> list[torch.nn.Module]:
    """Return the modules of the layers: the first list that has as many as there are."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return next((list(found) for found in lists if len(found) == n_layers), [])


def _movement(model: CheckpointModel, tokens: Tensor, logits: Tensor) -> float:
    """Return how far logits move where the model's own attention goes without its rotation."""
    state = model.state
    assert isinstance(state, PassState)
    model.causal.set_attn_implementation("eager")
    try:
        state.is_neutral = True
        moved = model.causal(tokens, use_cache=False).logits.float()
    finally:
        state.is_neutral = False
        model.causal.set_attn_implementation(NAME)
    found = float((moved - logits).abs().max())
    return found or float(logits.abs().max())  # a model without a rotation


def _first_different(theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> str:
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        difference, largest = float((one - other).abs().max()), float(one.abs().max())
        if not difference <= 1e-4 * largest:
            return f"layer {number} is the first that does ({difference:.2g} of {largest:.2g})"
    return "in no layer, so after the last"
