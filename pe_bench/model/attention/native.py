"""Causal attention with a bias of the distance by pe-bench's own kernels, for processors.

PyTorch's fused kernels take half of a training step on short texts, and have no gradient for a bias that is
not materialised. Our kernels are compiled on first use by a C++ compiler (`build.py`): one in float32 for
every processor (`kernel.cpp`), and one in bfloat16 for processors with AMX or AVX512_BF16 (`bfloat16.cpp`).

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
from pe_bench.encodings.masks.ranges import first_keys_in_windows
from pe_bench.errors import require
from pe_bench.model.attention.fused import distance_table, gradient_of_null
from pe_bench.model.attention.reference import apply_logit_scale, make_sides, share_of_keys
from pe_bench.native import build

# The largest error of a kernel against float64 at its first use, relative to the largest number of an output.
MAX_KERNEL_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def native_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int | None
) -> Tensor:
    """Compute attention for encodings with a `distance_bias` or no bias.

    With a `distance_bias`, positions must rise by 1 from token to token.
    """
    queries, keys = make_sides(encoding, x, q, k, position)
    table = distance_table(encoding, q)
    dtype = torch.float32
    is_bfloat16 = q.dtype == v.dtype == torch.bfloat16
    if is_bfloat16 and usable_kernel(torch.bfloat16).library is not None:
        dtype = torch.bfloat16
    scaled_q = apply_logit_scale(queries.x, encoding.logit_scale(queries)).to(dtype)
    scale = 1 / math.sqrt(q.shape[-1])
    null = encoding.null_logit(queries)
    first_keys = first_visible_keys(encoding, q.shape[-2], window)
    output = causal_attention(
        scaled_q, keys.x.to(dtype), v.to(dtype), table, scale, null, first_keys=first_keys
    )
    return output.to(v.dtype)


def native_column_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int | None
) -> Tensor:
    """Compute attention for encodings with a low-rank bias: `columns` of the queries and of the keys.

    The kernel adds the products of columns first and in their order, so large numbers with a small difference
    cancel exactly before another number is added.
    """
    queries, keys = make_sides(encoding, x, q, k, position)
    # In float32: a scale must not round to half precision.
    scaled_q = apply_logit_scale(queries.x.float(), encoding.logit_scale(queries))
    null = encoding.null_logit(queries)
    columns = encoding.columns(queries, keys)
    scale = 1 / math.sqrt(q.shape[-1])
    first_keys = first_visible_keys(encoding, q.shape[-2], window)
    output = causal_attention(
        scaled_q, keys.x.float(), v.float(), None, scale, null, columns, first_keys=first_keys
    )
    return output.to(v.dtype)


def first_visible_keys(encoding: LayerEncoding, tokens: int, window: int | None) -> Tensor | None:
    """Return the first key [T] that each query sees, int64; None if every query sees all keys before it.

    The encoding's `first_keys` must not be None. Raises `UserError` for first keys that the kernel cannot
    read, or would read outside the text.
    """
    first_keys = None
    if encoding.overrides("visible"):
        first_keys = encoding.first_keys(tokens)
        assert first_keys is not None
        fault = fault_of_first_keys(first_keys, tokens)
        require(not fault, f"first_keys of {type(encoding).__name__} {fault}")
        first_keys = first_keys.contiguous()
    if window is None:
        return first_keys
    in_window = first_keys_in_windows(window, tokens)
    return in_window if first_keys is None else torch.maximum(first_keys, in_window)


def fault_of_first_keys(first_keys: Tensor, tokens: int) -> str:
    """Describe first keys that `LayerEncoding.first_keys` must not return for a text; empty for good ones."""
    if first_keys.dtype != torch.int64 or first_keys.device.type != "cpu":
        return f"returned {first_keys.dtype} on {first_keys.device}, must be torch.int64 on the CPU"
    if first_keys.shape != (tokens,):
        return f"returned the shape {list(first_keys.shape)}, must be [T]"
    in_text = (first_keys >= 0) & (first_keys <= torch.arange(tokens))
    if not in_text.all() or not (first_keys.diff() >= 0).all():
        return "must be at least 0, at most the query, and never fall from query to query"
    return ""


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    scale: float,
    null: Tensor | None = None,
    columns: Sequence[Tensor] = (),
    first_keys: Tensor | None = None,
) -> Tensor:
    """Return the output [B, H, T, V] of causal attention on the CPU.

    q, k: [B, H, T, K]. v: [B, H, T, V]. table: biases [H, T] by distance. null: null logits [.., T, 1].
    columns: further columns of queries and of keys, [.., T, C] each, whose products are added to the logits.
    first_keys: the first key [T] that each query sees, int64, never falling; None: all keys before the query.
    All are float32; q, k and v may be bfloat16 with a kernel for this type and without columns. Raises
    `UserError` if queries and keys, or their columns, differ in width.
    """
    # Encodings may share tensors among heads, which the kernel needs in full shape. (PyTorch's
    # `broadcast_shapes` would import SymPy, which is slow.)
    leading = np.broadcast_shapes(q.shape[:-1], k.shape[:-1], v.shape[:-1])
    q, k, v = (x.expand(*leading, -1) for x in (q, k, v))
    require(q.shape == k.shape, f"queries are {q.shape[-1]} wide, and keys {k.shape[-1]}")
    if table is not None:
        table = table.float().expand(q.shape[1], q.shape[2])
    if null is not None:
        null = null.float().expand(*leading, 1)
    columns = [column.float().expand(*leading, -1) for column in columns]
    widths = {column.shape[-1] for column in columns}
    require(len(widths) < 2, f"columns of queries and keys differ in width: {sorted(widths)}")
    return cast(Tensor, _Attention.apply(q, k, v, table, null, first_keys, scale, *columns))


@functools.cache
def usable_kernel(dtype: torch.dtype) -> build.Kernel:
    """Return our attention kernel for float32 or bfloat16; without a library if it fails its test here.

    The test, once in a process, compares a small case with float64.
    """
    kernel = build.bfloat16_kernel() if dtype == torch.bfloat16 else build.kernel()
    worst = 0.0 if kernel.library is None else _largest_error(kernel.library, dtype)
    if worst < MAX_KERNEL_ERROR[dtype]:  # false for a NaN
        return kernel
    return build.Kernel(None, f"{kernel.description}, but its results are off by {worst:.1e} here")


def describe_training_kernel(device: torch.device, dtype: torch.dtype) -> str:
    """Describe in words the kernels of attention for training on a device, as environment.json has them.

    On a CPU, this compiles our kernels at the first call.
    """
    if device.type != "cpu":
        return "PyTorch's fused kernels and FlexAttention"
    kernels = [usable_kernel(each) for each in dict.fromkeys((torch.float32, dtype))]
    has_ours = kernels[0].library is not None
    name = "pe-bench's kernel" if has_ours else "PyTorch's fused kernels and the reference"
    descriptions = "; ".join(kernel.description for kernel in kernels)
    return f"{name} ({descriptions})"


class _Attention(torch.autograd.Function):
    """Causal attention by our kernel, with the kernel's gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        null_logit: Tensor | None,
        first_keys: Tensor | None,
        scale: float,
        *columns: Tensor,
    ) -> Tensor:
        """Return the output; arguments as in `causal_attention`, expanded to all batches and heads."""
        library = usable_kernel(q.dtype).library
        assert library is not None
        output, normalizers = _forward(library, q, k, v, table, scale, columns, first_keys)
        if null_logit is not None:
            _add_null(null_logit, output, normalizers)
        ctx.save_for_backward(q, k, v, table, null_logit, first_keys, output, normalizers, *columns)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, table, null_logit, first_keys, output, normalizers, *columns = ctx.saved_tensors
        saved = (q, k, v, table, output, normalizers, *columns)
        library = usable_kernel(q.dtype).library
        assert library is not None
        gradients, grad_columns = _backward(
            library, saved, gradient, ctx.scale, first_keys, has_table_gradient=ctx.needs_input_grad[3]
        )
        grad_null = None
        if null_logit is not None:
            grad_null = gradient_of_null(null_logit, _log_sum_exp(normalizers), output, gradient)
        return *gradients, grad_null, None, None, *grad_columns


def _add_null(null_logit: Tensor, output: Tensor, normalizers: Tensor) -> None:
    """Change the kernel's results in place, as if there were one more key without a value.

    null_logit: the key's logits [B, H, T, 1]. output, normalizers: the results of `_forward`.

    The kernel's backward pass reads these two results, so its gradients include the key.
    """
    share = share_of_keys(_log_sum_exp(normalizers), null_logit)
    output.mul_(share)
    normalizers[1] *= share.squeeze(-1)


def _log_sum_exp(normalizers: Tensor) -> Tensor:
    """Return the log-sum-exp [B, H, T, 1] of the logits.

    normalizers: each query's largest logit, and one over its sum of exponentials [2, B, H, T].
    """
    largest, inverse_sum = normalizers
    return (largest - inverse_sum.log()).unsqueeze(-1)


def _forward(
    library: ctypes.CDLL,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    scale: float,
    columns: Sequence[Tensor] = (),
    first_keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output [B, H, T, V] of causal attention, and the normalizers [2, B, H, T] of its weights.

    Normalizers, which the backward pass reads, are each query's largest logit m, and 1 / sum exp(logit - m).
    Arguments as in `causal_attention`, with the same leading sizes; columns: none, or a pair.
    """
    q, k, v, *columns = map(build.with_whole_rows, (q, k, v, *columns))
    output = build.empty_tokens_first(v)
    normalizers = q.new_empty((2, *q.shape[:-1]), dtype=torch.float32)
    if table is not None:
        table = table.contiguous()
    inputs = *_shape_and_rows(q, k, v, scale, columns, first_keys), build.pointer_to(table)
    _call_kernel(library.pe_bench_forward, *inputs, build.strided(output), build.pointer_to(normalizers))
    return output, normalizers


def _backward(
    library: ctypes.CDLL,
    saved: Sequence[Any],
    gradient: Tensor,
    scale: float,
    first_keys: Tensor | None = None,
    *,
    has_table_gradient: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], list[Tensor]]:
    """Return the gradients of q, k, v and of the table [H, T] or None, and the gradients of the columns.

    saved: q, k, v, the table or None, the two results of `_forward`, and the columns.
    """
    q, k, v, table, output, normalizers, *columns = saved
    q, k, v, gradient, *columns = map(build.with_whole_rows, (q, k, v, gradient, *columns))
    if table is not None:
        table = table.contiguous()
    grad_q, grad_k, grad_v, *grad_columns = map(build.empty_tokens_first, (q, k, v, *columns))
    grad_tables = None  # the gradient of the table from each window of the batch
    grad_table = None
    if has_table_gradient:
        grad_tables = torch.empty_like(normalizers[0])
        grad_table = normalizers.new_empty(normalizers.shape[2:])
    inputs = *_shape_and_rows(q, k, v, scale, columns, first_keys), build.pointer_to(table)
    _, *gradients = _shape_and_rows(grad_q, grad_k, grad_v, scale, grad_columns)
    gradients = (
        build.strided(gradient),
        *gradients,
        build.pointer_to(grad_tables),
        build.pointer_to(grad_table),
    )
    _call_kernel(
        library.pe_bench_backward, *inputs, build.strided(output), build.pointer_to(normalizers), *gradients
    )
    return (grad_q, grad_k, grad_v, grad_table), grad_columns


def _shape_and_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    columns: Sequence[Tensor],
    first_keys: Tensor | None = None,
) -> tuple[Any, ...]:
    """Return a kernel's first arguments: pointers to the shape, and to queries, keys and values."""
    query_columns, key_columns = columns or (None, None)
    count = 0 if query_columns is None else query_columns.shape[-1]
    shape = build.shape_of(q, v, scale, count, first_keys)
    return shape, build.strided(q, query_columns), build.strided(k, key_columns), build.strided(v)


def _call_kernel(function: Any, *arguments: Any) -> None:
    """Call a function of a kernel. Raise `MemoryError` if it has no memory."""
    if function(*arguments) != 0:
        raise MemoryError("no memory for the attention of one head")


@torch.inference_mode(False)  # the first use may be in inference mode, which has no gradients
def _largest_error(library: ctypes.CDLL, dtype: torch.dtype) -> float:
    """Return the largest error of output and gradients against float64, on a small case of odd sizes.

    Errors are relative to the largest number of each output. An error may be NaN.
    """
    generator = torch.Generator().manual_seed(0)
    tokens, heads, width = 131, 2, 20
    shape = (1, heads, tokens, width)
    q, k, v, grad_output = torch.randn(4, *shape, generator=generator).to(dtype).unbind()
    table = torch.randn(heads, tokens, generator=generator)
    scale = 1 / math.sqrt(width)
    first_keys = first_keys_in_windows(90, tokens)
    output, normalizers = _forward(library, q, k, v, table, scale, first_keys=first_keys)
    saved = q, k, v, table, output, normalizers
    gradients, _ = _backward(library, saved, grad_output, scale, first_keys, has_table_gradient=True)
    results = output, *gradients
    leaves = [leaf.double().requires_grad_() for leaf in (q, k, v, table)]
    exact_q, exact_k, exact_v, exact_table = leaves
    index = torch.arange(tokens)
    distance = index.unsqueeze(-1) - index
    with torch.enable_grad():
        bias = exact_table[:, distance.clamp(min=0)]
        logits = scale * exact_q @ exact_k.mT + bias
        is_hidden = (distance < 0) | (index < first_keys.unsqueeze(-1))
        weights = logits.masked_fill(is_hidden, -math.inf).softmax(-1)
        exact = weights @ exact_v
        exact_gradients = torch.autograd.grad((exact * grad_output).sum(), leaves)
    errors = []
    for result, truth in zip(results, (exact.detach(), *exact_gradients), strict=True):
        if result is not None:
            largest_error = (result - truth).abs().max()
            errors.append(largest_error / truth.abs().max())
    return float(torch.stack(errors).max())
