"""p-RoPE: RoPE without its lowest frequencies.

theta_c = base^(-2c/K) for the floor(fraction K/2) highest, c = 0, 1, .., and theta_c = 0 for the others,
whose pairs of features are left alone. With a fraction of 1 it is RoPE, with 0 no encoding.

Past the training length: defined, out of distribution only for the slow frequencies that are kept.

Barbero et al. 2025, "Round and Round We Go! What makes Rotary Positional Encodings useful?", ICLR,
arXiv:2410.06205; 0.75 is the best of the fractions in its table 2.

The frequencies are those of RoPE over the whole head, as in the code of Gemma; partial RoPE with the same
fraction spreads its frequencies anew.
"""

from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.rope import Layout, pairs_within, rope_frequencies, rotate
from pe_bench.errors import require


class PRoPE(LayerEncoding):
    family = "rotary"
    paper = "arXiv:2410.06205"
    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    frequencies: Tensor

    def __init__(self, d_head: int, fraction: float = 0.75, base: float = 10_000.0, layout: Layout = "half"):
        super().__init__()
        require(base > 1, f"encoding.base must be larger than 1, for frequencies to fall, not {base}")
        kept = pairs_within(d_head, fraction)
        frequencies = rope_frequencies(d_head, base)
        frequencies[kept:] = 0
        self.layout: Layout = layout
        self.register_buffer("frequencies", frequencies, persistent=False)

    def transform(
        self, q: Tensor, k: Tensor, q_position: Tensor, k_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        return (
            rotate(q, q_position, self.frequencies, self.layout),
            rotate(k, k_position, self.frequencies, self.layout),
        )
