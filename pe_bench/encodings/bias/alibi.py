r"""ALiBi: a penalty that grows linearly with distance, b(r) = -m_h r.

The slopes m_h are 2^(-8 (h+1) / n) for n = 2^k heads; for other numbers of heads, those of the
largest power of two below, followed by every other slope of twice that power. All are multiplied by
`slope_scale`; at 0 there is no encoding.

$b_h(r) = -m_h\, r, \quad m_h = 2^{-8 (h + 1) / n} \text{ for } n = 2^k \text{ heads}$

Past the training length: defined, nothing changes.

Press, Smith, Lewis 2022, "Train Short, Test Long", ICLR, arXiv:2108.12409, section 3 and the
authors' released code for heads that are not a power of two.

`slope_scale` is ours, for positions that grow slowly: He et al. 2024, BiPE, arXiv:2401.16421, take 96 for
numbers of segments. NAPE, Vasylenko et al. 2025, arXiv:2506.16640, is `silent=0.5 slopes=harmonic`:
the last half of the heads has no slope, and the other heads have 1, 1/2, 1/3, .., as in their code,
https://github.com/deep-spin/asentmax. Of an odd number of heads, the larger part has no slope there; here
half a head is rounded to the even number: 2.5 heads to 2, 3.5 to 4. With `silent`, the geometric
slopes are those of a model with only the other heads.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, NotNegative, Share

Slopes = Literal["geometric", "harmonic"]


def alibi_slopes(heads: int) -> list[float]:
    """Return the geometric slope of each head."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    if power == heads:
        return slopes
    in_between = alibi_slopes(2 * power)[::2]
    return slopes + in_between[: heads - power]


def harmonic_slopes(heads: int) -> list[float]:
    return [1 / (head + 1) for head in range(heads)]


class ALiBi(LayerEncoding):
    """Options:

    slope_scale: multiplies every slope; 96 for positions that count segments
    silent: share of heads without a slope, counted from the last head
    slopes: of the other heads: geometric, or harmonic (1, 1/2, 1/3, ..)
    """

    claims = frozenset({"shift_invariant", "prefix_consistent", "decaying"})
    changeable_after_training = frozenset({"slope_scale"})

    def __init__(
        self,
        n_heads: int,
        slope_scale: NotNegative = 1.0,
        silent: Share = 0.0,
        slopes: Slopes = "geometric",
    ):
        super().__init__()
        silent_heads = round(silent * n_heads)
        if slope_scale == 0 or silent_heads > 0:
            self.claims = self.claims - {"decaying"}
        make_slopes = harmonic_slopes if slopes == "harmonic" else alibi_slopes
        steep_heads = n_heads - silent_heads
        unscaled = make_slopes(steep_heads) if steep_heads > 0 else []
        unscaled = unscaled + [0.0] * silent_heads
        self.slopes = nn.Buffer(slope_scale * torch.tensor(unscaled), persistent=False)

    def distance_bias(self, distance: Tensor) -> Tensor:
        return -self.slopes[:, None] * distance
