r"""RePo: RoPE at real-valued positions that each head reads from the tokens, in place of their indices.

z = W_o (silu(W_g x) * W_c x) is one position for each head and token, where W_g and W_c map the layer's input
x to D/8 features. Queries and keys are turned by z theta_c, theta_c = base^(-2c/K). Layers below `from_layer`
have plain RoPE, and each layer from there on has its own W_g, W_c and W_o. Positions may be negative, and
need not rise along the text.

$x_c \mapsto x_c\, e^{\mathrm{i} z \theta_c}, \quad z = W_o \left( \text{silu}(W_g\, x) \odot W_c\, x \right),
\quad \theta_c = \text{base}^{-2c / K}$

Past the training length: defined; learned positions do not grow with the text, so their angles stay those of
training. The layers below `from_layer` are out of distribution, as in RoPE.

Li, Zhao and Sproat 2025, "RePo: Language Models with Context Re-Positioning", arXiv:2512.14391, the module
f_phi; base, widths, first values and layers as in the authors' code, https://github.com/SakanaAI/repo.

The authors train models further that had plain RoPE in every layer; how RePo learns from scratch is not
published. Weights are N(0, 0.0004) at first, cut off at three standard deviations, so that all positions are
near 0: a layer with RePo then knows the order of tokens from the causal mask alone, as in `nope`. Their x is
what enters the layer; ours is normed, like every input of a layer here. RePo acts in the last 11 of their 16
layers and in the last 22 of 32; by default the same share has RePo here.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import (
    Base,
    LayerEncoding,
    Natural,
    PositionalEncoding,
    Side,
    full_precision,
    precise,
)
from pe_bench.encodings.rotary.rope import RoPE, angles_at, rope_frequencies, turn_both
from pe_bench.errors import require

POSITION = "repo_position"
INITIAL_STD = 0.02
CUT_OFF = 3 * INITIAL_STD


class RePo(PositionalEncoding):
    """Options:

    from_layer: the first layer, from 0, that learns positions; null: after 5/16 of the layers
    base: of the geometric frequencies
    """

    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        n_layers: int,
        from_layer: Natural | None = None,
        base: Base = 500_000.0,
    ):
        super().__init__()
        default = n_layers * 5 // 16
        self.from_layer = default if from_layer is None else from_layer
        message = f"encoding.from_layer={from_layer} leaves plain rope in all {n_layers} layers of repo"
        require(self.from_layer < n_layers, f"{message}: give at most {n_layers - 1}")
        self.plain = RoPE(d_head, base)
        self.learned = nn.ModuleList()
        for _ in range(self.from_layer, n_layers):
            self.learned.append(RePoLayer(d_model, n_heads, d_head, base))

    def layer(self, number: int) -> LayerEncoding:
        if number < self.from_layer:
            return self.plain
        layer = self.learned[number - self.from_layer]
        assert isinstance(layer, RePoLayer)
        return layer


class RePoLayer(LayerEncoding):
    """RoPE at positions [B, H, T] that a small network reads from the layer's input."""

    claims = RePo.claims

    def __init__(self, d_model: int, n_heads: int, d_head: int, base: float):
        super().__init__()
        width = max(1, d_model // 8)
        self.frequencies = nn.Buffer(rope_frequencies(d_head, base), persistent=False)
        self.gate_weight = _initial_weights(width, d_model)
        self.content_weight = _initial_weights(width, d_model)
        self.output_weight = _initial_weights(n_heads, width)

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        with full_precision(x):
            x = x.to(self.gate_weight.dtype)
            gate = nn.functional.silu(nn.functional.linear(x, self.gate_weight))
            features = gate * nn.functional.linear(x, self.content_weight)
            return {POSITION: nn.functional.linear(features, self.output_weight).mT}  # [B, H, T]

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        dtype = precise(keys.x.dtype)
        angles = angles_at(keys.values[POSITION], self.frequencies)
        return turn_both(queries, keys, angles.cos().to(dtype), angles.sin().to(dtype))


def _initial_weights(*shape: int) -> nn.Parameter:
    weights = nn.Parameter(torch.empty(shape))
    nn.init.trunc_normal_(weights, std=INITIAL_STD, a=-CUT_OFF, b=CUT_OFF)
    return weights
