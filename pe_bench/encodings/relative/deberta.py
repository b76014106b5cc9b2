r"""DeBERTa: z_ij = (q_i . k_j + q_i . W_K P_c + k_j . W_Q P_c) / sqrt(3 K), c = min(i - j, max_distance - 1).

The second term is content to position, `c2p`, the third position to content, `p2c`; `terms` may keep one
of them, and the 3 is the number of terms that are there. P is [max_distance, D], shared by layers
and heads; W_K and W_Q are [H K, D] in every layer. With `buckets`, P has a row for each of so many
distances: the nearer half has one each, the rows beyond take ever more, up to max_distance.

$z_{ij} = \frac{q_i \cdot k_j + q_i \cdot W_K P_c + k_j \cdot W_Q P_c}{\sqrt{3K}}, \quad c = \min(i - j,\,
\text{max\_distance} - 1)$

Past the training length: clamps at max_distance, which is the training length by default.

He et al. 2021, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", ICLR,
arXiv:2006.03654, section 3.1; buckets as in the second version of the released code.

The authors' P has max_distance rows more, for keys after the query, which a decoder never reads. The
paper reads row c(j, i) for `p2c`; its released code reads c(i, j), and so do we. P is N(0, 1) and the
projections are N(0, 1/D), so that what is projected has variance 1, as queries and keys have, and so has
the scaled sum; the authors draw P from N(0, 0.02^2), which their second version then normalises. The
absolute positions that they add before the last softmax are left out, as are intercepts. Their option to
project P with the matrices of the content, `share_att_key`, is not offered.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, PositionalEncoding, Side, distances
from pe_bench.encodings.relative.tables import Relative, Tables
from pe_bench.errors import require

Terms = Literal["c2p+p2c", "c2p", "p2c"]


def log_buckets(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance >= 0; float64 logarithms keep the edges of buckets exact."""
    exact = buckets // 2
    logarithm = (distance.double() / exact).clamp(min=1).log()
    ratio = logarithm / math.log((max_distance - 1) / exact)
    # A bucket ends at its edge: without the small step down, rounding would push some edges into the next.
    steps = (ratio * (exact - 1) - 1e-9).ceil()
    far = (exact + steps).clamp(max=buckets - 1)
    return torch.where(distance <= exact, distance, far).long()


class DeBERTa(PositionalEncoding):
    """Options:

    max_distance: distances from max_distance - 1 on share one vector
    buckets: null: a vector for each distance; or an even number, half of them for wider ranges
    terms: c2p (content to position), p2c (position to content) or c2p+p2c
    """

    past_training = "clamps"
    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        n_layers: int,
        max_distance: AtLeast1,
        buckets: int | None = None,
        terms: Terms = "c2p+p2c",
    ):
        super().__init__()
        if buckets is not None:
            is_even = buckets >= 4 and buckets % 2 == 0
            require(is_even, f"encoding.buckets must be null or even and at least 4, not {buckets}")
            least = f"{buckets // 2 + 2}, for half of encoding.buckets={buckets} hold one distance each"
            is_far = max_distance > buckets // 2 + 1
            require(is_far, f"encoding.max_distance={max_distance} must be at least {least}")
        self.max_distance = max_distance
        self.buckets = buckets
        self.positions = nn.Parameter(torch.randn(buckets or max_distance, d_model))
        shape = (n_layers, n_heads, d_model, d_head)
        self.projections = nn.ParameterDict()
        for term in terms.split("+"):
            self.projections[term] = nn.Parameter(torch.randn(shape) / math.sqrt(d_model))

    def layer(self, number: int) -> LayerEncoding:
        return DeBERTaLayer(self, number)

    def rows(self, distance: Tensor) -> Tensor:
        """Return the index of the row of P for each distance."""
        if self.buckets is None:
            return distance.clamp(0, self.max_distance - 1).long()
        return log_buckets(distance.clamp(min=0), self.buckets, self.max_distance)


class DeBERTaLayer(Relative):
    """One layer, with the parameters of the model's encoding `shared`."""

    def __init__(self, shared: DeBERTa, number: int):
        super().__init__()
        self.shared = shared
        self.number = number

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Append to queries and keys their products with each row of P, from which `scores` picks."""
        return self._with_products(queries.x, "c2p"), self._with_products(keys.x, "p2c")

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        width = queries.raw.shape[-1]
        terms = self.shared.projections
        q, content_to_position = queries.x.tensor_split([width], -1)
        k, position_to_content = keys.x.tensor_split([width], -1)
        scores = q @ k.mT
        rows = self.shared.rows(distances(queries, keys)).expand_as(scores)
        if "c2p" in terms:
            scores = scores + content_to_position.gather(-1, rows)
        if "p2c" in terms:
            scores = scores + position_to_content.mT.gather(-2, rows)
        root = math.sqrt(1 + len(terms))
        return scale / root * scores

    def tables(self) -> Tables:
        distance = torch.arange(self.shared.max_distance, device=self.shared.positions.device)
        positions = self.shared.positions[self.shared.rows(distance)]
        tables: dict[str, Tensor] = {}
        for term, projections in self.shared.projections.items():
            tables[term] = positions @ projections[self.number]
        factor = 1 / math.sqrt(1 + len(tables))
        return Tables(tables.get("c2p"), tables.get("p2c"), factor=factor)

    def _with_products(self, x: Tensor, term: str) -> Tensor:
        """Append to x [B, H, n, K] its products with the rows of W P, if the encoding has this term.

        term: a key of `projections`.
        """
        if term not in self.shared.projections:
            return x
        projected = self.shared.positions @ self.shared.projections[term][self.number]
        products = x.to(projected.dtype) @ projected.mT
        return torch.cat([x, products.to(x.dtype)], -1)
