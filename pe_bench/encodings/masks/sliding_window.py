r"""Sliding window: a query sees the last `window` tokens, itself among them, in every layer.

$z_{ij} = -\infty \text{ unless } 0 \le i - j < \text{window}$

Past the training length: defined; through n layers a token still draws on the last
n (window - 1) + 1 tokens.

Child et al. 2019, "Generating Long Sequences with Sparse Transformers", arXiv:1904.10509; Beltagy,
Peters, Cohan 2020, "Longformer", arXiv:2004.05150, section 3.1.
"""

from torch import Tensor

from pe_bench.encodings.base import RELATIVE_ENCODINGS, ROTARY_ENCODINGS, AtLeast1, LayerEncoding, Side
from pe_bench.encodings.masks.ranges import first_keys_in_windows, window_ranges


class SlidingWindow(LayerEncoding):
    """Options:

    window: tokens that a query sees, itself among them
    """

    paper = "arXiv:2004.05150"
    compatible_with = ROTARY_ENCODINGS | RELATIVE_ENCODINGS | {"nope", "sinusoidal", "learned"}

    def __init__(self, window: AtLeast1):
        super().__init__()
        self.window = window

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance < self.window)

    def ranges(self, start: int, stop: int) -> list[range]:
        return window_ranges(self.window, start, stop)

    def first_keys(self, tokens: int) -> Tensor:
        return first_keys_in_windows(self.window, tokens)
