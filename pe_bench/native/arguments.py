"""Tensors as the compiled code takes them.

Letters: B batch, H heads, T tokens, V width of the output.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor


class Shape(ctypes.Structure):
    """The `Shape` of common.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens", "width", "value_width")),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
    ]


class Strided(ctypes.Structure):
    """The `Strided` of common.h."""

    _fields_ = [("data", ctypes.c_void_p), *((n, ctypes.c_int64) for n in ("batch", "heads", "tokens"))]


def shape_of(q: Tensor, v: Tensor, scale: float) -> Any:
    return ctypes.byref(Shape(*q.shape, v.shape[-1], scale, torch.get_num_threads()))


def strided(x: Tensor) -> Any:
    return ctypes.byref(Strided(x.data_ptr(), *x.stride()[:-1]))


def data_of(x: Tensor | None) -> ctypes.c_void_p | None:
    return None if x is None else ctypes.c_void_p(x.data_ptr())


def with_whole_rows(x: Tensor) -> Tensor:
    """Return a tensor with whole rows: compiled code takes any strides but the last dimension's."""
    return x if x.stride(-1) == 1 else x.contiguous()


def like_rows_of_tokens(x: Tensor) -> Tensor:
    """Return an empty [B, H, T, V], in memory [B, T, H, V] as the decoder wants it next."""
    batch, heads, tokens, width = x.shape
    return x.new_empty(batch, tokens, heads, width).transpose(1, 2)
