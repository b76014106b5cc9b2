r"""Sinusoidal positions: x_p + PE(p), PE(p)_2c = sin(p / base^(2c/D)), PE(p)_2c+1 = cos(the same).

Layouts: `interleaved` is the paper's; `concatenated` has all sines, then all cosines, with the
exponent c / (D/2 - 1); `neox` has them so with the paper's exponent c / (D/2).

$x_p \mapsto x_p + PE(p), \quad PE(p)_{2c} = \sin \frac{p}{\text{base}^{2c / D}}, \quad PE(p)_{2c+1} = \cos
\frac{p}{\text{base}^{2c / D}}$

Past the training length: defined, out of distribution. With `factor` s the positions are p / s, which for a
trained model and windows of up to s times the training length are those of training, s to one.

Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762, section 3.5.

The authors' tensor2tensor has the `concatenated` layout, and not the formula of the paper. Token
embeddings have variance 1 here before the sum, as after their factor sqrt(D). They have no factor s: it is
the interpolation of Chen et al. 2023, arXiv:2306.15595, which is for rotary positions.
"""

from typing import Literal

import torch
from torch import Tensor

from pe_bench.encodings.base import Base, PositionalEncoding, Positive
from pe_bench.errors import require

Layout = Literal["interleaved", "concatenated", "neox"]


def sinusoids(position: Tensor, width: int, base: float, layout: Layout) -> Tensor:
    """Return PE [.., width] at positions [..], in float64."""
    pairs = (width + 1) // 2
    steps = max(pairs - 1, 1) if layout == "concatenated" else width / 2
    exponent = torch.arange(pairs, dtype=torch.float64, device=position.device) / steps
    frequencies = base**-exponent
    angle = position.double().unsqueeze(-1) * frequencies
    if layout == "interleaved":
        pairs_of_both = torch.stack([angle.sin(), angle.cos()], -1)
        return pairs_of_both.flatten(-2)[..., :width]
    return torch.cat([angle.sin(), angle.cos()], -1)


class Sinusoidal(PositionalEncoding):
    """Options:

    base: of the geometric wavelengths
    layout: interleaved (the paper), concatenated (tensor2tensor) or neox
    factor: positions are divided by it
    """

    changeable_after_training = frozenset({"factor"})

    def __init__(
        self, d_model: int, base: Base = 10_000.0, layout: Layout = "interleaved", factor: Positive = 1.0
    ):
        super().__init__()
        fits = d_model % 2 == 0 or layout == "interleaved"
        wrong = f"layout={layout} needs an even model.d_model, not {d_model}"
        require(fits, f"{wrong}: say encoding.layout=interleaved")
        self.d_model = d_model
        self.base = base
        self.layout: Layout = layout
        self.factor = factor

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return x + self.rows(ids).to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the vectors [.., D] that are added at positions [..]."""
        positions = ids.double() / self.factor
        return sinusoids(positions, self.d_model, self.base, self.layout)
