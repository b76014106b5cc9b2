"""The rotation of pairs of features (c, c + pairs) by the compiled code: one pass forward, and one backward.

Letters: B batch, H heads, n tokens, K head width.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_bench.native import layers
from pe_bench.native.arguments import data_of, like_rows_of_tokens, shape_of, strided, with_whole_rows


def is_rotated_natively(x: Tensor, cosines: Tensor) -> bool:
    """Return whether `rotated` takes x [B, H, n, K] and the cosines of [n] or [B, 1, n] angles."""
    single = x.dtype == cosines.dtype == torch.float32
    on_cpu = x.device.type == "cpu" and x.dim() == 4 and x.numel() > 0
    constant = not cosines.requires_grad
    fits = cosines.dim() == 2 or (cosines.dim() == 4 and len(cosines) in (1, len(x)))
    return single and on_cpu and constant and fits and layers.usable_layers().library is not None


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return x [B, H, n, K] with its first pairs turned; tables are [n, pairs] or [B, 1, n, pairs]."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _rotated(x, cosines, sines, 1.0)
    found = _Rotation.apply(x, cosines, sines)
    assert isinstance(found, Tensor)
    return found


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cosines, sines = ctx.saved_tensors
        return _rotated(slope, cosines, sines, -1.0), None, None


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor, sign: float) -> Tensor:
    library = layers.usable_layers().library
    assert library is not None
    x, cosines, sines = with_whole_rows(x), cosines.contiguous(), sines.contiguous()
    out = like_rows_of_tokens(x)
    shared = cosines.dim() == 2 or len(cosines) == 1
    apart = 0 if shared else cosines.shape[-2] * cosines.shape[-1]
    library.pe_bench_rotate(
        shape_of(x, x, 1.0),
        strided(x),
        data_of(cosines),
        data_of(sines),
        ctypes.c_int64(apart),
        ctypes.c_int64(cosines.shape[-1]),
        ctypes.c_float(sign),
        strided(out),
    )
    return out
