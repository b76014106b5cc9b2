r"""Gated attention: what a head reads is multiplied by a gate that the query's token sets.

o_h <- o_h sigmoid(W_h x), with x the layer's normed input, between the attention and its output matrix. The
gate has a number for each feature of each head, or with `headwise` one for each head. It acts in layers
without softmax too.

$o_{i,h} \mapsto o_{i,h} \odot \sigma(W_h x_i)$

Past the training length: defined; it reads no position.

Qiu et al. 2025, "Gated Attention for Large Language Models: Non-linearity, Sparsity, and
Attention-Sink-Free", arXiv:2505.06708. Qwen3-Next gates each feature.

W is N(0, 1/D) at first, as all linear layers here (there N(0, 0.02^2)), so that gates are near one half and
the layer's output is halved at first.
"""

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.initial import random_matrix
from pe_bench.encodings.recurrent.recurrence import in_heads


class Gate(LayerEncoding):
    """Options:

    headwise: true: one number for each head, not one for each of its features
    """

    per_layer = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, headwise: bool = False):
        super().__init__()
        self.n_heads = n_heads
        self.matrix = random_matrix(n_heads if headwise else n_heads * d_head, d_model)

    def gate(self, x: Tensor) -> Tensor:
        return torch.sigmoid(in_heads(x, self.matrix.to(x.dtype), self.n_heads))
