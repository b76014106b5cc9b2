r"""Transformer-XL: z_ij = ((q_i + u) . k_j + (q_i + v) . W R_{i-j}) / sqrt(K).

R_r is the sinusoid of the distance over the *model's* width D, all sines and then all cosines,
theta_c = base^(-2c/D), c = 0..D/2-1. u and v are [H, K] and drawn from N(0, 0.02^2), one pair for all
layers; W is [H K, D] in every layer and drawn from N(0, 1/D), as the decoder's own projections.

$z_{ij} = \frac{(q_i + u) \cdot k_j + (q_i + v) \cdot W R_{i - j}}{\sqrt{K}}$

Past the training length: defined, out of distribution: the slow sines have not yet made a full
turn in training.

Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
arXiv:1901.02860, section 3.3. In a decoder XLNet's (Yang et al. 2019, arXiv:1906.08237) is the same.

Only the encoding, without the memory of earlier segments. The authors project R of every distance,
take the products with all queries and shift row i of the result by i. By the addition theorems
sin(i - j) and cos(i - j) are products of what i has and what j has, so here D columns of the queries and
keys hold the term exactly, for any positions. Their `clamp_len`, a largest distance, has no such form, and is
left out, as is `untie_r`, a pair u and v in every layer. Their matrices are all drawn from N(0, 0.02^2).
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import Base, LayerEncoding, PositionalEncoding, Side, precise
from pe_bench.encodings.initial import random_matrix
from pe_bench.encodings.rotary.rope import angles_at, require_pairs, rope_frequencies


class TransformerXL(PositionalEncoding):
    """Options:

    base: of the geometric frequencies
    """

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(self, d_model: int, n_heads: int, d_head: int, n_layers: int, base: Base = 10_000.0):
        super().__init__()
        require_pairs(d_model, "model.d_model")
        self.frequencies = nn.Buffer(rope_frequencies(d_model, base), persistent=False)
        self.content_bias = nn.Parameter(0.02 * torch.randn(n_heads, d_head))
        self.position_bias = nn.Parameter(0.02 * torch.randn(n_heads, d_head))
        self.projections = random_matrix(n_layers, n_heads, d_head, d_model)

    def layer(self, number: int) -> LayerEncoding:
        return TransformerXLLayer(self, number)


class TransformerXLLayer(LayerEncoding):
    """One layer, with the parameters of the model's encoding `shared`."""

    def __init__(self, shared: TransformerXL, number: int):
        super().__init__()
        self.shared = shared
        self.number = number

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        wide_q = self._wide_query(queries.x, queries.position)
        return wide_q, self._wide_key(keys.x, keys.position)

    def _wide_query(self, q: Tensor, position: Tensor) -> Tensor:
        """Return [B, H, Q, K + D]: q + u, and the weights of the cosines and sines of a key's position."""
        u = self.shared.content_bias.unsqueeze(-2)
        v = self.shared.position_bias.unsqueeze(-2)
        # The query's weights of the sines and the cosines of R, [B, H, Q, D/2] each.
        weights = (q + v) @ self.shared.projections[self.number]
        sine_weights, cosine_weights = weights.chunk(2, -1)
        sine, cosine = self._sinusoid(position, q)
        key_cosine_weights = torch.addcmul(sine_weights * sine, cosine_weights, cosine)
        key_sine_weights = torch.addcmul(cosine_weights * sine, sine_weights, cosine, value=-1)
        del weights, sine_weights, cosine_weights  # as large as the result, D/K times the size of the queries
        wide = torch.cat([q + u, key_cosine_weights, key_sine_weights], -1)
        return wide.to(q.dtype)

    def _wide_key(self, k: Tensor, position: Tensor) -> Tensor:
        """Return [B, H, N, K + D]: k, and the cosines and sines of its position."""
        sine, cosine = self._sinusoid(position, k)
        shape = (*k.shape[:-1], -1)
        wide = torch.cat([k, cosine.expand(shape), sine.expand(shape)], -1)
        return wide.to(k.dtype)

    def _sinusoid(self, position: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return sines and cosines [.., n, D/2] of the angles at positions [.., n], in float32 or better.

        x: only for its type.
        """
        angle = angles_at(position, self.shared.frequencies)
        dtype = precise(x.dtype)
        return angle.sin().to(dtype), angle.cos().to(dtype)
