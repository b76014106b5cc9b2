"""RoPE: each pair of features of queries and keys is turned by its position, p theta_c.

theta_c = base^(-2c/K), c = 0..K/2-1, so that the score depends on content and i - j. A pair is
(x_c, x_{c+K/2}) in the `half` layout and (x_2c, x_{2c+1}) in the `interleaved` one; the two are
the same up to a permutation of features, but weights of one do not fit the other.

Past the training length: defined, out of distribution: the slow frequencies have not yet made
a full turn in training.

Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.2.2 (interleaved there; `half` is the
layout of GPT-NeoX and Llama, and the default here).
"""

from typing import Literal

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.errors import require

Layout = Literal["half", "interleaved"]


def rope_frequencies(width: int, base: float) -> Tensor:
    """theta [width / 2] in float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotate(x: Tensor, position: Tensor, frequencies: Tensor, layout: Layout) -> Tensor:
    """Turn the pairs of x [B, H, n, K] by position [n] or [B, 1, n] times frequencies [K/2].

    Angles are float64, for a float32 one at position 65,536 is wrong by 0.004; the products are
    float32 or better whatever the type of `x`.
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    angle = position.double().unsqueeze(-1) * frequencies.double()
    cos, sin = angle.cos().to(precise), angle.sin().to(precise)
    a, b = x.to(precise).chunk(2, -1) if layout == "half" else x.to(precise).unflatten(-1, (-1, 2)).unbind(-1)
    turned = (a * cos - b * sin, a * sin + b * cos)
    joined = torch.cat(turned, -1) if layout == "half" else torch.stack(turned, -1).flatten(-2)
    return joined.to(x.dtype)


class RoPE(LayerEncoding):
    family = "rotary"
    paper = "arXiv:2104.09864"
    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    frequencies: Tensor

    def __init__(self, d_head: int, base: float = 10_000.0, layout: Layout = "half"):
        super().__init__()
        require(
            d_head % 2 == 0, f"rope turns pairs of features, and the head width model.d_head={d_head} is odd"
        )
        require(base > 0, f"encoding.base must be positive, not {base}")
        self.layout: Layout = layout
        self.register_buffer("frequencies", rope_frequencies(d_head, base), persistent=False)

    def transform(
        self, q: Tensor, k: Tensor, q_position: Tensor, k_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        return (
            rotate(q, q_position, self.frequencies, self.layout),
            rotate(k, k_position, self.frequencies, self.layout),
        )
