r"""PoPE: each feature is a magnitude turned by its position, so that content does not move the angle.

Feature c of a query becomes softplus(q_c) e^(i p theta_c), that of a key softplus(k_c) e^(i (p theta_c +
delta_c)), theta_c = base^(-c/K), c = 0..K-1. The score is the real part of their product over sqrt(K),
sum_c softplus(q_c) softplus(k_c) cos((i - j) theta_c - delta_c): queries and keys are 2K wide.
The phases delta [H, K] are learned, initially 0 and bounded to [-2 pi, 0], in every layer anew.

$z_{ij} = \frac{1}{\sqrt{K}} \sum_{c=0}^{K-1} \text{softplus}(q_{ic})\, \text{softplus}(k_{jc}) \cos((i - j)\,
\theta_c - \delta_c), \quad \theta_c = \text{base}^{-c / K}$

Past the training length: defined, out of distribution as RoPE.

Gopalakrishnan et al. 2025, "Decoupling the "What" and "Where" With Polar Coordinate Positional
Embeddings", arXiv:2509.10534, section 3.

The authors bound the phases by a plain minimum and maximum, where the gradient of a phase beyond a bound
is 0, and it stays there for good. Here it has the gradient that a value at the bound would have. They also
start phases at U(-2 pi, 0), and find 0 better for length generalization.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import Base, LayerEncoding, Side, bounded, precise
from pe_bench.encodings.rotary.rope import rope_frequencies, rotate


class PoPE(LayerEncoding):
    """Options:

    base: of the geometric frequencies
    """

    per_layer = True

    def __init__(self, n_heads: int, d_head: int, base: Base = 10_000.0):
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(n_heads, d_head))
        # base^(-c/K) for c = 0..K-1 is RoPE's spectrum at the width of the result.
        self.frequencies = nn.Buffer(rope_frequencies(2 * d_head, base), persistent=False)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        phase = bounded(self.phase, -2 * math.pi, 0)
        phase = phase.unsqueeze(-2)
        polar_q = self._polar(queries.x, torch.zeros_like(phase), queries.position)
        return polar_q, self._polar(keys.x, phase, keys.position)

    def _polar(self, x: Tensor, phase: Tensor, position: Tensor) -> Tensor:
        """Return [B, H, n, 2K]: real, then imaginary parts of softplus(x) e^(i (phase + position theta))."""
        magnitude = nn.functional.softplus(x.to(precise(x.dtype)))
        real = magnitude * phase.cos()
        imaginary = magnitude * phase.sin()
        at_position_0 = torch.cat([real, imaginary], -1)
        return rotate(at_position_0, position, self.frequencies, "half").to(x.dtype)
