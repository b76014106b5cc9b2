r"""Sandwich: b(r) = (sum_{c=1}^{width/2} cos(r / 10000^(2c / width)) - width/2) / (8 (h+1) / H).

Of sinusoidal positions only the product of two positions' sinusoids is kept, which depends on their distance
alone; each head multiplies this product by a number of its own, as in ALiBi. Nothing is learned. On the
whole the bias falls with the distance, roughly as a logarithm, but not from each distance to the next.

$b_h(r) = \frac{H}{8 (h + 1)} \sum_{c=1}^{w/2} \left( \cos \frac{r}{10000^{2c / w}} - 1 \right), \quad w =
\text{width}$

Past the training length: defined, nothing changes.

Chi et al. 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field
Analysis", ACL, arXiv:2212.10356.

The sum is the paper's formula. PyTorch's attention-gym takes c = 0 .. width/2 - 1, and leaves out the
constant, which the softmax does not see.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding
from pe_bench.errors import require

SINUSOID_BASE = 10_000.0


class Sandwich(LayerEncoding):
    """Options:

    width: width of the sinusoids, independent of the model's width
    """

    def __init__(self, n_heads: int, width: int = 128):
        super().__init__()
        is_even = width > 0 and width % 2 == 0
        require(is_even, f"encoding.width must be even and positive, not {width}")
        self.width = width
        ratios = 8 * torch.arange(1, n_heads + 1) / n_heads
        self.ratios = nn.Buffer(ratios, persistent=False)

    def distance_bias(self, distance: Tensor) -> Tensor:
        # A block of scores has few distances, each of them many times.
        distances, places = distance.unique(return_inverse=True)
        waves = torch.arange(1, self.width // 2 + 1, dtype=torch.float64, device=distance.device)
        frequencies = SINUSOID_BASE ** (-2 * waves / self.width)
        angle = distances.double().unsqueeze(-1) * frequencies
        profile = (angle.cos() - 1).sum(-1)
        return profile.to(self.ratios.dtype)[places] / self.ratios.unsqueeze(-1)
