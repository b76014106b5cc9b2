r"""Short convolutions: queries, keys and values are mixed with those of the last tokens, feature by feature.

Each feature of each head has `taps` weights, for the token itself and those before it. The modifier gives
softmax attention such convolutions as `gated_deltanet` and `kda` have, which are compared with softmax
attention.

$q_t \mapsto \sum_{s=0}^{3} c_s \odot q_{t-s}, \text{ and so for } k_t \text{ and } v_t$

Past the training length: defined; it reads no position.

As in Yang et al. 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR, arXiv:2412.06464,
without their SiLU: with it, no query or key would begin as it was.

The weight of the token itself is 1 at first, and the others are 0.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast2, LayerEncoding
from pe_bench.encodings.recurrent.recurrence import convolved


class ShortConv(LayerEncoding):
    """Options:

    taps: tokens that are mixed, with the token itself
    """

    per_layer = True

    def __init__(self, n_heads: int, d_head: int, taps: AtLeast2 = 4):
        super().__init__()
        identity = torch.zeros(3, n_heads, d_head, taps)
        identity[..., -1] = 1.0
        self.taps = nn.Parameter(identity)

    def convolve(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_taps, k_taps, v_taps = self.taps.to(q.dtype)
        return convolved(q, q_taps), convolved(k, k_taps), convolved(v, v_taps)
