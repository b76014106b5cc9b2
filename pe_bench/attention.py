"""Attention with any encoding: the reference that defines the truth, and the fused paths.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width,
D model width. A path is chosen from the hooks that an encoding overrides, never by its name.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, Side

# The reference keeps its largest tensor, B * H * queries * T scores, at about this many elements: more do
# not fit the processor's caches, and took two to four times as long.
REFERENCE_ELEMENTS = 2**20
# The fused path with a bias of the distance takes this many queries at a time.
FUSED_QUERIES = 1_024

UNFUSED = ("scores", "adjust", "visible", "weights", "mix")


def attention(
    encoding: LayerEncoding,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    window: int | None = None,
) -> Tensor:
    """The attention output [B, H, T, K] of one layer, on the fastest path that is exact.

    `x` [B, T, D] is the layer's input, `q`, `k` and `v` are [B, H, T, K], `position` is [T] or
    [B, T]. `window` limits every query to the last `window` tokens, from outside the encoding.
    """
    if window is not None or encoding.overrides(*UNFUSED):
        return reference_attention(encoding, x, q, k, v, position, window)
    if not encoding.overrides("bias", "distance_bias"):
        return fused_attention(encoding, x, q, k, v, position)
    if encoding.overrides("columns"):
        return fused_column_attention(encoding, x, q, k, v, position)
    if not encoding.overrides("bias") and can_tabulate(encoding, position):
        return fused_distance_attention(encoding, x, q, k, v, position)
    return reference_attention(encoding, x, q, k, v, position)


def reference_attention(
    encoding: LayerEncoding,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    window: int | None = None,
    block: int | None = None,
    rows: range | None = None,
) -> Tensor:
    """Every hook as it stands, in blocks of queries; `rows` asks for those queries alone."""
    queries, keys = sides(encoding, x, q, k, position)
    rows = rows if rows is not None else range(q.shape[-2])
    keys_of_a_block = k.shape[-2] if window is None else min(k.shape[-2], 2 * window)
    block = block or max(1, REFERENCE_ELEMENTS // (q.shape[0] * q.shape[1] * keys_of_a_block))
    scale = 1 / math.sqrt(q.shape[-1])
    outputs = []
    for start in range(rows.start, rows.stop, block):
        stop = min(start + block, rows.stop)
        # No query of the block may see a key after its last one, or before its first one's window.
        first = 0 if window is None else max(0, start - window + 1)
        seen = cut(keys, first, stop)
        outputs.append(_attend(encoding, cut(queries, start, stop), seen, v[:, :, first:stop], scale, window))
    return torch.cat(outputs, -2)


def fused_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor
) -> Tensor:
    """PyTorch's fused causal attention, for encodings that only transform or scale."""
    queries, keys = sides(encoding, x, q, k, position)
    return _fused_causal(_scale_queries(encoding, queries), keys.x, v, 1 / math.sqrt(q.shape[-1]))


def fused_column_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor
) -> Tensor:
    """Fused attention plus a low-rank bias, as extra columns of the queries and the keys."""
    queries, keys = sides(encoding, x, q, k, position)
    columns = encoding.columns(queries, keys)
    if columns is None:  # one part of a composition has a bias that is not low-rank
        return reference_attention(encoding, x, q, k, v, position)
    scale = 1 / math.sqrt(q.shape[-1])
    scaled = _scale_queries(encoding, queries)
    # Columns are cumulative sums and positions, which half precision cannot hold.
    dtype = precise(q.dtype)
    wide_q = torch.cat([scaled.to(dtype), _like(columns[0] / scale, scaled, dtype)], -1)
    wide_k = torch.cat([keys.x.to(dtype), _like(columns[1], keys.x, dtype)], -1)
    return _fused_causal(wide_q, wide_k, v.to(dtype), scale).to(v.dtype)


def fused_distance_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor
) -> Tensor:
    """Fused attention plus a bias of the distance, without a tensor of T x T.

    With the queries in reverse order the bias of query i' and key j depends on i' + j alone: a
    Hankel matrix, which is a view with strides (1, 1) of a vector of one value for each
    distance. Keys after the query lie at the end of that vector, at minus infinity.
    """
    table = encoding.distance_bias(torch.arange(q.shape[-2], device=q.device))
    assert table is not None
    if table.requires_grad:
        # The fused kernels have no gradient for a view whose entries share memory.
        return reference_attention(encoding, x, q, k, v, position)
    queries, keys = sides(encoding, x, q, k, position)
    scaled = _scale_queries(encoding, queries)
    # [H, T + FUSED_QUERIES]: distance T-1 first, then 0, then the keys that may not be seen.
    # The CPU kernel takes a float32 mask for half precision queries; others want one type.
    dtype = precise(q.dtype) if q.device.type == "cpu" else q.dtype
    falling = functional.pad(table.flip(-1), (0, FUSED_QUERIES), value=float("-inf")).to(dtype)
    outputs = []
    for start in range(0, q.shape[-2], FUSED_QUERIES):
        stop = min(start + FUSED_QUERIES, q.shape[-2])
        mask = _hankel(falling[:, q.shape[-2] - stop :], stop - start, stop)
        block = functional.scaled_dot_product_attention(
            scaled[:, :, start:stop].flip(-2),
            keys.x[:, :, :stop],
            v[:, :, :stop],
            attn_mask=mask,
            scale=1 / math.sqrt(q.shape[-1]),
        )
        outputs.append(block.flip(-2))
    return torch.cat(outputs, -2)


def can_tabulate(encoding: LayerEncoding, position: Tensor) -> bool:
    """Whether the bias at these positions is a table: one value for each distance in tokens."""
    if position.dim() != 1 or position.is_floating_point():
        return False
    return bool((position.diff() == 1).all())


def precise(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 where that is the type already."""
    return torch.promote_types(dtype, torch.float32)


def sides(encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, position: Tensor) -> tuple[Side, Side]:
    """All queries and all keys, before and after `transform`."""
    values = encoding.prepare(x)
    position = position if position.dim() == 1 else position.unsqueeze(1)
    index = torch.arange(q.shape[-2], device=q.device)
    turned_q, turned_k = encoding.transform(q, k, position, position)
    return Side(turned_q, q, position, index, values), Side(turned_k, k, position, index, values)


def cut(side: Side, start: int, stop: int) -> Side:
    """The tokens from `start` to `stop` of one side."""
    return Side(
        side.x[..., start:stop, :],
        side.raw[..., start:stop, :],
        side.position[..., start:stop],
        side.index[start:stop],
        {name: value[..., start:stop] for name, value in side.values.items()},
    )


def logits(
    encoding: LayerEncoding, queries: Side, keys: Side, scale: float, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """The logits of a block [B, H, Q, N] before the mask, and which keys are visible [Q, N]."""
    scores = encoding.scores(queries, keys, scale)
    # Everything up to the weights is float32 or better, whatever the model runs in.
    scores = scores.to(precise(scores.dtype))
    factor = encoding.logit_scale(queries)
    scores = scores if factor is None else scores * factor
    bias = encoding.bias(queries, keys)
    scores = scores if bias is None else scores + bias
    visible = encoding.visible(queries, keys)
    if window is not None:
        visible = visible & (queries.index.unsqueeze(-1) - keys.index < window)
    return encoding.adjust(scores, visible, queries, keys), visible


def _attend(
    encoding: LayerEncoding, queries: Side, keys: Side, v: Tensor, scale: float, window: int | None
) -> Tensor:
    weights = encoding.weights(*logits(encoding, queries, keys, scale, window))
    return encoding.mix(weights.to(v.dtype), v, queries, keys)


def _fused_causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The fused kernels want one width for all three: the values are padded to that of the queries."""
    wide_v = functional.pad(v, (0, q.shape[-1] - v.shape[-1])) if q.shape[-1] > v.shape[-1] else v
    output = functional.scaled_dot_product_attention(q, k, wide_v, is_causal=True, scale=scale)
    return output[..., : v.shape[-1]]


def _scale_queries(encoding: LayerEncoding, queries: Side) -> Tensor:
    factor = encoding.logit_scale(queries)
    return queries.x if factor is None else (queries.x * factor).to(queries.x.dtype)


def _like(columns: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Columns [.., n, c] spread over the batch and the heads of x."""
    return columns.expand(*x.shape[:-1], columns.shape[-1]).to(dtype)


def _hankel(vector: Tensor, rows: int, columns: int) -> Tensor:
    """[1, H, rows, columns] whose entry (i, j) is vector[:, i + j], without a copy."""
    heads = vector.shape[0]
    return vector.as_strided((1, heads, rows, columns), (0, vector.stride(0), 1, 1))
