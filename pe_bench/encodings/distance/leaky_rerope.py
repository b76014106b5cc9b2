"""Leaky ReRoPE: rotary scores whose distance r = i - j is W + (r - W) / factor beyond a window W.

With `log_n`, which is part of the method, the logits are multiplied by max(1, ln n / ln(train_length)), n the
number of keys that the query sees.

Past the training length: defined; no distance is new up to W + factor (train_length - W) tokens. Texts of
up to train_length tokens have all their distances, as in `rerope`.

Su 2023, "Rectified Rotary Position Embeddings", https://kexue.fm/archives/9708; as in the code,
https://github.com/bojone/rerope.

The code has W = 512 and factor = 16 for models trained at 4,096 tokens. Ours, half the training length and
32, reach 16.5 training lengths. The number of keys is counted, as in `rerope`.
"""

from torch import Tensor

from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.rotary.rope import FractionOf, Layout
from pe_bench.errors import require


class LeakyReRoPE(ReRoPE):
    """Options:

    train_length: up to here the factor of log_n is 1; not read without it
    window: up to here distances are true
    factor: beyond it they grow this many times more slowly
    log_n: sharpen attention over more keys than in training
    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    """

    def __init__(
        self,
        d_head: int,
        train_length: int,
        window: int,
        factor: float = 32.0,
        log_n: bool = True,
        base: float = 10_000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, train_length, window, log_n, base, layout, fraction, fraction_of)
        require(
            factor >= 1, f"encoding.factor must be at least 1, where distances grow as ever, not {factor}"
        )
        self.factor = factor

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        # Float64, because these are angles.
        beyond = q_position.double() - self.window
        return self.window + beyond / self.factor, k_position.double() / self.factor
