"""SWAN: layers without positions that see everything, each followed by rotary layers with a sliding window.

Layer l, from 0, is global where l is a multiple of `every`; the others see the last `window` tokens. In
global layers the logits of a query at position p are multiplied by log_a(a + p), with `scale_base` for a,
or, where that is null, by max(1, ln(p + 1) / ln(train_length)).

Past the training length: defined; distances stay below `window` in rotary layers, and the logits of the
global ones are scaled.

Puvvada et al. 2025, "SWAN-GPT: An Efficient and Scalable Approach for Long-Context Language Modeling",
arXiv:2504.08719, sections 2 and 2.2, appendices A and D: one global layer, then three with a window of 512
after training at 1,024 tokens, here and there half the training length.

The paper scales after training only, with an a that is fitted to the trained model (362 for 1,024 tokens,
which is told at second hand and unverified); log_a(a + p) is more than 1 within the training length too.
Here an encoding is the same in training as in scoring, and the default, that of `logn`, leaves training as
it is. The paper's base is 1,000,000.
"""

import math

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.schedule import Schedule
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.rotary.rope import Layout, RoPE
from pe_bench.errors import require


class FittedLog(LayerEncoding):
    """The logits of a query at position p are multiplied by log_a(a + p)."""

    claims = frozenset({"prefix_consistent"})

    def __init__(self, scale_base: float):
        super().__init__()
        require(scale_base > 1, f"encoding.scale_base must be more than 1, not {scale_base}")
        self.scale_base = scale_base

    def logit_scale(self, queries: Side) -> Tensor:
        # Shifted positions may lie before 0.
        factor = (self.scale_base + queries.position.double().clamp(min=0)).log() / math.log(self.scale_base)
        return factor.to(torch.promote_types(queries.raw.dtype, torch.float32)).unsqueeze(-1)


class SWAN(Schedule):
    """Options:

    every: the first layer of each group of this size sees everything, without positions
    window: tokens that the other layers see
    scale_base: of global layers: a of log_a(a + p); null: log-n
    train_length: up to here the factor of log-n is 1; not read with scale_base
    base: of the geometric frequencies
    """

    paper = "arXiv:2504.08719"

    def __init__(
        self,
        d_head: int,
        train_length: int,
        window: int,
        every: int = 4,
        scale_base: float | None = None,
        base: float = 10_000.0,
        layout: Layout = "half",
    ):
        require(every > 0, f"encoding.every must be at least 1 layer, not {every}")
        local = stack([RoPE(d_head=d_head, base=base, layout=layout), SlidingWindow(window)])
        scaling = LogN(train_length) if scale_base is None else FittedLog(scale_base)
        super().__init__([scaling, *[local] * (every - 1)])
