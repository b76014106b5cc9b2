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

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_bench.encodings.base import LayerEncoding
from pe_bench.errors import require
from pe_bench.model.attention.fused import distance_table, gradient_of_null
from pe_bench.model.attention.reference import project, share_of_keys, times
from pe_bench.native import build

# How far from float64 a kernel may be when it is first tried, relative to the largest number of an output.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def native_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings with a `distance_bias`, at positions that count tokens, or with no bias."""
    queries, keys = project(encoding, x, q, k, position)
    table = distance_table(encoding, q) if encoding.overrides("distance_bias") else None
    tiled = v.dtype == torch.bfloat16 and usable_kernel(torch.bfloat16).library is not None
    dtype = torch.bfloat16 if tiled else torch.float32
    scaled_q = times(queries.x, encoding.logit_scale(queries)).to(dtype)
    scale = 1 / math.sqrt(q.shape[-1])
    null = encoding.null_logit(queries)
    return causal_attention(scaled_q, keys.x.to(dtype), v.to(dtype), table, scale, null).to(v.dtype)


def native_column_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings whose bias is low-rank: `columns` of the queries and the keys.

    The kernel adds their products first and in their order, so that large numbers whose difference is small
    cancel exactly before anything else is added.
    """
    queries, keys = project(encoding, x, q, k, position)
    # In float32, so that no scale rounds to half precision.
    scaled_q = times(queries.x.float(), encoding.logit_scale(queries))
    null = encoding.null_logit(queries)
    columns = encoding.columns(queries, keys)
    scale = 1 / math.sqrt(q.shape[-1])
    return causal_attention(scaled_q, keys.x.float(), v.float(), None, scale, null, columns).to(v.dtype)


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    scale: float,
    null: Tensor | None = None,
    columns: Sequence[Tensor] = (),
) -> Tensor:
    """Return [B, H, T, V] of queries, keys [B, H, T, K], values [B, H, T, V], biases [H, T] by distance.

    `null` [.., 1] is the null logit. The products of `columns` [.., T, C] of the queries and of the keys are
    added to the logits. On the CPU, all in float32; or without columns in bfloat16, where there is a kernel
    for it, and the biases and null logits in float32.
    """
    # Encodings may share keys, or whatever they return, among heads; the kernel reads what the shapes say.
    # (PyTorch's function of this name would import SymPy, which is slow.)
    shape = np.broadcast_shapes(q.shape[:-1], k.shape[:-1], v.shape[:-1])
    q, k, v = (x.expand(*shape, x.shape[-1]) for x in (q, k, v))
    require(q.shape == k.shape, f"queries are {q.shape[-1]} wide, and keys {k.shape[-1]}")
    if table is not None:
        table = table.float().expand(q.shape[1], q.shape[2])
    if null is not None:
        null = null.float().expand(*q.shape[:-1], 1)
    columns = [column.float().expand(*q.shape[:-1], column.shape[-1]) for column in columns]
    return cast(Tensor, _Attention.apply(q, k, v, table, null, scale, *columns))


@functools.cache
def usable_kernel(dtype: torch.dtype) -> build.Kernel:
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
    kernels = [usable_kernel(one) for one in dict.fromkeys((torch.float32, dtype))]
    has_ours = kernels[0].library is not None
    ours = "pe-bench's kernel" if has_ours else "PyTorch's fused kernels and the reference"
    return f"{ours} ({'; '.join(kernel.description for kernel in kernels)})"


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        null: Tensor | None,
        scale: float,
        *columns: Tensor,
    ) -> Tensor:
        library = usable_kernel(q.dtype).library
        assert library is not None
        output, normalizers = _forward(library, q, k, v, table, scale, columns)
        if null is not None:
            _add_null(null, output, normalizers)
        ctx.save_for_backward(q, k, v, table, null, output, normalizers, *columns)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, table, null, output, normalizers, *columns = ctx.saved_tensors
        saved = (q, k, v, table, output, normalizers, *columns)
        library = usable_kernel(q.dtype).library
        assert library is not None
        gradients, grad_columns = _backward(
            library, saved, gradient, ctx.scale, has_table_gradient=ctx.needs_input_grad[3]
        )
        grad_null = None
        if null is not None:
            grad_null = gradient_of_null(null, _lse(normalizers), output, gradient)
        return *gradients, grad_null, None, *grad_columns


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
    library: ctypes.CDLL,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    scale: float,
    columns: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """Return the output [B, H, T, V] and the normalizers [2, B, H, T] of the weights.

    They are each query's largest logit, and one over the sum of what the weights are before they are divided.
    """
    q, k, v, *columns = map(build.with_whole_rows, (q, k, v, *columns))
    output = build.like_rows_of_tokens(v)
    normalizers = q.new_empty((2, *q.shape[:-1]), dtype=torch.float32)
    if table is not None:
        table = table.contiguous()
    inputs = *_rows(q, k, v, scale, columns), build.data_of(table)
    _call(library.pe_bench_forward, *inputs, build.strided(output), build.data_of(normalizers))
    return output, normalizers


def _backward(
    library: ctypes.CDLL, saved: Sequence[Any], gradient: Tensor, scale: float, *, has_table_gradient: bool
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], list[Tensor]]:
    """Return the gradients of q, k, v and the table [H, T], or None for the table; and of the columns.

    saved: q, k, v, the table or None, the results of `_forward` for them, and the columns.
    """
    q, k, v, table, output, normalizers, *columns = saved
    q, k, v, gradient, *columns = map(build.with_whole_rows, (q, k, v, gradient, *columns))
    if table is not None:
        table = table.contiguous()
    grad_q, grad_k, grad_v, *grad_columns = map(build.like_rows_of_tokens, (q, k, v, *columns))
    grad_tables = None  # of each window of the batch
    grad_table = None
    if has_table_gradient:
        grad_tables = torch.empty_like(normalizers[0])
        grad_table = normalizers.new_empty(normalizers.shape[2:])
    inputs = *_rows(q, k, v, scale, columns), build.data_of(table)
    _, *gradients = _rows(grad_q, grad_k, grad_v, scale, grad_columns)
    gradients = build.strided(gradient), *gradients, build.data_of(grad_tables), build.data_of(grad_table)
    _call(library.pe_bench_backward, *inputs, build.strided(output), build.data_of(normalizers), *gradients)
    return (grad_q, grad_k, grad_v, grad_table), grad_columns


def _rows(q: Tensor, k: Tensor, v: Tensor, scale: float, columns: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the shape and the rows of queries, keys and values as the kernels take them."""
    query_columns, key_columns = columns or (None, None)
    count = 0 if query_columns is None else query_columns.shape[-1]
    shape = build.shape_of(q, v, scale, count)
    return shape, build.strided(q, query_columns), build.strided(k, key_columns), build.strided(v)


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        raise MemoryError("no memory for the attention of one head")


@torch.inference_mode(False)  # the first use may be in inference mode, which has no gradients
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
    gradients, _ = _backward(library, saved, slope, scale, has_table_gradient=True)
    results = output, *gradients
    leaves = [leaf.double().requires_grad_() for leaf in (q, k, v, table)]
    distance = torch.arange(tokens).unsqueeze(-1) - torch.arange(tokens)
    with torch.enable_grad():
        logits = scale * leaves[0] @ leaves[1].mT + leaves[3][:, distance.clamp(min=0)]
        exact = logits.masked_fill(distance < 0, -math.inf).softmax(-1) @ leaves[2]
        exact_gradients = torch.autograd.grad((exact * slope).sum(), leaves)
    pairs = zip(results, (exact.detach(), *exact_gradients), strict=True)
    errors = [(a - b).abs().max() / b.abs().max() for a, b in pairs if a is not None]
    return float(torch.stack(errors).max())  # a NaN stays one
