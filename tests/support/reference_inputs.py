"""The inputs of the catalogue's reference numbers, and the outputs of encodings for them.

[1, 2, 4, 4] (batch, heads, tokens, head width), t = 1..32 in row-major order, q = sin(0.1 t),
k = cos(0.2 t), v = sin(0.3 t), float64. Reference numbers are rounded to six digits.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.attention import reference_attention

B, H, T, K = 1, 2, 4, 4
D = H * K


def series(function: Callable[[Tensor], Tensor], step: float, *shape: int) -> Tensor:
    return function(step * torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)).view(*shape)


Q4, K4, V4 = (
    series(torch.sin, 0.1, B, H, T, K),
    series(torch.cos, 0.2, B, H, T, K),
    series(torch.sin, 0.3, B, H, T, K),
)
X4 = series(torch.cos, 0.37, B, T, D)


def output(encoding: LayerEncoding, position: Tensor | None = None, x: Tensor = X4) -> Tensor:
    position = torch.arange(T) if position is None else position
    return reference_attention(encoding.double(), x, Q4, K4, V4, position)


def near(actual: Tensor, expected: list[float] | Tensor, tolerance: float = 2e-6) -> bool:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return actual.shape == expected.shape and bool((actual.double() - expected).abs().max() < tolerance)


def fill(parameter: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(values)
