r"""Complex-valued words: feature pair c of token j at position p is r_jc e^(i (omega_jc p + theta_jc)).

Every token has an amplitude r, an initial phase theta and a frequency omega of its own, in each of
D/2 pairs. The decoder's embedding E holds r and theta in Cartesian form,

    E_jc + i E_j,c+D/2 = r_jc e^(i theta_jc),

and this encoding turns each pair by omega_jc p: the same function in other coordinates, with V D/2
parameters instead of 3 V D/2. Norms are kept, and the tied head, which is E, knows no position.
omega_jc = m_jc base^(-2c/D), with the multiple m learned and 1 at first, when all tokens turn as a
sinusoid does. A frequency learned as it stands would get one step size for all pairs, and in a few
steps the slow ones would be as fast as the fast ones. m = 0 is a token without a position.

$r_{jc}\, e^{\mathrm{i} \theta_{jc}} \mapsto r_{jc}\, e^{\mathrm{i} (\omega_{jc} p + \theta_{jc})}, \quad
\omega_{jc} = m_{jc}\, \text{base}^{-2c / D}$

Past the training length: defined, out of distribution: the slow phases were never seen.

Wang et al. 2020, "Encoding word order in complex embeddings", ICLR, arXiv:1912.12333.

The authors calculate with complex numbers in the whole network; here its features are real, and the
two parts of a pair are two features. Initial frequencies are those of sinusoids by our choice; we have
not verified theirs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import NO_VOCABULARY, Base, PositionalEncoding
from pe_bench.encodings.rotary.rope import require_pairs, rope_frequencies, rotate
from pe_bench.errors import require


class Complex(PositionalEncoding):
    """Options:

    base: of the frequencies at first
    """

    def __init__(self, d_model: int, base: Base = 10_000.0):
        super().__init__()
        require_pairs(d_model, "model.d_model")
        self.base_frequencies = nn.Buffer(rope_frequencies(d_model, base), persistent=False)
        self.multiples: nn.Parameter | None = None  # [V, D/2]

    def read_vocabulary(self, texts: Sequence[str]) -> None:
        if texts:
            shape = (len(texts), len(self.base_frequencies))
            self.multiples = nn.Parameter(torch.ones(shape))

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        require(self.multiples is not None, NO_VOCABULARY)
        assert self.multiples is not None
        frequencies = self.multiples[tokens].double() * self.base_frequencies
        return rotate(x, ids, frequencies, "half")
