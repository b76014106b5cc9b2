r"""KERPLE, power: b(r) = -a_h r^p_h, with learned a_h >= 0.01 and 0.01 <= p_h <= 2.

Above 2 it would no longer be a kernel. With p = 1 it is ALiBi with learned slopes of 0.01 or more.
Initially p ~ U(0, 2) and a ~ U(0, 1). All layers share them.

$b_h(r) = -a_h\, r^{p_h}, \quad a_h \ge 0.01, \; 0.01 \le p_h \le 2$

Past the training length: defined, the bias goes on falling.

Chi et al. 2022, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
NeurIPS, arXiv:2205.09921.

The authors' code writes the bounds into the parameters in each forward pass. Here they are in
the formula, as in `kerple_log`.
"""

from torch import Tensor

from pe_bench.encodings.base import bounded
from pe_bench.encodings.bias.kerple_log import SMALLEST_PARAMETER, KerpleLog

MAX_KERNEL_POWER = 2.0


class KerplePower(KerpleLog):
    def distance_bias(self, distance: Tensor) -> Tensor:
        p = bounded(self.p, SMALLEST_PARAMETER, MAX_KERNEL_POWER).unsqueeze(-1)
        a = bounded(self.a, SMALLEST_PARAMETER).unsqueeze(-1)
        return -a * distance**p
