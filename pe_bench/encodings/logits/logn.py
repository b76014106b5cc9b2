r"""Log-n scaling: the logits of a query at position p are multiplied by max(1, ln(p + 1) / ln(train_length)).

Attention over more keys than in training stays as sharp as it was.

$z_{ij} \mapsto \max \left( 1, \frac{\ln(p + 1)}{\ln L} \right) z_{ij}, \quad L = \text{train\_length}$

Past the training length: defined; up to it the factor is 1, so that training is untouched and the
same weights can be scored with and without it.

Su 2021, https://kexue.fm/archives/8823; with the maximum as in the code of ReRoPE,
https://github.com/bojone/rerope.

The first form has no maximum, and is trained with. `scale_base` is the form of SWAN-GPT (Puvvada et al. 2025,
arXiv:2504.08719, section 2.2), fitted to a trained model; it is more than 1 within the training length too.
"""

import math

from torch import Tensor

from pe_bench.encodings.base import ROTARY_ENCODINGS, AtLeast2, Base, LayerEncoding, Side, precise


class LogN(LayerEncoding):
    """Options:

    train_length: up to here the factor is 1
    scale_base: null; or a, for the factor log_a(a + p) at every position p
    """

    claims = frozenset({"prefix_consistent"})
    compatible_with = ROTARY_ENCODINGS | {"nope", "sinusoidal"}

    def __init__(self, train_length: AtLeast2, scale_base: Base | None = None):
        super().__init__()
        self.train_length = train_length
        self.scale_base = scale_base

    def logit_scale(self, queries: Side) -> Tensor:
        # Shifted positions may lie before 0.
        position = queries.position.double().clamp(min=0)
        if self.scale_base is not None:
            logarithm = (self.scale_base + position).log()
            factor = logarithm / math.log(self.scale_base)
        else:
            ratio = position.log1p() / math.log(self.train_length)
            factor = ratio.clamp(min=1)
        return factor.to(precise(queries.raw.dtype)).unsqueeze(-1)
