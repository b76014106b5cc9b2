r"""Gated DeltaNet: no softmax; each head has a state that decays and is corrected by every token.

S <- e^(g_t) S, then S <- S + k_t (b_t (v_t - S^T k_t))^T, and the token reads S^T q_t: the decay comes
first, the correction reads the decayed state, and a token reads its own value. q, k and v are convolved
over the last `taps` tokens and pass through SiLU; then q and k are divided by their norms, and q by
sqrt(K). g = -exp(A_h) softplus(w_h . x + d_h) and b = sigmoid(u_h . x) are read from the layer's input.
What is read is divided by its root mean square, scaled, and multiplied by a function of W x (`gate`).

$S_t = e^{g_t} S_{t-1} + \beta_t k_t \left( v_t - e^{g_t} S_{t-1}^\top k_t \right)^\top, \quad o_t =
S_t^\top q_t$

Past the training length: defined; whether anything older than the training windows is left in the state
depends on the decays that were learned. At first many heads forget within ten tokens, so a level that holds
says nothing by itself: look at `uses context`.

Yang et al. 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR, arXiv:2412.06464; the
order of the steps and the first values as in flash-linear-attention, `layers/gated_deltanet.py`.
Qwen3-Next, OLMo Hybrid (`negative`) and Qwen3.8-Flash-Next (`gate: sigmoid`) have such layers.

The layer's own query, key, value and output matrices stay what they are in every encoding: values are as
wide as keys, where the authors' are twice as wide. What is added (gate, decays, taps) makes a tiny model 9
% larger. Their matrices are N(0, 1/D) at first, taps uniform within 1/sqrt(taps), exp(A_h) uniform up to 16
and softplus(d_h) log-uniform from 0.001 to 0.1, so that with few heads a seed may have a layer that forgets
everything within four tokens. The authors' epsilon of the norm, 1e-5, is 1e-6 here, because small heads
read small numbers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.encodings.base import AtLeast1
from pe_bench.encodings.initial import log_uniform_steps, random_matrix
from pe_bench.encodings.recurrent.delta_rule import DeltaRule, Gate
from pe_bench.encodings.recurrent.recurrence import in_heads

LARGEST_RATE = 16.0  # the largest rate of the decay, at first
SMALLEST_RATE = 1e-3


class GatedDeltaNet(DeltaRule):
    """Options:

    negative: true: corrections are up to twice as strong, so that the state can also be reflected
    gate: the function of the output's gate
    taps: tokens of the convolutions of queries, keys and values; 1: none
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        negative: bool = False,
        gate: Gate = "silu",
        taps: AtLeast1 = 4,
    ):
        super().__init__(d_model, n_heads, d_head, negative, gate, taps)
        self.decay = random_matrix(n_heads, d_model)
        rates = torch.empty(n_heads).uniform_(0, LARGEST_RATE)
        self.log_rate = nn.Parameter(rates.clamp(min=SMALLEST_RATE).log())
        self.step = log_uniform_steps(n_heads)
        self.gate_matrix = random_matrix(n_heads * d_head, d_model)

    def log_decay(self, x: Tensor) -> Tensor:
        raw = in_heads(x, self.decay, self.n_heads)
        steps = functional.softplus(raw + self.step[:, None, None])
        return -self.log_rate.exp()[:, None, None] * steps

    def raw_gate(self, x: Tensor) -> Tensor:
        return in_heads(x, self.gate_matrix, self.n_heads)
