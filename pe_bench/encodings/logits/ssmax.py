r"""Scalable softmax: the logits of a query that sees n keys are multiplied by s_h ln n, with a learned s_h.

Each head of each layer has its own. n is the query's index plus one, or `window` where fewer keys are
visible: it counts keys, whatever their positions. A query that sees one key has a factor of 0, and gives
that key all its weight. The factor multiplies: s_h ln n added to the logits would change nothing. The
modifier does not know which keys other parts of the encoding hide: beside a sliding window, chunks or sinks,
set `window` to the most keys that a query sees, or n grows with the text although the keys do not.

$z_{ij} \mapsto s_h \ln n \cdot z_{ij}$

Past the training length: defined; attention over more keys is as sharp as it was.

Nakanishi 2025, "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399.

s is 0.168 at first, one over the mean of ln n up to 1,024 keys; that the paper starts there is unverified.
With `bias` the factor is s_h ln n + b_h, as the paper tries as well and Mistral Large 4 has it in
transformers; b is 0 at first, and there 1 with s at 0.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, Side, precise

INITIAL_SCALE = 0.168


class SSMax(LayerEncoding):
    """Options:

    window: the most keys that a query sees, to be given where another part hides some; null: all tokens
        so far
    bias: add a learned number to the factor
    """

    per_layer = True

    def __init__(self, n_heads: int, window: AtLeast1 | None = None, bias: bool = False):
        super().__init__()
        self.window = window
        self.strength = nn.Parameter(torch.full((n_heads,), INITIAL_SCALE))
        self.offset = nn.Parameter(torch.zeros(n_heads)) if bias else None

    def logit_scale(self, queries: Side) -> Tensor:
        keys = queries.index + 1
        keys = keys if self.window is None else keys.clamp(max=self.window)
        dtype = precise(self.strength.dtype)
        logarithm = keys.double().log().to(dtype)
        strength = self.strength.to(dtype)[:, None, None]
        factor = strength * logarithm.unsqueeze(-1)
        if self.offset is None:
            return factor
        return factor + self.offset.to(dtype)[:, None, None]
