"""PyTorch's fused causal attention, for encodings that only transform and scale queries and keys.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math
from collections.abc import Iterator, MutableMapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from pe_bench.encodings.base import LayerEncoding, precise
from pe_bench.model.attention.reference import apply_logit_scale, make_sides, share_of_keys


def fused_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Compute attention for encodings with no hooks but `transform`, `logit_scale` and `null_logit`.

    The arguments are as in `attention`, with queries of all tokens.
    """
    queries, keys = make_sides(encoding, x, q, k, position)
    scaled_q = apply_logit_scale(queries.x, encoding.logit_scale(queries))
    null = encoding.null_logit(queries)
    scale = 1 / math.sqrt(q.shape[-1])
    return fused(scaled_q, keys.x, v, None, scale, null)


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, null: Tensor | None = None
) -> Tensor:
    """Return PyTorch's fused attention, [B, H, Q, V].

    mask: true for visible keys, or numbers to add, [1 or B, 1 or H, Q, N] or [Q, N]; None: causal. null: the
    null logit, only on a CPU. The kernels need one width of q, k and v, so narrower tensors are padded.
    """
    wide_q, wide_k, wide_v = _padded_to_one_width(q, k, v)
    if null is not None:
        output = _fused_with_null(wide_q, wide_k, wide_v, mask, scale, null)
        return output[..., : v.shape[-1]]
    # Autocast would reduce float32 sums and biases to half precision.
    with torch.autocast(q.device.type, enabled=False):
        output = functional.scaled_dot_product_attention(
            wide_q, wide_k, wide_v, attn_mask=mask, is_causal=mask is None, scale=scale
        )
    return output[..., : v.shape[-1]]


def fused_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return PyTorch's fused attention [B, H, Q, V], and the log-sum-exp [B, H, Q, 1] of the logits.

    It works on a CPU alone, without gradients.

    mask: the mask or bias, as in `fused`; None if all keys are visible.
    """
    mask = _additive_mask(mask, q)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *_padded_to_one_width(q, k, v), 0.0, False, attn_mask=mask, scale=scale
    )
    output = output[..., : v.shape[-1]]
    lse = lse.unsqueeze(-1)
    if mask is not None:  # the kernel returns 0 for a query that sees nothing
        sees_nothing = mask.amax(-1, keepdim=True).isneginf()
        lse = lse.masked_fill(sees_nothing, float("-inf"))
    return output, lse


def merge_by_lse(parts: Sequence[tuple[Tensor, Tensor]], null: Tensor | None = None) -> Tensor:
    """Combine outputs over parts of the keys, each with its log-sum-exp, into the output over all keys.

    null: the null logit, a further key without a value.
    """
    if len(parts) == 1 and null is None:
        return parts[0][0]
    lses = [lse for _, lse in parts]
    if null is not None:
        lses.append(null)
    total = reduce(torch.logaddexp, lses)
    weighted = [(lse - total).exp() * output for output, lse in parts]
    return reduce(torch.add, weighted)


class _FusedWithNull(torch.autograd.Function):
    """Attention with a null logit [B, H, Q, 1], by the CPU's kernel, which has no null logit.

    The null logit scales the output and adds to the log-sum-exp. The kernel's backward pass reads only these
    two: weights are exp(logit - log-sum-exp), and the mean gradient of a query's weights is the product of
    its output and the output's gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, null: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        lse = lse.unsqueeze(-1)
        output = (output * share_of_keys(lse, null)).to(output.dtype)
        total = torch.logaddexp(lse, null.to(lse.dtype))
        ctx.save_for_backward(q, k, v, null, mask, output, total)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, null, mask, output, total = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, q, k, v, output, total.squeeze(-1), 0.0, mask is None, attn_mask=mask, scale=ctx.scale
        )
        grad_null = gradient_of_null(null, total, output, gradient)
        return grad_q, grad_k, grad_v, grad_null, None, None


def gradient_of_null(null: Tensor, total: Tensor, output: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient [B, H, Q, 1] of a null logit, from the output [B, H, Q, V] and its gradient.

    total: the log-sum-exp with the null logit, whose key has a value of 0.
    """
    mean = (output * gradient).sum(-1, keepdim=True, dtype=total.dtype)
    weight = (null - total).exp()
    return (-weight * mean).to(null.dtype)


def _fused_with_null(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, null: Tensor
) -> Tensor:
    """Call `_FusedWithNull` with q, k, v and null expanded to the same batch and heads."""
    heads = np.broadcast_shapes(q.shape[:2], k.shape[:2], v.shape[:2])
    q = q.expand(*heads, *q.shape[2:])
    k = k.expand(*heads, *k.shape[2:])
    v = v.expand(*heads, *v.shape[2:])
    null = null.expand(*q.shape[:-1], 1)
    return cast(Tensor, _FusedWithNull.apply(q, k, v, null, _additive_mask(mask, q), scale))


def _additive_mask(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return a boolean mask as numbers to add to the logits: 0 for visible keys, else minus infinity.

    Other masks and None are returned as they are. q: queries, for the type of the numbers.
    """
    if mask is None or mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros_like(mask, dtype=precise(q.dtype))
    return zeros.masked_fill_(~mask, float("-inf"))


def _padded_to_one_width(*tensors: Tensor) -> list[Tensor]:
    """Pad the tensors with zeros to one width."""
    widest = max(x.shape[-1] for x in tensors)
    wide = []
    for x in tensors:
        missing = widest - x.shape[-1]
        wide.append(functional.pad(x, (0, missing)) if missing else x)
    return wide


# Fused attention plus a bias of the distance, without a tensor of T x T.
#
# Letters: B batch, H query heads, T tokens, Q queries and N keys of one chunk, K head width, D model width.

# Small chunks compute fewer needless keys: keys after a query, or keys that only other queries need. But from
# 768 queries on, the CPU's kernel reads the keys once for 256 queries instead of 64, which matters for keys
# that overflow the processor's caches, as in texts of more than `LONG_TEXT_TOKENS` tokens.
QUERIES_PER_CHUNK = 256
QUERIES_PER_LONG_CHUNK = 1_024
LONG_TEXT_TOKENS = 8_192


def fused_distance_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Compute attention for encodings with a `distance_bias`, at positions that rise by 1.

    With queries in reverse order, the bias of query i' and key j depends on i' + j alone: a Hankel matrix,
    which is a view with strides (1, 1) of a vector with one value for each distance. Keys after the query are
    at the end of the vector, at minus infinity.

    Without gradients, keys whose weight is provably 0 in float32 are left out (`NegligibleKeys`). The
    arguments are as in `attention`, with queries of all tokens.
    """
    table = distance_table(encoding, q)
    assert table is not None
    queries, keys = make_sides(encoding, x, q, k, position)
    scaled = apply_logit_scale(queries.x, encoding.logit_scale(queries))
    scale = 1 / math.sqrt(q.shape[-1])
    null = encoding.null_logit(queries)
    if null is not None:
        null = null.expand(*q.shape[:-1], 1)
    needs_gradient = scaled.requires_grad or keys.x.requires_grad or v.requires_grad
    learns = torch.is_grad_enabled() and needs_gradient
    negligible = None
    if is_worthwhile(table) and not learns:
        negligible = NegligibleKeys(scaled, keys.x, v, table, scale)
    # The CPU's kernel takes a float32 mask for half precision queries; other kernels need one type.
    dtype = precise(q.dtype) if q.device.type == "cpu" else q.dtype
    size = QUERIES_PER_CHUNK if q.shape[-2] <= LONG_TEXT_TOKENS else QUERIES_PER_LONG_CHUNK
    # [H, T + size]: the distances T-1 to 0, then keys that are hidden.
    falling = functional.pad(table.flip(-1), (0, size), value=float("-inf"))
    falling = falling.to(dtype)
    chunks = []
    for start in range(0, q.shape[-2], size):
        stop = min(start + size, q.shape[-2])
        reversed_q = scaled[:, :, start:stop].flip(-2)
        reversed_null = None if null is None else null[:, :, start:stop].flip(-2)
        needed = negligible.first_keys(start, stop) if negligible else [0] * q.shape[1]
        outputs = []
        for heads, first in _head_groups(needed):
            vector = falling[heads, q.shape[-2] - stop + first :]
            mask = _hankel(vector, stop - start, stop - first)
            seen_k = keys.x[:, heads, first:stop]
            seen_v = v[:, heads, first:stop]
            head_null = None if reversed_null is None else reversed_null[:, heads]
            outputs.append(fused(reversed_q[:, heads], seen_k, seen_v, mask, scale, head_null))
        chunks.append(torch.cat(outputs, 1).flip(-2))
    return torch.cat(chunks, -2)


def distance_table(encoding: LayerEncoding, q: Tensor) -> Tensor | None:
    """Return the bias [H, T] of every distance for queries [B, H, T, K]; None without a `distance_bias`.

    Heads may share memory. Raises `TypeError` for a `distance_bias` that returns None.
    """
    if not encoding.overrides("distance_bias"):
        return None
    table = encoding.distance_bias(torch.arange(q.shape[-2], device=q.device))
    if table is None:
        raise TypeError("distance_bias returned None: is a return missing?")
    return table.expand(q.shape[1], q.shape[-2])


def can_tabulate(position: Tensor) -> bool:
    """Return true if positions are integers [T] that rise by 1: a bias has one value for each distance."""
    if position.dim() != 1 or position.is_floating_point():
        return False
    if position not in _is_consecutive:
        _is_consecutive[position] = bool((position.diff() == 1).all())
    return _is_consecutive[position]


# Kept for positions in use: all layers of a model ask, and a GPU waits for each answer.
_is_consecutive: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()


def _head_groups(first_keys: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield slices of neighbouring heads with the same first key, with this key.

    first_keys: of each head, the first key that its queries need.
    """
    start = 0
    for first, heads in groupby(first_keys):
        stop = start + len(list(heads))
        yield slice(start, stop), first
        start = stop


def _hankel(vector: Tensor, rows: int, columns: int) -> Tensor:
    """Return [1, H, rows, columns] whose entry (i, j) is vector[:, i + j], without a copy."""
    heads = vector.shape[0]
    return vector.as_strided((1, heads, rows, columns), (0, vector.stride(0), 1, 1))


# Keys that may be left out, because their weight is provably lost in rounding.
#
# The keys before a block may be left out when, for every query i of the chunk, with scores
# s_ij = scale * q_i . k_j + b(i - j) and |v| the root mean square of the chunk's own values,
#
#     sum_j exp(s_ij) max(1, |v_j| / |v|) <= exp(s_ii) epsilon / 3        (e^-17 in float32)
#
# over the left out keys j. The row's sum of exponentials is at least exp(s_ii), so the output moves by no
# more than epsilon / 3 times the sum of |v| and the size of the output, which float32 rounds away in such a
# sum.
#
# The left side is bounded a block at a time. The keys of a block lie in a ball of radius r around their mean
# c, so q_i . k_j <= q_i . c + |q_i| r by Cauchy-Schwarz; the bias is at most the largest bias at the least
# distance from the chunk to the block or beyond. The bound is computed from the tensors: no key is left out
# up to a rise of the bias, a huge key or value, or a NaN.
#
# Letters: B batch, H query heads, T tokens, Q queries of a chunk, M blocks of keys, K head width.

KEYS_PER_BLOCK = 256  # keys
SHORT_TEXT_TOKENS = 1_024  # tokens


class NegligibleKeys:
    """The keys that chunks of queries do not need, because their weights are lost in rounding.

    q, k, v: [B, H, T, *], after `transform`. table: the bias [H, T] by distance.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float):
        dtype = precise(q.dtype)
        self._q, self._k, self._scale = q, k, scale
        table = table.to(dtype)
        largest_from_here = table.flip(-1).cummax(-1).values.flip(-1)
        self._bias = largest_from_here - table[:, :1]  # [H, T], relative to the bias of the query itself
        blocks = _in_blocks(k.to(dtype), 2)  # [B, H, M, KEYS_PER_BLOCK, *]
        self._centres = blocks.mean(-2)
        from_centre = blocks - self._centres.unsqueeze(-2)
        self._radii = from_centre.norm(dim=-1).amax(-1)
        self._sizes = v.to(dtype).norm(dim=-1)  # [B, H, T]
        self._largest = _in_blocks(self._sizes, 2).amax(-1)

    def first_keys(self, start: int, stop: int) -> list[int]:
        """Return, for each head, an index before which the queries `start` to `stop` - 1 need no key."""
        blocks = start // KEYS_PER_BLOCK
        if blocks == 0:
            return [0] * self._bias.shape[0]
        number = torch.arange(1, blocks + 1, device=self._bias.device)
        nearest = start + 1 - KEYS_PER_BLOCK * number  # the least distance to each block
        mean_square = self._sizes[:, :, start:stop].square().mean(-1, keepdim=True)
        sizes = self._largest[:, :, :blocks] / mean_square.sqrt()
        log_sizes = (KEYS_PER_BLOCK * sizes.clamp(min=1)).log()
        lse = self._content_bounds(start, stop) + self._bias[:, nearest] + log_sizes
        # [B, H, M]: of each block and all blocks before it, which grows. A NaN is not less than any number.
        negligible = lse.logcumsumexp(-1) < log_epsilon(lse.dtype)
        return (negligible.all(0).sum(-1) * KEYS_PER_BLOCK).tolist()

    def _content_bounds(self, start: int, stop: int) -> Tensor:
        """Return an upper bound of the scaled products of queries with the keys of each block: [B, H, M].

        From each product, the product of the query with its own key is subtracted. The bound is over the
        queries `start` to `stop` - 1, and for the blocks of keys before `start`.
        """
        blocks = start // KEYS_PER_BLOCK
        q = self._q[:, :, start:stop].to(self._radii.dtype)
        own_k = self._k[:, :, start:stop]
        own_product = (q * own_k).sum(-1, keepdim=True)
        # In half precision, as under autocast, rounding would break the bound.
        with torch.autocast(q.device.type, enabled=False):
            at_centre = q @ self._centres[:, :, :blocks].mT
        around = q.norm(dim=-1, keepdim=True) * self._radii[:, :, None, :blocks]
        excess = at_centre + around - own_product
        return self._scale * excess.amax(-2)


def is_worthwhile(table: Tensor) -> bool:
    """Return true if it pays to look for negligible keys: the text is long, and the bias [H, T] falls far."""
    fall = table.amin(-1) - table[:, 0]
    is_negligible = fall < log_epsilon(precise(table.dtype))
    return table.shape[-1] > SHORT_TEXT_TOKENS and bool(is_negligible.any())


def log_epsilon(dtype: torch.dtype) -> float:
    """Return ln(epsilon / 3): keys whose weights have a smaller logarithm in sum are lost in rounding."""
    return math.log(torch.finfo(dtype).eps / 3)


def _in_blocks(x: Tensor, dim: int) -> Tensor:
    """Split the axis of tokens into [M, KEYS_PER_BLOCK], without tokens that fill no block."""
    count = x.shape[dim] // KEYS_PER_BLOCK
    whole = x.narrow(dim, 0, count * KEYS_PER_BLOCK)
    return whole.unflatten(dim, (count, KEYS_PER_BLOCK))
