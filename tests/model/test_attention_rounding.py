"""Where logits are large, or one key has all the weight, gradients are as exact as their path promises.

Scores here are exact in float32, so that what is off from float64 is the work of a path alone.
"""

import math

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.attention import attention, choose, reference_attention
from pe_bench.model.attention.paths import CHUNK, NATIVE
from pe_bench.native import build

torch.set_num_threads(1)

H, K, TOKENS = 2, 16, 300
SCALE = 1 / math.sqrt(K)
LARGE = 2**17  # of logits: their last place is 2^-6
UNIT = 2**-24  # of rounding in float32

here = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler is here")


def inputs(tokens: int, offset: int) -> list[Tensor]:
    """Return queries, keys, values and a gradient of the output; all logits lie around `offset`."""
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randint(-2, 3, (1, H, tokens, K), generator=generator).float()
    k = torch.randint(-4, 5, (1, H, tokens, K), generator=generator).float() / 4
    q[..., 0], k[..., 0] = offset / SCALE, 1
    v, slope = torch.randn(2, 1, H, tokens, K, generator=generator)
    return [q, k, v, slope]


def output_and_gradients(attend, given: list[Tensor], window: int | None) -> list[Tensor]:
    q, k, v, slope = given
    leaves = [leaf.detach().requires_grad_() for leaf in (q, k, v)]
    x, position = q.new_zeros(1, q.shape[-2], H * K), torch.arange(q.shape[-2])
    output = attend(LayerEncoding(), x, *leaves, position, window)
    return [output.detach(), *torch.autograd.grad((output * slope).sum(), leaves)]


def errors(attend, given: list[Tensor], window: int | None) -> list[float]:
    """Return the largest errors of the output and of the gradients of queries, keys and values."""
    truth = output_and_gradients(reference_attention, [tensor.double() for tensor in given], window)
    found = output_and_gradients(attend, given, window)
    return [float((a - b).abs().max()) for a, b in zip(found, truth, strict=True)]


def path(given: list[Tensor], window: int | None):
    return choose(LayerEncoding(), given[0].requires_grad_(), torch.arange(given[0].shape[-2]), window)


@here
@pytest.mark.parametrize("offset", [0, LARGE])
def test_our_kernel_is_as_exact_as_the_reference_however_large_logits_are(offset: int) -> None:
    given = inputs(TOKENS, offset)
    assert path(given, None) == NATIVE
    ours, reference = (errors(attend, given, None) for attend in (attention, reference_attention))
    assert all(a <= 2 * b for a, b in zip(ours, reference, strict=True)), (ours, reference)


@here
@pytest.mark.parametrize("factor", [1.0, 1e5])
def test_a_logit_that_has_all_the_weight_has_no_gradient_in_our_kernel(factor: float) -> None:
    for tokens, offset in ((1, LARGE), (TOKENS, 0)):
        q, k, v, slope = inputs(tokens, offset)
        if tokens > 1:  # of all keys that a query sees, the first lies far above the others
            q, k = q.zero_(), k.zero_()
            q[..., 1], k[..., 0, 1] = 200 * factor, 4
        _, of_q, of_k, _ = output_and_gradients(attention, [q, k, v, slope], None)
        assert not of_q.any() and not of_k.any()


@pytest.mark.parametrize("offset", [0, LARGE])
@pytest.mark.parametrize("window", [1, 8])
def test_pytorchs_kernel_keeps_the_bound_that_the_docs_give(window: int, offset: int) -> None:
    given = inputs(TOKENS, offset)
    assert path(given, window) == CHUNK
    q, k, v, slope = (tensor.norm(dim=-1).max().item() for tensor in given)
    logit = 0 if window == 1 else offset + 10
    of_logit = UNIT * (logit + K) * slope * v * SCALE
    bounds = [UNIT * K * v, of_logit * k, window * of_logit * q, window * UNIT * (logit + K) * slope]
    found = errors(attention, given, window)
    assert all(error <= bound for error, bound in zip(found, bounds, strict=True)), (found, bounds)
