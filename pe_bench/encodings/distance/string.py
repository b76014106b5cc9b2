r"""STRING: rotary scores whose distance r = i - j falls back to W at S tokens, to r - S + W.

Distances above two thirds of the training length are rare in training. STRING leaves them unused, within the
training length too: distances from S = shift_from on are shortened to distances from W = local_window on. So
each distance below W is unique, and each from W to S - 1 is used twice. The factor
a = attention_factor multiplies queries and keys.

$z_{ij} = a^2 \frac{R_\delta\, q_i \cdot k_j}{\sqrt{K}}, \quad \delta = r \text{ for } r < S, \text{ else }
r - S + W, \quad r = i - j$

Past the training length: defined; distances are new only beyond train_length + S - W tokens.

An et al. 2024, "Why Does the Effective Context Length of LLMs Fall Short?", arXiv:2410.18745; defaults as in
the code of the authors, https://github.com/HKUNLP/STRING, `string_for_llama.py`: S is a third of the
training length (their README takes 0.33 of it, and advises 0.25 to 0.4) and a is 0.1 ln 2 + 1.

The authors' code has W = 128 for 131,072 tokens; ours is a 32nd of the training length, at least 1. Their
pass over a prompt counts pairs at distance S twice, unchanged and shortened to W; their pass over one token
counts them once, shortened. Here each pair counts once, as in the paper. Here a multiplies all logits, with
partial RoPE too.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_bench.encodings.base import AtLeast1, Positive, Side, precise
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.errors import require


@dataclass(eq=False)
class String(EffectiveDistance):
    """Options:

    train_length: sets shift_from and local_window; ignored if both are given
    shift_from: distances below it are unchanged; null: a third of train_length
    local_window: the distance shift_from is shortened to this; null: a 32nd of train_length
    attention_factor: multiplies queries and keys; null: 0.1 ln 2 + 1
    """

    train_length: AtLeast1
    shift_from: AtLeast1 | None = None
    local_window: AtLeast1 | None = None
    attention_factor: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        first = max(1, self.train_length // 3) if self.shift_from is None else self.shift_from
        local = max(1, self.train_length // 32) if self.local_window is None else self.local_window
        wrong = f"encoding.local_window={local} must be at most encoding.shift_from={first}"
        require(local <= first, f"{wrong}: distances are shortened")
        self.keep_near(first)
        self.shortened_by = first - local
        self.factor = 0.1 * math.log(2) + 1 if self.attention_factor is None else self.attention_factor

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        return q_position - self.shortened_by, k_position

    def logit_scale(self, queries: Side) -> Tensor:
        dtype = precise(queries.raw.dtype)
        return torch.full((), self.factor**2, dtype=dtype, device=queries.x.device)
