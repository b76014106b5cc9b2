"""Attention with any encoding: the reference, which defines the result, and fast paths with the same result.

A path is chosen by the hooks that an encoding overrides, never by its name: the fastest path on this machine
that is exact for these hooks.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.relative.tables import Relative
from pe_bench.model.attention.chunks import fused_chunk_attention, fused_relative_attention
from pe_bench.model.attention.flex import can_flex, fused_flex_attention
from pe_bench.model.attention.fused import can_tabulate, fused_attention, fused_distance_attention
from pe_bench.model.attention.native import native_attention, native_column_attention, usable_kernel
from pe_bench.model.attention.reference import gated, softmax_attention
from pe_bench.model.attention.reference import reference_attention as reference_attention
from pe_bench.native.build import AMX_FEATURES
from pe_bench.system.machine import processor_features


class AttentionPath(NamedTuple):
    """A way to compute attention, by the name that `pe-bench speed` shows."""

    name: str
    run: Callable[..., Tensor]  # a function with the arguments of `attention`


REFERENCE = AttentionPath("reference", softmax_attention)
FUSED = AttentionPath("fused", fused_attention)
CHUNK = AttentionPath("fused chunk", fused_chunk_attention)
DISTANCE = AttentionPath("fused distance", fused_distance_attention)
RELATIVE = AttentionPath("fused relative", fused_relative_attention)
FLEX = AttentionPath("fused flex", fused_flex_attention)
NATIVE = AttentionPath("native", native_attention)
NATIVE_COLUMN = AttentionPath("native column", native_column_attention)

REFERENCE_ONLY_HOOKS = ("adjust", "weights", "mix")  # hooks that only the reference calls
# PyTorch's kernels score longer texts: with some biases they leave out most keys.
MAX_NATIVE_TOKENS = 8_192
# Hooks that FlexAttention adds to PyTorch's fused attention.
FLEX_HOOKS = ("visible", "bias", "distance_bias", "null_logit")


def attention(
    encoding: LayerEncoding,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    window: int | None = None,
) -> Tensor:
    """Return the attention output [B, H, T, K] of one layer, on the fastest path that is exact.

    x: the layer's input [B, T, D]. q, k, v: [B, H, T, K]; queries may be of the last tokens alone. position:
    [T] or [B, T]. window: tokens that each query sees at most, whatever the encoding; layers without softmax
    ignore it.
    """
    q, k, v = encoding.convolve(q, k, v)
    path = choose_path(encoding, q, position, window)
    read = path.run(encoding, x, q, k, v, position, window)
    tokens = k.shape[-2]
    return gated(encoding, x, read, range(tokens - q.shape[-2], tokens))


def recurrent_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object
) -> Tensor:
    """Return the output of a layer without softmax, which reads neither position nor window."""
    return encoding.attend_chunked(x, q, k, v)


RECURRENT = AttentionPath("recurrent", recurrent_attention)


def choose_path(
    encoding: LayerEncoding, q: Tensor, position: Tensor, window: int | None = None
) -> AttentionPath:
    """Return the fastest path that is exact for queries like `q` [B, H, T, K].

    position: of all tokens; the queries are of the last of these. window: as in `attention`.
    """
    if encoding.overrides("attend"):
        return RECURRENT
    if q.shape[-2] < position.shape[-1]:
        return path_of_last_queries(encoding, q)
    if q.device.type == "cuda" and can_flex(encoding, q, position):
        is_plain = window is None and not encoding.overrides(*FLEX_HOOKS)
        return FUSED if is_plain else FLEX
    if q.device.type != "cpu" and encoding.overrides("null_logit"):
        return REFERENCE
    if window is None and can_use_tables(encoding, q, position):
        return RELATIVE
    has_plain_terms = encoding.overrides("terms") or not encoding.overrides("scores")
    if encoding.overrides(*REFERENCE_ONLY_HOOKS) or not has_plain_terms:
        return REFERENCE
    hides_keys = window is not None or encoding.overrides("visible")
    native = prefers_native_kernel(q, hides_keys=hides_keys)
    is_read_in_chunks = hides_keys and not (native and encoding.first_keys(q.shape[-2]) is not None)
    if is_read_in_chunks or encoding.overrides("terms"):
        return chunk_path(encoding, q)
    if not encoding.overrides("bias", "distance_bias"):
        return NATIVE if native or scores_bfloat16_natively(q) else FUSED
    if native and encoding.has_columns():
        return NATIVE_COLUMN
    if encoding.overrides("bias") or not can_tabulate(position):
        return chunk_path(encoding, q)
    if native:
        return NATIVE
    return REFERENCE if bias_may_need_gradient(encoding, q) else DISTANCE


def path_of_last_queries(encoding: LayerEncoding, q: Tensor) -> AttentionPath:
    """Return the path in chunks, or else the reference, for queries of the last tokens alone.

    For a few queries at a time, the reference copies all keys. PyTorch's kernel reads them in place.
    """
    is_plain = encoding.overrides("terms") or not encoding.overrides("scores")
    is_scoring = q.device.type == "cpu" and not torch.is_grad_enabled()
    can_fuse = is_plain and not encoding.overrides(*REFERENCE_ONLY_HOOKS)
    return CHUNK if is_scoring and can_fuse else REFERENCE


def prefers_native_kernel(q: Tensor, *, hides_keys: bool = False) -> bool:
    """Return true if our kernel should serve these queries, whatever the bias.

    It serves them on a CPU with a compiler, for types and lengths at which it is the fastest. hides_keys: by
    windows or chunks of text, where it is the fastest at every length.
    """
    if q.device.type != "cpu" or usable_kernel(torch.float32).library is None:
        return False
    if torch.is_grad_enabled() and q.requires_grad:
        return q.dtype in (torch.float32, torch.bfloat16)
    is_fast = q.dtype == torch.float32 or scores_bfloat16_natively(q)
    return is_fast and (hides_keys or q.shape[-2] <= MAX_NATIVE_TOKENS)


def native_bfloat16_is_faster(device: torch.device) -> bool:
    """Return true on a CPU without AMX for which we have a kernel for bfloat16.

    There, our kernels beat PyTorch's in scoring and in Muon's iterations.
    """
    if device.type != "cpu" or processor_features() >= AMX_FEATURES:
        return False
    return usable_kernel(torch.bfloat16).library is not None


def scores_bfloat16_natively(q: Tensor) -> bool:
    """Return true if q is bfloat16 on a device where our kernels score faster than PyTorch's."""
    return q.dtype == torch.bfloat16 and native_bfloat16_is_faster(q.device)


def can_use_tables(encoding: LayerEncoding, q: Tensor, position: Tensor) -> bool:
    """Return true if `fused_relative_attention` is exact: for an encoding with tables, scored on a CPU."""
    is_scoring = q.device.type == "cpu" and not torch.is_grad_enabled()
    has_tables = isinstance(encoding, Relative) and encoding.has_tables()
    return is_scoring and has_tables and can_tabulate(position)


def chunk_path(encoding: LayerEncoding, q: Tensor) -> AttentionPath:
    """Return the path in chunks, or the reference if the bias may need a gradient."""
    return REFERENCE if bias_may_need_gradient(encoding, q) else CHUNK


def bias_may_need_gradient(encoding: LayerEncoding, q: Tensor) -> bool:
    """Return true if gradients may flow to the encoding's bias, which PyTorch's fused kernels lack."""
    if encoding.overrides("bias"):
        return torch.is_grad_enabled()
    bias = encoding.distance_bias(torch.zeros(1, dtype=torch.long, device=q.device))
    return bias is not None and bias.requires_grad
