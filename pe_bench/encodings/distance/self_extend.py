r"""Self-Extend: rotary scores with true distances within a window W, and those of groups of tokens beyond it.

r = i - j where r < W, else floor(i / G) - floor(j / G) + W - W / G, with groups of G tokens. These start at
position 0, so that moving all positions changes scores.

$z_{ij} = \frac{R_\delta\, q_i \cdot k_j}{\sqrt{K}}, \quad \delta = i - j \text{ where that is } < W,
\text{ else } \left\lfloor \frac{i}{G} \right\rfloor - \left\lfloor \frac{j}{G} \right\rfloor + W -
\frac{W}{G}$

Past the training length: defined; no distance is new up to about W + G (train_length - W) tokens. Texts of
up to train_length tokens keep their true distances: the method is for trained models, and training is plain
RoPE.

Jin et al. 2024, "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning", ICML, arXiv:2401.01325;
as in the authors' code, https://github.com/datamllab/LongLM.

Where G does not divide W the code has fractional distances; we refuse it. It finds the window by indices, we
do by positions, and the two differ where ids jump. Its defaults are G = 8 and W = 1,024. Ours are G = 32 and
half the training length in whole groups, at least one, which reach 16 training lengths from 64 tokens on. Its
log-n scaling, off by default, is the modifier `logn` here.
"""

from dataclasses import dataclass

from torch import Tensor

from pe_bench.encodings.base import AtLeast1
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.errors import require


@dataclass(eq=False)
class SelfExtend(EffectiveDistance):
    """Options:

    train_length: texts of up to this length keep their true distances
    window: up to here distances are true; null: half of train_length in whole groups, at least one
    group_size: tokens that share a position beyond the window; must divide window
    """

    claims = frozenset({"prefix_consistent"})

    train_length: AtLeast1
    window: AtLeast1 | None = None
    group_size: AtLeast1 = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.group_size
        window = self.train_length // 2 if self.window is None else self.window
        in_groups = max(1, window // size) * size
        way = f"try encoding.window={in_groups} or another encoding.group_size"
        wrong = f"encoding.group_size={size} must divide encoding.window={window}: {way}"
        require(self.window in (None, in_groups), wrong)
        self.keep_near(in_groups, self.train_length)

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        q_group = q_position.div(self.group_size, rounding_mode="floor")
        k_group = k_position.div(self.group_size, rounding_mode="floor")
        return q_group + self.near - self.near // self.group_size, k_group
