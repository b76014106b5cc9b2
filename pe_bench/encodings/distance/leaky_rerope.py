r"""Leaky ReRoPE: rotary scores whose distance r = i - j is W + (r - W) / factor beyond a window W.

With `log_n`, which is part of the method, the logits are multiplied by max(1, ln n / ln(train_length)), n the
number of keys that the query sees.

$z_{ij} = \max \left( 1, \frac{\ln n}{\ln L} \right) \frac{R_\delta\, q_i \cdot k_j}{\sqrt{K}}, \quad \delta =
r \text{ for } r < W, \text{ else } W + \frac{r - W}{\text{factor}}, \quad r = i - j$

Past the training length: defined; no distance is new up to W + factor (train_length - W) tokens. Texts of
up to train_length tokens keep their true distances, as in `rerope`.

Su 2023, "Rectified Rotary Position Embeddings", https://kexue.fm/archives/9708; as in the code,
https://github.com/bojone/rerope.

The code has W = 512 and factor = 16 for models trained at 4,096 tokens. Ours, half the training length and
32, reach 16.5 training lengths. The number of keys is counted, as in `rerope`.
"""

from dataclasses import dataclass

from torch import Tensor

from pe_bench.encodings.base import Factor
from pe_bench.encodings.distance.rerope import ReRoPE


@dataclass(eq=False)
class LeakyReRoPE(ReRoPE):
    """Options:

    window: up to here distances are true
    factor: beyond the window, distances grow this many times more slowly
    """

    factor: Factor = 32.0

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        # Float64, because positions become angles.
        beyond = q_position.double() - self.near
        far_q = self.near + beyond / self.factor
        return far_q, k_position.double() / self.factor
