"""Which path attention takes: the fastest that is exact for what an encoding overrides, and is here."""

from collections.abc import Callable

import torch
from torch import Tensor

from pe_bench.attention.columns import fused_column_attention
from pe_bench.attention.distance import can_tabulate, fused_distance_attention
from pe_bench.attention.fused import fused_attention
from pe_bench.attention.reference import reference_attention
from pe_bench.encodings.base import LayerEncoding

# Called as `attention` is; what it is named by is its function's name.
Path = Callable[..., Tensor]

UNFUSED = ("scores", "adjust", "visible", "weights", "mix")


def choose(encoding: LayerEncoding, q: Tensor, position: Tensor, window: int | None = None) -> Path:
    """The path for queries like `q` [B, H, T, K] at these positions."""
    if window is not None or encoding.overrides(*UNFUSED):
        return reference_attention
    if not encoding.overrides("bias", "distance_bias"):
        return fused_attention
    if encoding.has_columns():
        return fused_column_attention
    if not encoding.overrides("bias") and can_tabulate(position) and not is_learning(encoding, q):
        return fused_distance_attention
    return reference_attention


def is_learning(encoding: LayerEncoding, q: Tensor) -> bool:
    """Whether a gradient to the bias of the distance is wanted, which PyTorch's fused kernels do not have."""
    bias = encoding.distance_bias(torch.zeros(1, dtype=torch.long, device=q.device))
    return bias is not None and bias.requires_grad
