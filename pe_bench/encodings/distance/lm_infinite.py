"""LM-Infinite: a query sees the first `global_tokens` tokens and the last `window`, its own among them.

Scores are rotary, and the distance r = i - j is cut off, min(r, window). What is seen is a matter of indices,
the distance one of positions.

Past the training length: defined; neither the number of keys nor any distance grows beyond the window's.

Han et al. 2024, "LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models", NAACL,
arXiv:2308.16137; as in the authors' code, https://github.com/Glaciohound/LM-Infinite.

The paper takes some keys in between back in some experiments, those with the largest logits; we do not.
"""

from torch import Tensor

from pe_bench.encodings.base import Side
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.encodings.masks.ranges import first_and_latest
from pe_bench.encodings.rotary.rope import FractionOf, Layout
from pe_bench.errors import require


class LMInfinite(EffectiveDistance):
    """Options:

    window: latest tokens that a query sees, itself among them, and the largest distance
    global_tokens: first tokens, which every query sees
    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    """

    paper = "arXiv:2308.16137"

    def __init__(
        self,
        d_head: int,
        window: int,
        global_tokens: int = 10,
        base: float = 10_000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, window, base, layout, fraction, fraction_of)
        require(global_tokens >= 0, f"encoding.global_tokens must not be negative, as {global_tokens} is")
        self.global_tokens = global_tokens

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        kept = (distance < self.window) | (keys.index < self.global_tokens)
        return kept & (distance >= 0)

    def ranges(self, start: int, stop: int) -> list[range]:
        return first_and_latest(self.global_tokens, self.window, start, stop)
