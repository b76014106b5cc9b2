r"""BAM: b(r) = -e^{s_h} (|r + 2 sinh(l_h)| + 0.00001)^{g_h}, the logarithm of a generalised Gaussian.

Shape g, scale s and location l are learned. Initially g = 1, e^s is the slope of ALiBi and l = 0,
which is ALiBi. Heads may come to peak away from the query, and to rise with distance where g < 0. All
layers share them.

$b_h(r) = -e^{s_h} \left( |r + 2 \sinh l_h| + 0.00001 \right)^{g_h}$

Past the training length: defined, the bias goes on as it does.

Bianchessi et al. 2025, "Bayesian Attention Mechanism: A Probabilistic Framework for Positional
Encoding and Context Length Extrapolation", arXiv:2505.22842; the form and the initial values are those
of the authors' code for training, https://github.com/ArthurSBianchessi/BAM.

That code learns l by default when it is run, though the class by itself holds it fixed. Their code for
inference has the scale inside the power. Their other form also multiplies by the logarithm of the
length, which is another encoding's business.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import alibi_slopes

# Added to a distance of 0, whose powers would have no gradient.
ADDED_TO_DISTANCE = 1e-5


class BAM(LayerEncoding):
    def __init__(self, n_heads: int):
        super().__init__()
        self.shape = nn.Parameter(torch.ones(n_heads))
        self.scale = nn.Parameter(torch.tensor(alibi_slopes(n_heads)).log())
        self.location = nn.Parameter(torch.zeros(n_heads))

    def distance_bias(self, distance: Tensor) -> Tensor:
        shape = self.shape.unsqueeze(-1)
        scale = self.scale.exp().unsqueeze(-1)
        shifted = distance + 2 * self.location.sinh().unsqueeze(-1)
        return -scale * (shifted.abs() + ADDED_TO_DISTANCE) ** shape
