r"""xPos: RoPE with queries that shrink and keys that grow with their position.

After the rotation pair c of a query is multiplied by zeta_c^(p / scale_base), that of a key by
zeta_c^(-p / scale_base), zeta_c = (2c/K + 0.4) / 1.4: in the score a factor zeta_c^((i - j) / scale_base),
which damps the fast frequencies most. Positions are counted from the middle of the keys' positions,
which cancels in the score and keeps the factors small.

$q_c \mapsto q_c\, \zeta_c^{p / s} e^{\mathrm{i} p \theta_c}, \quad k_c \mapsto k_c\, \zeta_c^{-p / s}
e^{\mathrm{i} p \theta_c}, \quad \zeta_c = \frac{2c / K + 0.4}{1.4}, \quad s = \text{scale\_base}$

Past the training length: defined, out of distribution where RoPE is. At lengths where the factors
would overflow, past 66,875 tokens in float32 with a scale_base of 512, it is an error.

Sun et al. 2023, "A Length-Extrapolatable Transformer", ACL, arXiv:2212.10554, section 3.2.

The paper's equation 10 has no scale_base; 512, the 0.4, which it leaves open, and the middle as the origin
are those of the authors' code (https://github.com/microsoft/torchscale), which centres indices.
The paper scores long texts with blockwise attention; that is left to a modifier, such as sliding_window.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import Base, LayerEncoding, LengthError, Positive, Side, precise
from pe_bench.encodings.rotary.rope import Layout, join_pairs, rope_frequencies, rotate

GAMMA = 0.4
# The largest feature of a query or key, for which room is left below the largest number of its type.
MAX_QUERY_KEY_VALUE = 1_000.0


class XPos(LayerEncoding):
    """Options:

    base: of the geometric frequencies
    layout: which two features form a pair: half (c, c + K/2) or interleaved (2c, 2c + 1)
    scale_base: distance over which pair c decays by (2c/K + 0.4) / 1.4
    """

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(
        self, d_head: int, base: Base = 10_000.0, scale_base: Positive = 512.0, layout: Layout = "interleaved"
    ):
        super().__init__()
        self.layout: Layout = layout
        self.scale_base = scale_base
        share = torch.arange(0, d_head, 2, dtype=torch.float64) / d_head  # 2c/K
        zeta = (share + GAMMA) / (1 + GAMMA)
        self.frequencies = nn.Buffer(rope_frequencies(d_head, base), persistent=False)
        self.log_decay = nn.Buffer(zeta.log() / scale_base, persistent=False)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        key_position = keys.position.double()
        first, last = key_position.aminmax(dim=-1, keepdim=True)
        self._refuse_overflow(float((last - first).max()), keys.x.dtype)
        middle = (first + last) / 2
        query_exponent = queries.position.double() - middle
        scaled_q = self._rotate_and_scale(queries.x, queries.position, query_exponent)
        return scaled_q, self._rotate_and_scale(keys.x, keys.position, middle - key_position)

    def _rotate_and_scale(self, x: Tensor, position: Tensor, exponent: Tensor) -> Tensor:
        """Return x [B, H, n, K] turned by position, pair c scaled by zeta_c^(exponent / scale_base)."""
        dtype = precise(x.dtype)
        log_factor = exponent.unsqueeze(-1) * self.log_decay.double()
        factor = log_factor.exp().to(dtype)
        turned = rotate(x.to(dtype), position, self.frequencies, self.layout)
        return (turned * join_pairs(factor, factor, self.layout)).to(x.dtype)

    def _refuse_overflow(self, span: float, dtype: torch.dtype) -> None:
        """Raise `LengthError` if factors would overflow, which would turn scores into NaN.

        span: the largest position minus the smallest. dtype: the type of queries and keys.
        """
        room = math.log(torch.finfo(dtype).max / MAX_QUERY_KEY_VALUE)
        fastest_decay = -float(self.log_decay[0])
        longest = 2 * room / fastest_decay
        if span > longest:
            raise LengthError(
                f"xpos with encoding.scale_base={self.scale_base:g} can number {longest:.0f} positions in "
                f"{dtype}, and here are {span + 1:.0f}: train with a larger encoding.scale_base"
            )
