r"""T5's relative bias: b(r) = E[bucket(r), h], one learned number for each bucket of distances and head.

With n buckets and the largest distance M: bucket(r) = r below n/2, then
min(n - 1, n/2 + floor(ln(r / (n/2)) / ln(M / (n/2)) * n/2)), ever wider. All layers share E.

$b_h(r) = E_{\beta(r), h}, \quad \beta(r) = r \text{ for } r < \tfrac{n}{2}, \text{ else } \min \left( n -
1,\, \left\lfloor \tfrac{n}{2} + \tfrac{n}{2} \frac{\ln(2r / n)}{\ln(2M / n)} \right\rfloor \right)$

Past the training length: clamps, for every distance in the last bucket has the same bias.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", arXiv:1910.10683, section 2.1; buckets and initial values as in the released code.

The scores are divided by sqrt(K) here, as for every encoding; T5 leaves that to its initial values.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast2, LayerEncoding
from pe_bench.errors import require


def t5_buckets(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance >= 0; float64 logarithms keep the edges of buckets exact."""
    exact = buckets // 2
    logarithm = (distance.double() / exact).clamp(min=1).log()
    ratio = logarithm / math.log(max_distance / exact)
    far = exact + (ratio * (buckets - exact)).floor()
    far = far.clamp(max=buckets - 1)
    return torch.where(distance < exact, distance, far).long()


class T5(LayerEncoding):
    """Options:

    buckets: half of them hold one distance each, the others ever more
    max_distance: from here on all distances share the last bucket
    """

    past_training = "clamps"
    lr_multiple = 10.0

    def __init__(self, d_model: int, n_heads: int, buckets: AtLeast2 = 32, max_distance: int = 128):
        super().__init__()
        least = f"{buckets // 2 + 1}, for half of encoding.buckets={buckets} hold one distance each"
        is_far = max_distance > buckets // 2
        require(is_far, f"encoding.max_distance={max_distance} must be at least {least}")
        self.buckets = buckets
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.randn(n_heads, buckets) / math.sqrt(d_model))

    def distance_bias(self, distance: Tensor) -> Tensor:
        return self.table[:, t5_buckets(distance, self.buckets, self.max_distance)]
