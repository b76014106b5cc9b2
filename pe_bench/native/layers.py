"""Norms, activations and losses by the compiled code (`layers.h`), and their gradients; Muon's iterations.

All tensors are on the CPU, contiguous, and float32 unless a docstring says otherwise. Letters: N rows of one
token each, D features, F width of the feedforward layer, V tokens of the vocabulary.
"""

import ctypes
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_bench.native.build import (
    bfloat16_kernel,
    empty_tokens_first,
    has_cpu_data,
    kernel,
    pointer_to,
    shape_of,
    strided,
    with_whole_rows,
)

ROWS_PER_CHUNK = 32  # rows that are summed together; the `CHUNK` of layers.h


def rms_norm(x: Tensor, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return RMSNorm of x [.., D] with the scale `weight_D`, and 1 / rms of each row [N]."""
    out = torch.empty_like(x)
    rows = x.numel() // x.shape[-1]
    factor_N = x.new_empty(rows)
    _call_for_rows("pe_bench_rms_norm", x, ctypes.c_float(epsilon), x, weight_D, out, factor_N)
    return out, factor_N


def rms_norm_backward(
    grad_out: Tensor, x: Tensor, weight_D: Tensor, factor_N: Tensor, grad_residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the scale, from the gradient of the output.

    factor_N: the second output of `rms_norm`. grad_residual: is added to the gradient of x; None for 0.
    """
    grad_x = torch.empty_like(x)
    chunks = -(-len(factor_N) // ROWS_PER_CHUNK)
    # The gradient from each chunk of rows; the first row becomes their sum.
    grad_weight = x.new_empty(chunks, x.shape[-1])
    _call_for_rows(
        "pe_bench_rms_norm_backward", x, grad_out, x, weight_D, factor_N, grad_residual, grad_x, grad_weight
    )
    return grad_x, grad_weight[0]


def swiglu(gate_and_up: Tensor) -> Tensor:
    """Return silu(gate) * up [.., F] from gate and up, concatenated [.., 2 F]; float32 or bfloat16."""
    width = gate_and_up.shape[-1] // 2
    out = gate_and_up.new_empty(*gate_and_up.shape[:-1], width)
    _call_for_rows(f"pe_bench_swiglu{_suffix(out)}", out, gate_and_up, out)
    return out


def swiglu_backward(grad_out: Tensor, gate_and_up: Tensor) -> Tensor:
    """Return the gradient [.., 2 F] of `gate_and_up`, from the gradient of the output of `swiglu`.

    All are float32 or bfloat16.
    """
    grad_gate_and_up = torch.empty_like(gate_and_up)
    name = f"pe_bench_swiglu_backward{_suffix(grad_out)}"
    _call_for_rows(name, grad_out, grad_out, gate_and_up, grad_gate_and_up)
    return grad_gate_and_up


def _suffix(x: Tensor) -> str:
    """Return the end of the name of a compiled function for tensors of this type."""
    return "_bfloat16" if x.dtype == torch.bfloat16 else ""


def nll(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return negative log-likelihoods of int64 targets in nats [N], and normalizers for gradients [N, 2]."""
    nll_N = logits_NV.new_empty(len(logits_NV))
    normalizers = logits_NV.new_empty(len(logits_NV), 2)
    _call_for_rows("pe_bench_nll", logits_NV, logits_NV, targets_N, nll_N, normalizers)
    return nll_N, normalizers


def nll_backward(grad_nll_N: Tensor, logits_NV: Tensor, targets_N: Tensor, normalizers: Tensor) -> Tensor:
    """Return the gradient of the logits, from the gradient of the first output of `nll`."""
    grad_logits = torch.empty_like(logits_NV)
    _call_for_rows(
        "pe_bench_nll_backward", logits_NV, grad_nll_N, logits_NV, targets_N, normalizers, grad_logits
    )
    return grad_logits


def muon_polynomials(squares: Tensor, coefficients: tuple[float, ...], iterations: int) -> Tensor:
    """Return, for each square matrix X Xᵀ [B, M, M], the matrix by which Muon's iterations multiply X.

    coefficients: of the polynomial of an iteration, as in `muon.h`. Raises `MemoryError`.
    """
    totals = torch.empty_like(squares)
    library = kernel().library
    assert library is not None
    sizes = (ctypes.c_int64(squares.shape[0]), ctypes.c_int64(squares.shape[1]))
    factors = (ctypes.c_float * len(coefficients))(*coefficients)
    threads = torch.get_num_threads()
    failed = library.pe_bench_polynomials(
        *sizes, threads, pointer_to(squares), factors, iterations, pointer_to(totals)
    )
    if failed:
        raise MemoryError("no memory for Muon's matrices")
    return totals


def iterate_muon_in_bfloat16(
    matrices: Tensor, min_norm: float, coefficients: tuple[float, ...], iterations: int
) -> Tensor:
    """Return float32 matrices [B, M, N] after Muon's iterations in bfloat16. Raises `MemoryError`.

    Each matrix is first divided by its norm, or by `min_norm` if that is larger. coefficients: of the
    polynomial of an iteration, as in `muon_bfloat16.h`.
    """
    moved = torch.empty_like(matrices)
    library = bfloat16_kernel().library
    assert library is not None
    sizes = map(ctypes.c_int64, matrices.shape)
    factors = (ctypes.c_float * len(coefficients))(*coefficients)
    threads = torch.get_num_threads()
    least = ctypes.c_float(min_norm)
    failed = library.pe_bench_iterate_muon(
        *sizes, threads, pointer_to(matrices), least, factors, iterations, pointer_to(moved)
    )
    if failed:
        raise MemoryError("no memory for Muon's matrices")
    return moved


def _call_for_rows(name: str, rows: Tensor, *arguments: Any) -> None:
    """Call the compiled function `name` with the number and width of rows, the threads, and the arguments.

    Tensors among the arguments are passed as pointers.
    """
    library = kernel().library
    assert library is not None
    width = rows.shape[-1]
    count = ctypes.c_int64(rows.numel() // width)
    values = [pointer_to(each) if isinstance(each, Tensor) else each for each in arguments]
    library[name](count, ctypes.c_int64(width), torch.get_num_threads(), *values)


# The rotation of pairs of features (c, c + pairs) by the compiled code: one pass forward, and one backward.
#
# Letters: B batch, H heads, n tokens, K head width.


def is_rotated_natively(x: Tensor, cosines: Tensor) -> bool:
    """Return true if `rotated` takes x [B, H, n, K] and cosines [n, K/2] or [B, 1, n, K/2]."""
    single = x.dtype == cosines.dtype == torch.float32
    has_data = has_cpu_data(x) and has_cpu_data(cosines) and x.numel() > 0
    if not single or not has_data or x.dim() != 4 or cosines.requires_grad:
        return False
    # The compiled code reads one table for all heads, with a row for each token.
    is_per_sequence = cosines.dim() == 4 and len(cosines) in (1, len(x))
    has_one_table = cosines.dim() == 2 or (is_per_sequence and cosines.shape[1] == 1)
    has_all_rows = x.shape[-2:-1] == cosines.shape[-2:-1]
    has_all_features = 2 * cosines.shape[-1] <= x.shape[-1]
    return has_one_table and has_all_rows and has_all_features and kernel().library is not None


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return x [B, H, n, K] with its first pairs of features turned, with a gradient for x alone.

    cosines, sines: [n, pairs] or [B, 1, n, pairs].
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _rotate_with_sign(x, cosines, sines, 1.0)
    return cast(Tensor, _Rotation.apply(x, cosines, sines))


class _Rotation(torch.autograd.Function):
    """The rotation of `rotated`, whose gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotate_with_sign(x, cosines, sines, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cosines, sines = ctx.saved_tensors
        return _rotate_with_sign(grad_out, cosines, sines, -1.0), None, None


def _rotate_with_sign(x: Tensor, cosines: Tensor, sines: Tensor, sign: float) -> Tensor:
    """Return `rotated` x, without a gradient, for the sines times `sign`: -1 turns back."""
    library = kernel().library
    assert library is not None
    x = with_whole_rows(x)
    cosines = cosines.contiguous()
    sines = sines.contiguous()
    out = empty_tokens_first(x)
    tokens, pairs = cosines.shape[-2:]
    is_shared = cosines.dim() == 2 or len(cosines) == 1
    batch_stride = 0 if is_shared else tokens * pairs
    sizes = (ctypes.c_int64(batch_stride), ctypes.c_int64(pairs), ctypes.c_float(sign))
    inputs = shape_of(x, x, 1.0), strided(x), pointer_to(cosines), pointer_to(sines)
    library.pe_bench_rotate(*inputs, *sizes, strided(out))
    return out
