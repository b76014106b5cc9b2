r"""Selective RoPE: RoPE with angles read from the tokens, theta_c sum_{s <= t} phi_sc at token t.

phi = conv(U D x) for the K/2 pairs of each head in one layer: x is the layer's input with each head's share
of its features divided by its norm, D maps it to `rank` numbers, U to the pairs, and conv mixes each pair of
the last four tokens. theta_c = base^(-2c/K) as in RoPE. A score depends on what lies between query and key,
and on no position.

$x_{tc} \mapsto x_{tc} \exp \left( \mathrm{i}\, \theta_c \sum_{s \le t} \phi_{sc} \right), \quad \theta_c =
\text{base}^{-2c / K}, \quad \phi = \text{conv}(U D x)$

Past the training length: defined; angles go on adding up, in steps that are as large as in training.

Movahedi et al. 2026, "Selective Rotary Position Embedding", ICLR, arXiv:2511.17388; as in the configuration
files and the code of the authors, https://github.com/timurcarstensen/selective-rope.

Their frequencies may be others, or learned, and phi may have a gate, a bias, an activation or a map from
each head to itself, which their largest models use; these are left out. Matrices are N(0, 1/width) at first,
as all linear layers here, and conv is uniform within 1/2.
"""

from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, Base, LayerEncoding, Side, full_precision, precise
from pe_bench.encodings.initial import random_matrix, random_taps
from pe_bench.encodings.rotary.rope import rope_frequencies, turn_both
from pe_bench.errors import require

ANGLES = "selective_rope_angles"
CONVOLUTION_TAPS = 4
NORM_EPSILON = 1e-6


class SelectiveRoPE(LayerEncoding):
    """Options:

    rank: of the map from the layer's input to the angles
    base: of the geometric frequencies
    """

    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})
    per_layer = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, rank: AtLeast1 = 32, base: Base = 500_000.0):
        super().__init__()
        require(d_model % n_heads == 0, f"model.n_heads={n_heads} must divide model.d_model={d_model}")
        self.n_heads = n_heads
        self.frequencies = nn.Buffer(rope_frequencies(d_head, base), persistent=False)
        pairs = n_heads * d_head // 2
        self.down = random_matrix(rank, d_model)
        self.up = random_matrix(pairs, rank)
        self.conv = random_taps(pairs, CONVOLUTION_TAPS)

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        # Errors of an angle add up over thousands of tokens: float64, also where a model is autocast.
        with full_precision(x):
            shares = x.double().unflatten(-1, (self.n_heads, -1))
            squares = shares.square().sum(-1, keepdim=True)
            normed = shares / (squares + NORM_EPSILON).sqrt()
            compressed = nn.functional.linear(normed.flatten(-2), self.down.double())
            mapped = nn.functional.linear(compressed, self.up.double())
            before = nn.functional.pad(mapped.mT, (CONVOLUTION_TAPS - 1, 0))
            conv = self.conv.double().unsqueeze(1)
            phi = nn.functional.conv1d(before, conv, groups=len(conv))
            turns = phi.cumsum(-1)
            angles = turns.unflatten(1, (self.n_heads, -1))
            return {ANGLES: angles * self.frequencies.double().unsqueeze(-1)}  # [B, H, K/2, T]

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        dtype = precise(keys.x.dtype)
        angles = keys.values[ANGLES].mT
        return turn_both(queries, keys, angles.cos().to(dtype), angles.sin().to(dtype))
