r"""Temperature: all logits are multiplied by a factor, one for all heads or one for each.

$z_{ij} \mapsto \text{factor}_h \cdot z_{ij}$

Past the training length: defined; the same factor everywhere, which is there to sharpen attention over more
keys than in training, and blurs what is read within it.

Wang et al. 2024, "Length Generalization of Causal Transformers without Position Encoding", arXiv:2404.12224,
sections 2 and 3: a uniform factor of 1.2 on models without positions, scored at twice the training length
(table 2, where it already costs perplexity within it), and one for each head of each layer.

The paper's factor comes after training: train `nope`, and give its run as train.from with this modifier. A
factor that is there from the first step is only another initial scale of the logits, which the weights can
undo. The paper searches the factors of heads by training them alone; here they are given, and layers share
them.

DroPE (Gelberg et al. 2025, arXiv:2512.12167) fits one factor to each model that positions were dropped from,
after its training, for the length of the texts: `pe-bench extend RUN --to 4x --with temperature` does.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import (
    RELATIVE_ENCODINGS,
    ROTARY_ENCODINGS,
    LayerEncoding,
    Positive,
    Side,
    precise,
)
from pe_bench.errors import require


class Temperature(LayerEncoding):
    """Options:

    factor: of all logits, or a list with one for each head
    """

    compatible_with = ROTARY_ENCODINGS | RELATIVE_ENCODINGS | {"nope"}
    searched = "factor"

    def __init__(self, n_heads: int, factor: Positive | list[Positive] = 1.2):
        super().__init__()
        factors = factor if isinstance(factor, list) else [factor]
        is_fit = len(factors) in (1, n_heads)
        require(is_fit, f"factor has {len(factors)} numbers, and not 1 or those of model.n_heads={n_heads}")
        factors = torch.tensor(factors, dtype=torch.float64)[:, None, None]
        self.factors = nn.Buffer(factors, persistent=False)

    @classmethod
    def guesses(cls, options: Mapping[str, Any], length: int) -> list[list[float]]:
        """Return factors from 1 to 2, each for all heads."""
        return [[1.0], [1.1], [1.2], [1.4], [1.7], [2.0]]

    def logit_scale(self, queries: Side) -> Tensor:
        return self.factors.to(precise(queries.raw.dtype))
