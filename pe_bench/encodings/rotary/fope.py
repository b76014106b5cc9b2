r"""FoPE: RoPE whose cosines and sines are Fourier series, and whose slow pairs know no position.

Of the pairs, P make a full turn within the training length, theta_c > 2 pi / train_length. Pair c of them is
turned with sum_b A_bc cos(p theta_b) in the place of its cosine and sum_b B_bc sin(p theta_b) in that of its
sine. A and B are those of one head in one layer: the identity plus N(0, 2 gain^2 / (P (P + n_heads))), and
they do not learn, unless `train.encoding_lr` is given. The other pairs are left as they are, cosine 1 and
sine 0. Scores depend on positions as such, because a series of cosines and one of sines are no rotation.

$\cos p \theta_c \to \sum_b A_{bc} \cos p \theta_b, \quad \sin p \theta_c \to \sum_b B_{bc} \sin p \theta_b,
\quad \theta_b, \theta_c > 2 \pi / L$

Past the training length: defined; all frequencies have made full turns in training.

Hua et al. 2025, "Fourier Position Embedding: Enhancing Attention's Periodic Extension for Length
Generalization", ICML, arXiv:2412.17739; all as in the authors' code,
https://github.com/TsinghuaC3I/Fourier-Position-Embedding, because of the paper only the abstract was read.

That code turns at most half of the pairs, and we as many as make a full turn, as in vLLM, where heads that
share a key share A and B. Both have a sine of 1 for the other pairs, which doubles their products; vLLM's
issue 55204 calls that a mistake, and `padded_sine: 1` repeats it. Its gains are 0.3 for 60M parameters to 0.6
for 1.2B.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, Base, LayerEncoding, Side, full_precision, precise
from pe_bench.encodings.rotary.rope import angles_at, rope_frequencies, turn_both
from pe_bench.errors import require


class FoPE(LayerEncoding):
    """Options:

    train_length: pairs of features that make a full turn within this many tokens are rotated
    base: base of the geometric frequencies
    gain: size of the further frequencies that are added to each pair's own
    padded_sine: sine for pairs that are not rotated; 1 as in the authors' code
    """

    claims = frozenset({"prefix_consistent"})
    per_layer = True
    lr_multiple = 0.0

    def __init__(
        self,
        n_heads: int,
        d_head: int,
        train_length: AtLeast1,
        base: Base = 10_000.0,
        gain: float = 0.3,
        padded_sine: float = 0.0,
    ):
        super().__init__()
        frequencies = rope_frequencies(d_head, base)
        slowest = 2 * math.pi / train_length
        frequencies = frequencies[frequencies > slowest]
        count = len(frequencies)
        require(count > 0, f"no pair makes a full turn within encoding.train_length={train_length} tokens")
        self.padded_sine = padded_sine
        self.frequencies = nn.Buffer(frequencies, persistent=False)
        variance = 2 / (count * (count + n_heads))
        spread = gain * math.sqrt(variance)
        shape = (n_heads, count, count)
        self.of_cosines = nn.Parameter(torch.eye(count) + spread * torch.randn(shape))
        self.of_sines = nn.Parameter(torch.eye(count) + spread * torch.randn(shape))

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        pairs = keys.x.shape[-1] // 2
        still = pairs - len(self.frequencies)
        angles = angles_at(keys.position, self.frequencies)  # [.., N, P]
        with full_precision(keys.x):
            cos = angles.cos().to(self.of_cosines.dtype) @ self.of_cosines
            sin = angles.sin().to(self.of_sines.dtype) @ self.of_sines
        cos = nn.functional.pad(cos, (0, still), value=1.0)
        sin = nn.functional.pad(sin, (0, still), value=self.padded_sine)
        dtype = precise(keys.x.dtype)
        return turn_both(queries, keys, cos.to(dtype), sin.to(dtype))
