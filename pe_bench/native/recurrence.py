"""Layers without softmax by the compiled code (`recurrence.h`), and their gradients.

A state is taken from token to token, as in the definition, so no decay overflows and no system is solved.
The chunks of plain PyTorch take several times as long.

Letters: B batch, H heads, T tokens, n chunks, K head width of queries and keys, V head width of values, G 1
or K: the number of decays of a token.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_bench.native.build import empty_tokens_first, kernel, pointer_to, shape_of, strided, with_whole_rows

TOKENS_PER_CHUNK = 32  # tokens from one kept state to the next; the `CHUNK` of layers.h


def has_native_recurrence(*inputs: Tensor | None) -> bool:
    """Return true if `native_recurrence` can handle these inputs."""
    for each in inputs:
        if each is None:
            continue
        if each.dtype != torch.float32 or each.device.type != "cpu" or each.numel() == 0:
            return False
    return kernel().library is not None


def native_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor | None = None
) -> Tensor:
    """Return S^T q of each token [B, H, T, V], from a state S of zeros.

    q, k: [B, H, T, K]. v: [B, H, T, V]. log_decay: [B, H, T, G], at most 0. strength: [B, H, T] of the
    correction; None: without a correction. All are float32 on the CPU. Raises `MemoryError`.
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
        _, k, v, _, *_ = inputs
        batch, heads, tokens, width = k.shape
        chunks = -(-tokens // TOKENS_PER_CHUNK)
        states = k.new_empty(batch, heads, chunks, width, v.shape[-1])
        ctx.save_for_backward(states, *inputs)
        return _read(inputs, states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        states, *inputs = ctx.saved_tensors
        grads = [each.new_zeros(each.shape) for each in inputs]
        grad_out = with_whole_rows(grad_out)
        outputs = strided(grad_out), pointer_to(states), *_pointers(grads)
        _call("pe_bench_recurrence_backward", *_arguments(inputs), *outputs)
        return tuple(grads)


def _read(inputs: Sequence[Tensor], states: Tensor | None) -> Tensor:
    """Return the output, and fill `states` [B, H, n, K, V] with the state before each chunk."""
    out = empty_tokens_first(inputs[2])
    _call("pe_bench_recurrence", *_arguments(inputs), strided(out), pointer_to(states))
    return out


def _arguments(inputs: Sequence[Tensor]) -> list[Any]:
    """Return the first arguments of both compiled functions: sizes, inputs and the number of decays."""
    q, _, v, log_decay, *_ = inputs
    return [shape_of(q, v, 1.0), *_pointers(inputs), ctypes.c_int64(log_decay.shape[-1])]


def _pointers(tensors: Sequence[Tensor]) -> list[Any]:
    """Return pointers to q, k, v, log decays and strengths, or to their gradients; None without strengths."""
    pointers = [strided(each) for each in tensors]
    if len(pointers) == 4:
        pointers.append(None)
    return pointers


def _call(name: str, *arguments: Any) -> None:
    library = kernel().library
    assert library is not None
    if library[name](*arguments):
        raise MemoryError("no memory for the states of a layer without softmax")
