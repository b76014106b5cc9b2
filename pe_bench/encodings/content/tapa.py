r"""TAPA: scores times the cosine of a phase that query and key set, and that grows with the distance.

z_ij = (q_A . k_A / sqrt(A)) cos(2 pi |i - j|^power q_P . k_P / sqrt(P)): the first A features of a head, the
share `amplitude`, make the amplitude, and the other P make the phase. There are no parameters.

$z_{ij} = \frac{q_A \cdot k_A}{\sqrt{A}} \cos \left( 2 \pi\, |i - j|^{\text{power}}\, \frac{q_P \cdot
k_P}{\sqrt{P}} \right), \quad A + P = K$

Past the training length: defined, out of distribution: at 4 times the distance a phase is 1.15 times as
large.

Wang et al. 2025, "Positional Encoding via Token-Aware Phase Attention", arXiv:2509.12635, definition 3.1,
equation 12 and section 4.1; we did not compare the version of May 2026.

No code of the authors was found. With a power of 0.1, neighbouring distances are hard to tell apart:
distance^0.1 is 1 at 1, 1.07 at 2 and 1.6 at 128. The authors train TAPA at a fifth of the rate of
their RoPE; at our rate a tiny model went through its first 150 steps as smoothly as `nope`.
"""

import math

from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Positive, Share, Side, distances, precise
from pe_bench.errors import require


class TAPA(LayerEncoding):
    """Options:

    power: of the distance, in the phase
    amplitude: share of each head's features that make the amplitude; the others make the phase
    """

    def __init__(self, d_head: int, power: Positive = 0.1, amplitude: Share = 0.5):
        super().__init__()
        self.power = power
        # 0.29 * 100 is 28.999.. in floating point.
        self.split = math.floor(amplitude * d_head + 1e-9)
        message = f"encoding.amplitude={amplitude} leaves no feature of model.d_head={d_head} to"
        least = 1 / d_head
        require(self.split > 0, f"{message} the amplitude: give at least {least:g}")
        require(self.split < d_head, f"{message} the phase: give at most {1 - least:g}")

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        dtype = precise(queries.x.dtype)
        q, q_phase = queries.x.to(dtype).tensor_split([self.split], -1)
        k, k_phase = keys.x.to(dtype).tensor_split([self.split], -1)
        distance = distances(queries, keys).abs()
        power = (distance.double() ** self.power).to(dtype)
        turns = power * (q_phase @ k_phase.mT)
        full_turn = 2 * math.pi / math.sqrt(q_phase.shape[-1])
        # `scale` is for all features of a head; the amplitude has fewer.
        share = self.split / queries.x.shape[-1]
        amplitude = scale / math.sqrt(share) * (q @ k.mT)
        return amplitude * (full_turn * turns).cos()
