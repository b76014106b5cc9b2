r"""GRAPE-AP: a bias summed over the tokens between key and query, where the query sets the size of each term.

b(i, j) = sum_{j < l <= i} psi(i, l) with psi(i, l) = m_h ln sigmoid(p_i . R_l p_l / width), m_h the slopes of
ALiBi. p = W_p x has `width` features for each head and is divided by its root mean square; x is the layer's
input. R_l turns every pair of p_l by l radians, l its position. Each layer has its own W_p.

$b_{ij} = \sum_{l=j+1}^{i} \psi_h(i, l), \quad \psi_h(i, l) = m_h \ln \sigma \left( \frac{p_i \cdot R_l\,
p_l}{\text{width}} \right), \quad p = \text{RMSNorm}(W_p\, x)$

Past the training length: defined; the bias goes on falling, and l radians modulo a full turn are as in
training.

Zhang et al. 2025, "Group Representational Position Encoding", arXiv:2512.07805, equations 5.1 and 5.2; width
as in the configurations of the authors, https://github.com/model-architectures/GRAPE.

We follow the paper, not the authors' code, which takes p_i without the norm and turns p_l by -l. In both, R
turns p_l alone, so a bias depends on where a text begins. The authors normalise queries and keys too:
`model.qk_norm=true` does so here. W_p is N(0, 1/D) at first, and each token then adds about -0.7 m_h. Their
W_p is N(0, 1/(4D)) at first, which makes no difference here, where every p is normed.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast2, LayerEncoding, Side, full_precision
from pe_bench.encodings.bias.alibi import alibi_slopes
from pe_bench.encodings.content.running_sums import suffix_sums
from pe_bench.encodings.initial import random_matrix
from pe_bench.encodings.rotary.rope import require_pairs, rotate

DIRECTION = "grape_ap_direction"
NORM_EPSILON = torch.finfo(torch.float32).eps


class GrapeAP(LayerEncoding):
    """Options:

    width: features of p in each head, an even number
    """

    claims = frozenset({"prefix_consistent"})
    per_layer = True

    def __init__(self, d_model: int, n_heads: int, width: AtLeast2 = 8):
        super().__init__()
        require_pairs(width, "encoding.width")
        self.width = width
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(n_heads)), persistent=False)
        self.radians = nn.Buffer(torch.ones(width // 2), persistent=False)  # each pair's angle per step
        self.weight = random_matrix(n_heads, width, d_model)

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        with full_precision(x):
            p = torch.einsum("hwd,btd->bhwt", self.weight, x.to(self.weight.dtype))
            mean_square = p.square().mean(-2, keepdim=True)
            return {DIRECTION: p * (mean_square + NORM_EPSILON).rsqrt()}  # [B, H, width, T]

    def bias(self, queries: Side, keys: Side) -> Tensor:
        p = queries.values[DIRECTION].mT
        turned = rotate(keys.values[DIRECTION].mT, keys.position, self.radians, "half")
        slopes = self.slopes.to(turned.dtype)[:, None, None]

        def psi(some_keys: slice) -> Tensor:
            product = p @ turned[..., some_keys, :].mT
            is_later = keys.index[some_keys] > queries.index.unsqueeze(-1)
            log_sigmoid = nn.functional.logsigmoid(product / self.width)
            return (slopes * log_sigmoid).masked_fill(is_later, 0)

        # Keys that other parts of the encoding hide count too: all keys up to the query are here.
        sums = suffix_sums(keys.x.shape[-2], psi, _never_settled)
        return nn.functional.pad(sums[..., 1:], (0, 1))  # each sum begins at the key after j


def _never_settled(sums: Tensor) -> Tensor:
    return torch.zeros_like(sums, dtype=torch.bool)
