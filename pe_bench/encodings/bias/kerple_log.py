r"""KERPLE, logarithmic: b(r) = -p_h ln(1 + a_h r), with learned p_h and a_h >= 0.01.

Initially p ~ U(0, 2) and a ~ U(0, 1). All layers share them.

$b_h(r) = -p_h \ln(1 + a_h r), \quad p_h, a_h \ge 0.01$

Past the training length: defined, the bias falls ever more slowly.

Chi et al. 2022, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
NeurIPS, arXiv:2205.09921.

The authors' code writes the bound 0.01 into the parameters in each forward pass. Here it is in
the formula, with the gradient that a value at the bound would have; one that was driven far beyond
it has to come all the way back.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, bounded

SMALLEST_PARAMETER = 0.01


class KerpleLog(LayerEncoding):
    claims = frozenset({"shift_invariant", "prefix_consistent", "decaying"})

    def __init__(self, n_heads: int):
        super().__init__()
        self.p = nn.Parameter(2 * torch.rand(n_heads))
        self.a = nn.Parameter(torch.rand(n_heads))

    def distance_bias(self, distance: Tensor) -> Tensor:
        p = bounded(self.p, SMALLEST_PARAMETER).unsqueeze(-1)
        a = bounded(self.a, SMALLEST_PARAMETER).unsqueeze(-1)
        return -p * torch.log1p(a * distance)
