"""Causal attention with a bias of the distance by kernels of our own, for processors.

PyTorch's fused kernels spend half of a training step on short texts, and have no gradient for a bias that is
not materialised. Ours are compiled on first use where there is a C++ compiler (`build.py`): one in float32
for every processor (`kernel.cpp`), and one in bfloat16 for those with AMX (`amx.cpp`).

Letters: B batch, H query heads, T tokens, K width of queries and keys, V of values.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_bench.encodings.base import LayerEncoding
from pe_bench.errors import require
from pe_bench.model.attention.fused import distance_table, gradient_of_null, scale_queries, times
from pe_bench.model.attention.reference import project, share_of_keys
from pe_bench.native import build

# How far from float64 a kernel may be when it is first tried, relative to the largest number of an output.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def native_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings with a `distance_bias`, at positions that count tokens, or with no bias."""
    queries, keys = project(encoding, x, q, k, position)
    table = distance_table(encoding, q)
    table = table.float() if table is not None else None
    tiled = v.dtype == torch.bfloat16 and usable_kernel(torch.bfloat16).library is not None
    dtype = torch.bfloat16 if tiled else torch.float32
    scaled_q = scale_queries(encoding, queries).to(dtype)
    scale = 1 / math.sqrt(q.shape[-1])
    null = encoding.null_logit(queries)
    return causal_attention(scaled_q, keys.x.to(dtype), v.to(dtype), table, scale, null).to(v.dtype)


def native_column_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings whose bias is low-rank: `columns` of the queries and the keys.

    They come first and are not scaled: the kernel adds in their order, so that large numbers whose difference
    is small cancel exactly before anything else is added.
    """
    queries, keys = project(encoding, x, q, k, position)
    # Widened first, so that no scale rounds to half precision.
    scaled = times(queries.x.float(), encoding.logit_scale(queries)) / math.sqrt(q.shape[-1])
    of_query, of_key = encoding.columns(queries, keys)
    wide_q, wide_k, null = _widened(of_query, scaled), _widened(of_key, keys.x), encoding.null_logit(queries)
    return causal_attention(wide_q, wide_k, v.float(), None, 1.0, null).to(v.dtype)


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float, null: Tensor | None = None
) -> Tensor:
    """Return [B, H, T, V] of queries, keys [B, H, T, K], values [B, H, T, V], biases [H, T] by distance.

    `null` [.., 1] is the null logit. On the CPU, all in float32; or in bfloat16, where there is a kernel for
    it, and the biases and null logits in float32.
    """
    # Encodings may share keys, or whatever they return, among heads; the kernel reads what the shapes say.
    shape = torch.broadcast_shapes(q.shape[:-1], k.shape[:-1], v.shape[:-1])
    q, k, v = (x.expand(*shape, x.shape[-1]) for x in (q, k, v))
    require(q.shape == k.shape, f"queries are {q.shape[-1]} wide, and keys {k.shape[-1]}")
    table = None if table is None else table.float().expand(q.shape[1], q.shape[2])
    null = None if null is None else null.float().expand(*q.shape[:-1], 1)
    return cast(Tensor, _Attention.apply(q, k, v, table, null, scale))


@functools.cache
def usable_kernel(dtype: torch.dtype = torch.float32) -> build.Kernel:
    """Return the kernel of a type, if it is here and computes what it should on this CPU; else why not."""
    kernel = build.tiled_kernel() if dtype == torch.bfloat16 else build.kernel()
    worst = 0.0 if kernel.library is None else _error_of(kernel.library, dtype)
    if worst < TOLERANCE[dtype]:  # which a NaN is not
        return kernel
    return build.Kernel(None, f"{kernel.description}, but its results are off by {worst:.1e} here")


def training_kernel(device: torch.device, dtype: torch.dtype) -> str:
    """Describe what computes attention in training on a device. Our kernel is compiled for this CPU."""
    if device.type != "cpu":
        return "PyTorch's fused kernels and FlexAttention"
    kernels = [usable_kernel()] if dtype == torch.float32 else [usable_kernel(), usable_kernel(dtype)]
    has_ours = kernels[0].library is not None
    ours = "pe-bench's kernel" if has_ours else "PyTorch's fused kernels and the reference"
    return f"{ours} ({'; '.join(kernel.description for kernel in kernels)})"


def _library(dtype: torch.dtype) -> ctypes.CDLL:
    library = usable_kernel(dtype).library
    assert library is not None
    return library


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, null: Tensor | None, scale: float
    ) -> Tensor:
        output, normalizers = _forward(_library(q.dtype), q, k, v, table, scale)
        if null is not None:
            _add_null(null, output, normalizers)
        ctx.save_for_backward(q, k, v, table, null, output, normalizers)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, table, null, output, normalizers = ctx.saved_tensors
        saved, of_table = (q, k, v, table, output, normalizers), ctx.needs_input_grad[3]
        gradients = _backward(_library(q.dtype), saved, gradient, ctx.scale, of_table=of_table)
        of_null = None if null is None else gradient_of_null(null, _lse(normalizers), output, gradient)
        return *gradients, of_null, None


def _add_null(null: Tensor, output: Tensor, normalizers: Tensor) -> None:
    """Change what the kernel returned to what it would be with one more key [B, H, T, 1] without a value.

    The kernel's gradients follow from the two, as if it had known of that key.
    """
    share = share_of_keys(_lse(normalizers), null)
    output.mul_(share)
    normalizers[1] *= share.squeeze(-1)


def _lse(normalizers: Tensor) -> Tensor:
    """Return the log-sum-exp [B, H, T, 1] of the logits."""
    return (normalizers[0] - normalizers[1].log()).unsqueeze(-1)


def _forward(
    library: ctypes.CDLL, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output [B, H, T, V] and the normalizers [2, B, H, T] of the weights.

    They are each query's largest logit, and one over the sum of what the weights are before they are divided.
    """
    q, k, v = map(build.with_whole_rows, (q, k, v))
    output, normalizers = build.like_rows_of_tokens(v), q.new_empty((2, *q.shape[:-1]), dtype=torch.float32)
    table = table.contiguous() if table is not None else None
    inputs = build.shape_of(q, v, scale), *map(build.strided, (q, k, v)), build.data_of(table)
    _call(library.pe_bench_forward, *inputs, build.strided(output), build.data_of(normalizers))
    return output, normalizers


def _backward(
    library: ctypes.CDLL, saved: Sequence[Any], gradient: Tensor, scale: float, *, of_table: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k and v, and of the table [H, T] if `of_table`.

    saved: q, k, v, the table or None, and what `_forward` returned of them.
    """
    q, k, v, table, output, normalizers = saved
    q, k, v, gradient = map(build.with_whole_rows, (q, k, v, gradient))
    table = table.contiguous() if table is not None else None
    of_q, of_k, of_v = map(build.like_rows_of_tokens, (q, k, v))
    of_tables = torch.empty_like(normalizers[0]) if of_table else None
    summed = normalizers.new_empty(normalizers.shape[2:]) if of_table else None
    inputs = build.shape_of(q, v, scale), *map(build.strided, (q, k, v)), build.data_of(table)
    slopes = (
        *map(build.strided, (gradient, of_q, of_k, of_v)),
        build.data_of(of_tables),
        build.data_of(summed),
    )
    _call(library.pe_bench_backward, *inputs, build.strided(output), build.data_of(normalizers), *slopes)
    return of_q, of_k, of_v, summed


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        raise MemoryError("no memory for the attention of one head")


def _widened(columns: Tensor, x: Tensor) -> Tensor:
    return torch.cat([columns.expand(*x.shape[:-1], columns.shape[-1]).float(), x.float()], -1)


def _error_of(library: ctypes.CDLL, dtype: torch.dtype) -> float:
    """Return the largest error against float64, of output or gradients, on a small case of odd sizes.

    Errors are relative to the largest number of each.
    """
    generator = torch.Generator().manual_seed(0)
    tokens, heads, width = 131, 2, 20
    q, k, v, slope = torch.randn(4, 1, heads, tokens, width, generator=generator).to(dtype).unbind()
    table = torch.randn(heads, tokens, generator=generator)
    scale = 1 / math.sqrt(width)
    output, normalizers = _forward(library, q, k, v, table, scale)
    saved = q, k, v, table, output, normalizers
    results = output, *_backward(library, saved, slope, scale, of_table=True)
    leaves = [leaf.double().requires_grad_() for leaf in (q, k, v, table)]
    distance = torch.arange(tokens).unsqueeze(-1) - torch.arange(tokens)
    with torch.enable_grad():
        logits = scale * leaves[0] @ leaves[1].mT + leaves[3][:, distance.clamp(min=0)]
        exact = logits.masked_fill(distance < 0, -math.inf).softmax(-1) @ leaves[2]
        gradients = torch.autograd.grad((exact * slope).sum(), leaves)
    pairs = zip(results, (exact.detach(), *gradients), strict=True)
    errors = [(a - b).abs().max() / b.abs().max() for a, b in pairs if a is not None]
    return float(torch.stack(errors).max())  # a NaN stays one
