r"""Kimi Delta Attention: gated DeltaNet whose every feature of the keys decays by itself.

S <- diag(e^(g_t)) S, and then as in `gated_deltanet`. g = -exp(A_h) softplus(W_2 W_1 x + d) has a number
for each head and feature of the keys; W_1 maps the layer's input to as many numbers as a head has features.
With `lower_bound`, g = lower_bound sigmoid(exp(A_h) (W_2 W_1 x + d)). The output's gate is sigmoid(V_2 V_1
x), of the same rank.

$S_t = \left( I - \beta_t k_t k_t^\top \right) \mathrm{diag}(e^{g_t}) S_{t-1} + \beta_t k_t v_t^\top, \quad
o_t = S_t^\top q_t$

Past the training length: defined; whether anything older than the training windows is left in the state
depends on the decays that were learned, so look at `uses context`.

Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture", arXiv:2510.26692; the first
values as in flash-linear-attention, `layers/kda.py`, without the intercept of the output's gate, as in the
released models. Kimi K3 and GLM-5.3-Flash have a `lower_bound` of -5.

Sizes and matrices are as in `gated_deltanet`; what is added makes a tiny model 9 % larger. exp(A_h) is
uniform from 1 to 16 at first, with `lower_bound` it is 1, and softplus(d) is log-uniform from 0.001 to 0.1.
"""

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.encodings.base import AtLeast1
from pe_bench.encodings.initial import log_uniform_steps, random_matrix
from pe_bench.encodings.recurrent.delta_rule import DeltaRule, Gate
from pe_bench.encodings.recurrent.gated_deltanet import LARGEST_RATE
from pe_bench.encodings.recurrent.recurrence import LEAST_LOG_DECAY, in_heads
from pe_bench.values import Range

LogDecay = Annotated[float, Range(LEAST_LOG_DECAY, 0)]


class KDA(DeltaRule):
    """Options:

    lower_bound: of the logarithm of a decay, as in Kimi K3; null: none
    negative: true: corrections are up to twice as strong, so that the state can also be reflected
    gate: the function of the output's gate
    taps: tokens of the convolutions of queries, keys and values; 1: none
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        lower_bound: LogDecay | None = None,
        negative: bool = False,
        gate: Gate = "sigmoid",
        taps: AtLeast1 = 4,
    ):
        super().__init__(d_model, n_heads, d_head, negative, gate, taps)
        self.lower_bound = lower_bound
        self.decay_down = random_matrix(d_head, d_model)
        self.decay_up = random_matrix(n_heads * d_head, d_head)
        rates = torch.empty(n_heads).uniform_(1, LARGEST_RATE)
        log_rates = rates.log() if lower_bound is None else torch.zeros(n_heads)
        self.log_rate = nn.Parameter(log_rates)
        self.step = log_uniform_steps(n_heads, d_head)
        self.gate_down = random_matrix(d_head, d_model)
        self.gate_up = random_matrix(n_heads * d_head, d_head)

    def log_decay(self, x: Tensor) -> Tensor:
        raw = in_heads(functional.linear(x, self.decay_down), self.decay_up, self.n_heads)
        raw = raw + self.step[:, None]
        rate = self.log_rate.exp()[:, None, None]
        if self.lower_bound is None:
            return -rate * functional.softplus(raw)
        return self.lower_bound * torch.sigmoid(rate * raw)

    def raw_gate(self, x: Tensor) -> Tensor:
        return in_heads(functional.linear(x, self.gate_down), self.gate_up, self.n_heads)
