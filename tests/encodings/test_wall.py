"""Wall attention in halves of blocks is the formula pair by pair, and forgets all without overflow."""

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.content.wall import FORGOTTEN, Wall
from pe_bench.inspection.check.case import layer_inputs
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import project

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

H, K, D = 4, 8, 32  # those of `layer_inputs`


def made(strength: float = 1.0, dtype: torch.dtype = torch.float64) -> Wall:
    torch.manual_seed(0)
    encoding = Wall(D, H, K)
    encoding.weight.data *= strength
    encoding.intercept.data.zero_()
    return encoding.to(dtype)


def pair_by_pair(q: Tensor, k: Tensor, passed: Tensor) -> Tensor:
    between = (passed.mT.unsqueeze(-2) - passed.mT.unsqueeze(-3)).clamp(max=0)
    return torch.einsum("bhik,bhjk,bhijk->bhij", q, k, between.exp())


@torch.no_grad()
@pytest.mark.parametrize("strength", [0.1, 300.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 43])
def test_halves_of_blocks_are_the_formula_pair_by_pair(tokens: int, strength: float) -> None:
    x, q, k, _ = layer_inputs(tokens)
    queries, keys = project(made(strength), x, q, k, torch.arange(tokens))
    expected = pair_by_pair(q, k, keys.values[FORGOTTEN])
    assert worst(made().scores(queries, keys, 1.0).tril(), expected.tril()) < 1e-13


def test_gates_that_forget_all_at_once_give_finite_scores_and_gradients_in_float32() -> None:
    encoding = made(1e4, torch.float32)
    x, q, k, _ = layer_inputs(60, torch.float32)
    queries, keys = project(encoding, x, q.requires_grad_(), k.requires_grad_(), torch.arange(60))
    scores = encoding.scores(queries, keys, 1.0)
    gradients = torch.autograd.grad(scores.sum(), [q, k, *encoding.parameters()])
    assert all(found.isfinite().all() for found in (scores, *gradients))
