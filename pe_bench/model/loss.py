"""The loss of next tokens, in chunks, so that logits are never tokens x vocabulary at once."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pe_bench.model.layers import nll_of_logits

# The largest block of logits, in elements; 2^24 float32 are 64 MB.
LOGIT_ELEMENTS = 2**24


def token_nll(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, has_loss_N: Tensor | None = None
) -> Tensor:
    """Return the negative log-likelihood of each target in nats, float32 [N]; or of those that have a loss.

    Where gradients are wanted and the tokens need several chunks, each chunk's logits are
    computed again in the backward pass instead of being kept.
    """
    if has_loss_N is not None:
        hidden_ND, targets_N = hidden_ND[has_loss_N], targets_N[has_loss_N]
    rows = max(1, LOGIT_ELEMENTS // weight_VD.shape[0])
    chunks = zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
    if len(targets_N) <= rows or not torch.is_grad_enabled():
        return torch.cat([_chunk_nll(hidden, weight_VD, targets) for hidden, targets in chunks])
    return torch.cat(
        [_recomputed(checkpoint(_chunk_nll, h, weight_VD, t, use_reentrant=False)) for h, t in chunks]
    )


def _chunk_nll(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    logits_NV = functional.linear(hidden_ND, weight_VD)
    return nll_of_logits(logits_NV, targets_N)


def _recomputed(chunk: object) -> Tensor:
    assert isinstance(chunk, Tensor)
    return chunk
