r"""Contextual positions: z_ij = q_i . k_j / sqrt(K) + q_i . e(p_ij), p_ij = sum_{j <= l <= i} g_il.

g_il = sigmoid(q_i . k_l / sqrt(K)) counts the keys that the query deems worth counting; e(p) lies
linearly between the rows floor(p) and ceil(p) of a table [max_position, K] that is initially 0,
shared by heads and not by layers. p is clamped to the last row.

$z_{ij} = \frac{q_i \cdot k_j}{\sqrt{K}} + q_i \cdot e(p_{ij}), \quad p_{ij} = \sum_{l=j}^{i} \sigma \left(
\frac{q_i \cdot k_l}{\sqrt{K}} \right)$

Past the training length: clamps; how many tokens a row spans depends on their content.

Golovneva et al. 2024, "Contextual Position Encoding: Learning to Count What's Important",
arXiv:2405.18719.

The bias is not divided by sqrt(K), as in the paper's own listing; the authors' repository divides
it by default. The gates read the logits after modifiers, such as logn.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, Side
from pe_bench.encodings.content.running_sums import suffix_sums


class CoPE(LayerEncoding):
    """Options:

    max_position: rows of the table; what is counted beyond is clamped
    """

    past_training = "clamps"
    per_layer = True

    def __init__(self, d_head: int, max_position: AtLeast1 = 64):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(max_position, d_head))

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        last = len(self.table) - 1
        position = contextual_position(scores, visible, last).clamp(max=last)
        table = self.table.to(queries.raw.dtype)
        by_row = (queries.raw @ table.mT).to(scores.dtype)  # [B, H, Q, max_position]
        below = position.floor()
        at_below = by_row.gather(-1, below.long())
        at_above = by_row.gather(-1, position.ceil().long())
        near = torch.lerp(at_below, at_above, position - below)
        far_keys = scores.shape[-1] - near.shape[-1]
        far = by_row[..., -1:].expand(*scores.shape[:-1], far_keys)
        return scores + torch.cat([far, near], -1)


def contextual_position(scores: Tensor, visible: Tensor, last: float = math.inf) -> Tensor:
    """Return p [.., Q, n] of the latest n of N keys: the sum of the gates from the key up to the query.

    Keys that are left out, n being less than N, have a p of at least `last` for every query.
    """

    def gates(keys: slice) -> Tensor:
        hidden = ~visible[..., keys]
        # Masked before the sum: the gates of keys after the query would be counted otherwise.
        return scores[..., keys].sigmoid().masked_fill(hidden, 0)

    return suffix_sums(scores.shape[-1], gates, lambda passed: passed >= last)
