r"""A bias of the distance that each query mixes: z_ij = q_i . k_j / sqrt(K) + (W_h x_i) . B[:, i - j].

x_i is the layer's input, W_h maps it to `rank` numbers for each head, and the bank B [rank, max_distance]
holds a profile of the distances for each of them. From `max_distance` on the bias is 0. W and B are those of
one layer.

$z_{ij} = \frac{q_i \cdot k_j}{\sqrt{K}} + (W_h x_i) \cdot B_{:,\, i - j}$

Past the training length: clamps; beyond the last distance all keys have the same bias.

Inkling in transformers 5.23.0 (`inkling`), https://github.com/huggingface/transformers: a rank of 16, 1,024
distances. No paper is known.

Inkling divides the products of normed queries and keys by K, makes keys and values by short convolutions, and
has windows and a logarithmic scale (`log_steps` with `smooth`, which there multiplies the bias too, as here).
W is N(0, 1/D) at first, as all linear layers here, and B N(0, 0.02), as there.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, Side, distances
from pe_bench.encodings.initial import random_matrix

MIXED = "relative_bank_mixed"


class RelativeBank(LayerEncoding):
    """Options:

    max_distance: from here on the bias is 0
    rank: profiles in the bank
    """

    past_training = "clamps"
    per_layer = True

    def __init__(self, d_model: int, n_heads: int, max_distance: AtLeast1, rank: AtLeast1 = 16):
        super().__init__()
        self.weight = random_matrix(n_heads, rank, d_model)
        self.bank = nn.Parameter(0.02 * torch.randn(rank, max_distance))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        mixed = torch.einsum("hrd,btd->bhrt", self.weight, x.to(self.weight.dtype))
        return {MIXED: mixed}

    def bias(self, queries: Side, keys: Side) -> Tensor:
        by_distance = queries.values[MIXED].mT @ self.bank  # [B, H, Q, max_distance]
        # A last column of zeros serves all distances beyond.
        by_distance = nn.functional.pad(by_distance, (0, 1))
        column = distances(queries, keys).long().clamp(0, self.bank.shape[-1])
        return by_distance.gather(-1, column.expand(*by_distance.shape[:-1], -1))
