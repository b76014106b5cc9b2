"""ALiBi: a penalty that grows linearly with distance, b(r) = -m_h r.

The slopes m_h are 2^(-8 (h+1) / n) for n = 2^k heads; for other numbers of heads, those of the
largest power of two below, followed by every other slope of twice that power.

Past the training length: defined, nothing changes.

Press, Smith, Lewis 2022, "Train Short, Test Long", ICLR, arXiv:2108.12409, section 3 and the
authors' released code for heads that are not a power of two.
"""

import math

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding


def alibi_slopes(heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    if power == heads:
        return slopes
    return slopes + alibi_slopes(2 * power)[::2][: heads - power]


class ALiBi(LayerEncoding):
    family = "bias"
    paper = "arXiv:2108.12409"
    claims = frozenset({"shift_invariant", "prefix_consistent", "decaying"})

    slopes: Tensor

    def __init__(self, n_heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(n_heads)), persistent=False)

    def distance_bias(self, distance: Tensor) -> Tensor:
        return -self.slopes[:, None] * distance
