r"""Convolution at the input: x_p + sum_m w_m * x_{p-m}, m = 0..kernel-1, each feature by itself.

Before the first token there are zeros, so that a token knows its neighbours and the first tokens know
where they are; no position is read. Applied once, after the embeddings. w is [D, kernel], the present
token last, drawn from N(0, 0.02^2).

$x_p \mapsto x_p + \sum_{m=0}^{\text{kernel} - 1} w_m \odot x_{p - m}$

Past the training length: defined; from token kernel-1 on, what is done is the same everywhere.

Islam, Jia, Bruce 2020, "How Much Position Information Do Convolutional Neural Networks Encode?",
arXiv:2001.08248, where zero padding is what tells positions; Chu et al. 2021, "Conditional Positional
Encodings for Vision Transformers", arXiv:2102.10882, where a depthwise convolution with a residual
encodes them.

Theirs see both sides of a place in an image; a decoder may not see what follows, so all zeros are on
the left. No intercept, which says nothing of order.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast2, PositionalEncoding


def causal_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve each feature of x [B, T, D] with its weights [D, kernel], the last for the token itself."""
    kernel = weight.shape[-1]
    length = x.shape[1]
    padded = nn.functional.pad(x, (0, 0, kernel - 1, 0))
    products = [weight[:, m] * padded[:, m : m + length] for m in range(kernel)]
    return torch.stack(products).sum(0)


class Convolution(PositionalEncoding):
    """Options:

    kernel: tokens that are summed, the present one among them
    """

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(self, d_model: int, kernel: AtLeast2 = 3):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(d_model, kernel))

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return x + causal_convolution(x, self.weight).to(x.dtype)
