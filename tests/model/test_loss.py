"""The loss in chunks is the loss, and never makes what does not fit."""

import pytest
import torch
from torch import Tensor

from pe_bench.model import layers
from pe_bench.model.accelerate import FastTokenLoss
from pe_bench.model.layers import TokenLoss

N, D, V = 40, 6, 50  # tokens, model width, vocabulary


def inputs(dtype: torch.dtype = torch.float32, wide: int = V) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, output weights and targets; the values are exact in every type."""
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randint(-2, 3, (N, D), generator=generator).to(dtype).requires_grad_()
    weight_VD = torch.randint(-2, 3, (wide, D), generator=generator).to(dtype).requires_grad_()
    return hidden_ND, weight_VD, torch.randint(wide, (N,), generator=generator)


def plain(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """-log softmax, from its definition, in float64."""
    logits_NV = hidden_ND.double() @ weight_VD.double().T
    return logits_NV.logsumexp(-1) - logits_NV.gather(1, targets_N[:, None]).squeeze(1)


# One chunk, an exact division, a rest, and a vocabulary of which not even one row fits.
@pytest.mark.parametrize("elements", [N * V, 10 * V, 7 * V + 3, V, V - 1])
@pytest.mark.parametrize("loss", [TokenLoss(), FastTokenLoss()])
def test_chunks_give_the_plain_loss_and_its_gradients(
    loss: TokenLoss, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MAX_LOGIT_ELEMENTS", elements)
    # Tokens count differently, so that a gradient given to the wrong token shows.
    share_N = torch.linspace(0, 1, N, dtype=torch.float64)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        hidden_ND, weight_VD, targets_N = inputs(dtype)
        nll, exact = loss(hidden_ND, weight_VD, targets_N), plain(hidden_ND, weight_VD, targets_N)
        assert nll.dtype == torch.float32, "half precision cannot hold a sum of exponentials"
        torch.testing.assert_close(nll.double(), exact, rtol=1e-5, atol=1e-6)
        ours, theirs = (
            torch.autograd.grad((one * share_N).sum(), (hidden_ND, weight_VD)) for one in (nll, exact)
        )
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == dtype
            scale = float(other.abs().max())
            torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=tolerance * scale)
