r"""DaRoPE: RoPE with slow pairs rotated by a coordinate that the token's content sets, not only its position.

A pair with theta_c >= 2 pi / train_length makes a full turn within the training length, and is turned by
p theta_c as in RoPE. The other pairs are turned by c(x, p) theta_c, the same for queries and keys, where
c(x, p) = L sigmoid(w_h . x + alpha_h beta(p)) lies between 0 and L = train_length, and beta(p) is the logit
of (p + 1/2) / L, clipped to 1e-6 from 0 and from 1. x is the layer's input of the token itself. Each head of
each layer has its own w and alpha. With w = 0 and alpha = 1 the first L tokens have the scores of RoPE.

$x_c \mapsto x_c\, e^{\mathrm{i} p \theta_c} \text{ where } \theta_c \ge \tfrac{2 \pi}{L}, \text{ else } x_c\,
e^{\mathrm{i} c \theta_c}, \quad c = L\, \sigma \left( w_h \cdot x + \alpha_h \operatorname{logit} \frac{p +
1/2}{L} \right)$

Past the training length: defined; no pair has an angle that training has not shown. beta stays at 13.8 from
that length on, so in slow pairs the content alone tells late tokens apart.

Meta AI and Inria 2026, "RoPE is Dead, Long Live RoPE", arXiv:2609.34556, sections 2.1 to 2.3; w is N(0, 0.01)
at first and alpha is 1/2, as in appendix A.2.

No code of the authors was found. Their x is "the token's hidden state"; ours is normed, like every input
of a layer here. Their base is 500,000 for 4,096 tokens; ours is the base of `rope`. A key that several query
heads share has one coordinate for each of these heads; the paper does not discuss this case. Positions in
training have to be below train_length, so DaRoPE does not suit `randomized` and `pose`.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, Base, LayerEncoding, Side, full_precision
from pe_bench.encodings.rotary.rope import angles_at, rope_frequencies, turn_both
from pe_bench.errors import require

FROM_CONTENT = "darope_from_content"
POSITION_CLIP = 1e-6
INITIAL_STD = 0.1
INITIAL_ALPHA = 0.5


class DaRoPE(LayerEncoding):
    """Options:

    train_length: pairs without a full turn within this length are rotated by the coordinate
    base: of the geometric frequencies
    """

    claims = frozenset({"prefix_consistent", "norm_preserving"})
    per_layer = True

    def __init__(
        self, d_model: int, n_heads: int, d_head: int, train_length: AtLeast1, base: Base = 10_000.0
    ):
        super().__init__()
        frequencies = rope_frequencies(d_head, base)
        is_fast = frequencies >= 2 * math.pi / train_length
        wrong = f"every pair makes a full turn within encoding.train_length={train_length} tokens"
        # The first pair turns by a radian at each position, whatever the base.
        way_out = "give a larger model.d_head" if d_head == 2 else f"give an encoding.base above {base:g}"
        require(not is_fast.all(), f"{wrong}, so this is rope: {way_out}")
        self.train_length = train_length
        self.fast = nn.Buffer(frequencies[is_fast], persistent=False)
        self.slow = nn.Buffer(frequencies[~is_fast], persistent=False)
        self.weight = nn.Parameter(INITIAL_STD * torch.randn(n_heads, d_model))
        self.alpha = nn.Parameter(torch.full((n_heads,), INITIAL_ALPHA))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        with full_precision(x):
            x = x.to(self.weight.dtype)
            return {FROM_CONTENT: nn.functional.linear(x, self.weight).mT}  # [B, H, T]

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        coordinate = self.coordinate(keys).unsqueeze(-1)  # [B, H, N, 1]
        by_content = coordinate * self.slow.to(coordinate.dtype)  # below one turn, so float32 is exact enough
        by_position = angles_at(keys.position, self.fast)  # [.., N, fast pairs]
        shape = (*by_content.shape[:-1], -1)
        fast_cos = by_position.cos().to(by_content.dtype).expand(shape)
        fast_sin = by_position.sin().to(by_content.dtype).expand(shape)
        cos = torch.cat([fast_cos, by_content.cos()], -1)
        sin = torch.cat([fast_sin, by_content.sin()], -1)
        return turn_both(queries, keys, cos, sin)

    def coordinate(self, keys: Side) -> Tensor:
        """Return the coordinate of each token in each head [B, H, N], between 0 and the training length."""
        share = (keys.position.double() + 0.5) / self.train_length
        from_content = keys.values[FROM_CONTENT]
        from_position = share.logit(POSITION_CLIP).to(from_content.dtype)  # [N] or [B, 1, N]
        alpha = self.alpha.to(from_content.dtype).unsqueeze(-1)
        return self.train_length * (from_content + alpha * from_position).sigmoid()
