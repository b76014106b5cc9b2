r"""PaTH with a forget gate: the scores of `path_attention`, plus the c_i - c_j of `fox`.

$z_{ij} = \frac{q_i^\top H_i H_{i-1} \cdots H_{j+1} k_j}{\sqrt{K}} + \sum_{s=j+1}^{i} \ln f_s, \quad H_t = I -
\beta_t w_t w_t^\top$

Past the training length: defined, as for both; gates forget a token within this length, or never.

Yang et al. 2025, "PaTH Attention: Position Encoding via Accumulating Householder Transformations",
arXiv:2505.16381, PaTH-FoX; the gate as in flash-linear-attention, `layers/path_attn.py`.

Each head has its gate, which `fox` describes.
"""

from torch import Tensor

from pe_bench.encodings.base import AtLeast1, Side
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.path_attention import Path


class PathFoX(Path):
    """Options:

    rank: of the map from the layer's input to the directions of the reflections
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, rank: AtLeast1 = 32):
        super().__init__(d_model, n_heads, d_head, rank)
        self.fox = FoX(d_model, n_heads)

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        return {**super().prepare(x), **self.fox.prepare(x)}

    def bias(self, queries: Side, keys: Side) -> Tensor:
        return self.fox.bias(queries, keys)
