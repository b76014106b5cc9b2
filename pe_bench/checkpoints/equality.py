"""The check before every score that our attention gives the same logits as that of transformers.

Random tokens pass through the model both ways. The logits may differ by a small share of the largest one,
and by a small share of what leaving out the rotation would change, so that a part which is silently dropped
shows. Logits and layers are compared at some tokens, spread over all.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pe_bench.checkpoints.attention import NAME, PassState
from pe_bench.checkpoints.model import CheckpointModel
from pe_bench.errors import UserError

MIN_TOKENS = 64
MAX_WINDOW = 4_096
# Scores of one layer, which transformers makes all at once; more where the weights are larger than these.
MIN_SCORES, MAX_SCORES = 2**26, 2**28
MAX_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest logit
NARROW, FAR_TOKENS = 2, 16
MAX_SHARE = 1e-2  # of what leaving out the rotation changes


@torch.no_grad()
def require_equality(model: CheckpointModel, heads: int) -> float:
    """Return the largest difference of logits over the largest logit. Raise `UserError` if it is large."""
    count = _tokens(model, heads)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator).to(model.device)
    places = torch.linspace(0, count - 1, MIN_TOKENS).long().to(model.device)
    states: list[Sequence[Tensor]] = []
    logits = []
    begin, model.begin = model.begin, None
    try:
        for way in ("eager", NAME):
            model.causal.set_attn_implementation(way)
            with _layers(model, places) as layers:
                if way == NAME:
                    hidden = model.hidden(tokens, torch.arange(count, device=tokens.device))
                    logits.append(model.logits(hidden[:, places]))
                else:
                    logits.append(_their_logits(model, tokens, places))
            states.append(layers)
    finally:
        model.begin = begin
    theirs, ours = (found.float() for found in logits)
    difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    allowed = MAX_DIFFERENCE.get(logits[0].dtype, 2e-2) * largest
    if model.is_neutral and logits[0].dtype == torch.float32 and not torch.equal(ours, theirs):
        allowed = min(allowed, max(MAX_SHARE * _movement(model, tokens, places, theirs), 1e-6 * largest))
    if not difference <= allowed:  # a NaN is not
        raise UserError(
            f"its logits differ from transformers' own by {difference:.2g} of {largest:.2g} with our "
            f"attention, and {allowed:.2g} is allowed: {_first_different(states[0], states[1])}"
        )
    return difference / largest


@torch.enable_grad()
def reads_beside_attention(model: CheckpointModel) -> bool:
    """Return whether outputs follow from tokens that attention to `NARROW` tokens in each layer cannot reach.

    A gradient says it, for it is exactly 0 where nothing is read. Outputs themselves move by a rounding where
    layers have experts, whose matrices are as large as the number of tokens that chose them.
    """
    beyond = FAR_TOKENS
    count = beyond + model.n_layers * (NARROW - 1) + 1
    if model.max_positions is not None and count > model.max_positions:
        return False
    embedded: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator).to(model.device)
    handle = model.causal.get_input_embeddings().register_forward_hook(keep)
    try:
        last_D = model.hidden(tokens, torch.arange(count, device=tokens.device), NARROW)[0, -1].float()
    finally:
        handle.remove()
    # A sum of normed features may be a constant, one with random factors is not.
    factors_D = torch.randn(last_D.shape, generator=generator).to(last_D.device)
    [gradient] = torch.autograd.grad((factors_D * last_D).sum(), embedded[:1])
    return bool(gradient[:, :beyond].any())


def _tokens(model: CheckpointModel, heads: int) -> int:
    """Return how many tokens to compare: two windows, where a window is not too large for that."""
    seen = [mask.count(MAX_WINDOW) for mask in model.masks if mask is not None]
    windows = [count for count in seen if count < MAX_WINDOW]
    scores = min(MAX_SCORES, max(MIN_SCORES, model.parameter_count // 4))
    fitting = int((scores / heads) ** 0.5)
    count = max(MIN_TOKENS, min(2 * max(windows, default=0), fitting))
    return count if model.max_positions is None else min(count, model.max_positions)


def _their_logits(model: CheckpointModel, tokens: Tensor, places: Tensor) -> Tensor:
    """Return the logits of the whole model at some tokens; many make no others."""
    if "logits_to_keep" in inspect.signature(model.causal.forward).parameters:
        return model.causal(tokens, use_cache=False, logits_to_keep=places).logits
    return model.causal(tokens, use_cache=False).logits[:, places]


@contextmanager
def _layers(model: CheckpointModel, places: Tensor) -> Iterator[list[Tensor]]:
    """Yield a list that gets the output of each layer at some tokens, while the model runs."""
    found: list[Tensor] = []

    def keep(module: Any, given: Any, output: Any) -> None:
        found.append((output[0] if isinstance(output, tuple) else output)[:, places])

    handles = [layer.register_forward_hook(keep) for layer in _decoder_layers(model.causal, model.n_layers)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _decoder_layers(model: Any, n_layers: int) -> list[torch.nn.Module]:
    """Return the modules of the layers: the first list that has as many as there are."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return next((list(found) for found in lists if len(found) == n_layers), [])


def _movement(model: CheckpointModel, tokens: Tensor, places: Tensor, logits: Tensor) -> float:
    """Return how far logits move where the model's own attention goes without its rotation."""
    state = model.state
    assert isinstance(state, PassState)
    model.causal.set_attn_implementation("eager")
    try:
        state.is_neutral = True
        moved = _their_logits(model, tokens, places).float()
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
