"""Layers without softmax by the compiled code (`recurrence.h`), and their gradients.

The state is updated token by token, as in the definition, so no decay overflows and no system is solved.

Letters: B batch, H heads, T tokens, n saved states, K head width of queries and keys, V head width of values,
G 1 or K: the number of decays of a token.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_bench.native.build import (
    empty_tokens_first,
    has_cpu_data,
    kernel,
    pointer_to,
    shape_of,
    strided,
    with_whole_rows,
)


def has_native_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor | None = None
) -> bool:
    """Return true if `native_recurrence` can handle these inputs."""
    inputs = [q, k, v, log_decay] if strength is None else [q, k, v, log_decay, strength]
    if not all(has_cpu_data(each) and each.dtype == torch.float32 and each.numel() > 0 for each in inputs):
        return False
    tokens = q.shape[:3]
    has_all_tokens = v.shape[:3] == log_decay.shape[:3] == tokens
    has_all_strengths = strength is None or strength.shape == tokens
    has_all_decays = log_decay.shape[-1] in (1, k.shape[-1])
    has_one_width = q.shape == k.shape
    if not (has_all_tokens and has_all_strengths and has_all_decays and has_one_width):
        return False
    return kernel().library is not None


def native_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor | None = None
) -> Tensor:
    """Return S^T q of each token [B, H, T, V]; the state S [B, H, K, V] is zero before the first token.

    q, k: [B, H, T, K]. v: [B, H, T, V]. log_decay: [B, H, T, G]. strength: [B, H, T] of the correction; None:
    without a correction. All are float32 on the CPU. Raises `MemoryError`.
    """
    inputs = [with_whole_rows(each) for each in (q, k, v, log_decay)]
    if strength is not None:
        inputs.append(strength.unsqueeze(-1).contiguous())
    if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
        return cast(Tensor, _Recurrence.apply(*inputs))
    return _read(inputs, None)


class _Recurrence(torch.autograd.Function):
    """`native_recurrence` of q, k, v, log decays and, if there are any, strengths [B, H, T, 1]."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        k, v = inputs[1], inputs[2]
        batch, heads, tokens, width = k.shape
        count = _library().pe_bench_saved_states(ctypes.c_int64(tokens))
        states = k.new_empty(batch, heads, count, width, v.shape[-1])
        ctx.save_for_backward(states, *inputs)
        return _read(inputs, states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        states, *inputs = ctx.saved_tensors
        grads = [each.new_zeros(each.shape) for each in inputs]
        grad_out = with_whole_rows(grad_out)
        grad_arguments = strided(grad_out), pointer_to(states), *_pointers(grads)
        _raise_for(_library().pe_bench_recurrence_backward(*_arguments(inputs), *grad_arguments))
        return tuple(grads)


def _read(inputs: Sequence[Tensor], states: Tensor | None) -> Tensor:
    """Return S^T q of each token [B, H, T, V], and fill `states` [B, H, n, K, V], unless it is None.

    inputs: q, k, v, log decays and, if there are any, strengths [B, H, T, 1].
    """
    v = inputs[2]
    out = empty_tokens_first(v)
    _raise_for(_library().pe_bench_recurrence(*_arguments(inputs), strided(out), pointer_to(states)))
    return out


def _arguments(inputs: Sequence[Tensor]) -> list[Any]:
    """Return the first arguments of both compiled functions: sizes, inputs and the number of decays.

    inputs: as in `_read`.
    """
    q, v, log_decay = inputs[0], inputs[2], inputs[3]
    return [shape_of(q, v, 1.0), *_pointers(inputs), ctypes.c_int64(log_decay.shape[-1])]


def _pointers(tensors: Sequence[Tensor]) -> list[Any]:
    """Return five pointers: to q, k, v, log decays and strengths, or to their gradients.

    The last is None without strengths.
    """
    pointers = [strided(each) for each in tensors]
    if len(pointers) == 4:
        pointers.append(None)
    return pointers


def _library() -> ctypes.CDLL:
    library = kernel().library
    assert library is not None
    return library


def _raise_for(failed: int) -> None:
    """Raise `MemoryError` if a function of the kernel returned that it failed."""
    if failed:
        raise MemoryError("no memory for the states of a layer without softmax")
