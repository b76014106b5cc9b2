r"""LM-Infinite: a query sees the first `global_tokens` tokens and the last `window`, its own among them.

Scores are rotary, and the distance r = i - j is cut off, min(r, window). Which keys are seen follows from
indices, the distance from positions.

$z_{ij} = \frac{R_\delta\, q_i \cdot k_j}{\sqrt{K}}, \quad \delta = \min(i - j, W), \quad \text{for } i - j <
W \text{ or } j < \text{global\_tokens}, \quad W = \text{window}$

Past the training length: defined; neither the number of keys nor any distance grows beyond the window's.

Han et al. 2024, "LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models", NAACL,
arXiv:2308.16137; as in the authors' code, https://github.com/Glaciohound/LM-Infinite.

The paper takes some keys in between back in some experiments, those with the largest logits; we do not.
"""

from dataclasses import dataclass

from torch import Tensor

from pe_bench.encodings.base import AtLeast1, Natural, Side
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.encodings.masks.ranges import first_and_window_ranges


@dataclass(eq=False)
class LMInfinite(EffectiveDistance):
    """Options:

    window: latest tokens that a query sees, itself among them, and the largest distance
    global_tokens: first tokens, which every query sees
    """

    window: AtLeast1
    global_tokens: Natural = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keep_near(self.window)

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        kept = (distance < self.near) | (keys.index < self.global_tokens)
        return kept & (distance >= 0)

    def ranges(self, start: int, stop: int) -> list[range]:
        return first_and_window_ranges(self.global_tokens, self.near, start, stop)
