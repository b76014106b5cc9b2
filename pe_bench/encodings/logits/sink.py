r"""A sink: w_ij = e^{z_ij} / (e^{s_h} + sum_k e^{z_ik}), as if every query saw one more key without a value.

A head that finds nothing to read can so read nothing, and needs no token to put its weights on. Each head of
each layer learns its own s_h, which nothing scales. With `learned` false all stay at `initial`; a fixed 0 is
"softmax plus one".

$w_{ij} = \frac{e^{z_{ij}}}{e^{s_h} + \sum_k e^{z_{ik}}}$

Past the training length: defined; the sink's logit stays as it is, while the number of keys beside it grows.

OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv:2508.10925, and transformers' `gpt_oss`. With
a fixed 0: Miller 2023, "Attention Is Off By One", https://www.evanmiller.org/attention-is-off-by-one.html.

s_h is 0 at first; transformers draws it from N(0, 0.02).
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Side, precise


class Sink(LayerEncoding):
    """Options:

    initial: logit of the sink before training
    learned: false: the logit stays at `initial`; 0 gives a softmax with 1 added to its sum
    """

    per_layer = True

    logit: Tensor  # [H]

    def __init__(self, n_heads: int, initial: float = 0.0, learned: bool = True):
        super().__init__()
        logit = torch.full((n_heads,), initial)
        if learned:
            self.logit = nn.Parameter(logit)
        else:
            self.register_buffer("logit", logit, persistent=False)

    def null_logit(self, queries: Side) -> Tensor:
        logit = self.logit.to(precise(self.logit.dtype))
        return logit[:, None, None]
