"""The base of layers with the delta rule: convolutions, strengths of corrections, a norm and a gate.

A subclass computes the decay of its states and the values of its gate.
"""

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.encodings.initial import random_matrix, random_taps
from pe_bench.encodings.recurrent.recurrence import (
    RecurrenceInputs,
    Recurrent,
    convolved,
    in_heads,
    rms_normed,
    unit_norm,
)

Gate = Literal["silu", "sigmoid"]


class DeltaRule(Recurrent):
    """A layer whose state S changes by b k (v - S^T k)^T at each token; b = sigmoid(u_h . x), or twice that.

    q, k and v are convolved over the last `taps` tokens and pass through SiLU; then q and k are divided by
    their norms, and q by sqrt(K). The output S^T q is divided by its root mean square, scaled and gated.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, negative: bool, gate: Gate, taps: int):
        super().__init__()
        self.n_heads = n_heads
        self.scale = d_head**-0.5
        self.largest_strength = 2.0 if negative else 1.0
        self.activation = functional.silu if gate == "silu" else torch.sigmoid
        self.taps = nn.ParameterDict()
        if taps > 1:
            self.taps.update({name: random_taps(n_heads, d_head, taps) for name in "qkv"})
        self.strength = random_matrix(n_heads, d_model)
        self.norm = nn.Parameter(torch.ones(d_head))

    @abstractmethod
    def log_decay(self, x: Tensor) -> Tensor:
        """Return log decays of the whole state [B, H, T, 1], or of each of its rows [B, H, T, K]."""

    @abstractmethod
    def raw_gate(self, x: Tensor) -> Tensor:
        """Return the gate [B, H, T, K] before its activation."""

    def recurrence_inputs(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> RecurrenceInputs:
        q = self._convolved_and_activated("q", q)
        k = self._convolved_and_activated("k", k)
        v = self._convolved_and_activated("v", v)
        share = in_heads(x, self.strength, self.n_heads).sigmoid().squeeze(-1)
        strength = self.largest_strength * share
        return RecurrenceInputs(unit_norm(q) * self.scale, unit_norm(k), v, self.log_decay(x), strength)

    def output(self, x: Tensor, read: Tensor) -> Tensor:
        gate = self.activation(self.raw_gate(x))
        return rms_normed(read) * self.norm * gate

    def _convolved_and_activated(self, name: str, x: Tensor) -> Tensor:
        """Return SiLU of x [B, H, T, K], the tensor `name` (q, k or v), convolved if it has taps."""
        if name in self.taps:
            x = convolved(x, self.taps[name])
        return functional.silu(x)
