r"""ReRoPE: rotary scores whose distance r = i - j is cut off at a window W, min(r, W).

With `log_n`, which is part of the method, the logits are multiplied by max(1, ln n / ln(train_length)), n the
number of keys that the query sees.

$z_{ij} = \max \left( 1, \frac{\ln n}{\ln L} \right) \frac{R_\delta\, q_i \cdot k_j}{\sqrt{K}}, \quad \delta =
\min(r, W), \quad r = i - j$

Past the training length: defined, and no distance is larger than W, so that none is new. Texts of up to
train_length tokens keep their true distances: the method is for trained models, and training is plain RoPE.

Su 2023, "Rectified Rotary Position Embeddings", https://kexue.fm/archives/9708; window and log-n as in the
code, https://github.com/bojone/rerope.

The code has W = 512 for models trained at 4,096 tokens; half the training length is ours. It takes n from
the position id, which is the number of keys where ids count tokens; we count the keys, because the factor
is about their number and must not grow where ids jump.
"""

from dataclasses import dataclass

from torch import Tensor

from pe_bench.encodings.base import AtLeast1, AtLeast2, Side
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.encodings.logits.logn import LogN


@dataclass(eq=False)
class ReRoPE(EffectiveDistance):
    """Options:

    train_length: texts of up to this length keep their true distances, and the factor of log_n is 1
    window: distances are cut off here
    log_n: sharpen attention over more keys than in training
    """

    train_length: AtLeast2
    window: AtLeast1
    log_n: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keep_near(self.window, self.train_length)
        self.sharpening = LogN(self.train_length) if self.log_n else None

    def logit_scale(self, queries: Side) -> Tensor | None:
        if self.sharpening is None:
            return None
        return self.sharpening.logit_scale(queries._replace(position=queries.index))
