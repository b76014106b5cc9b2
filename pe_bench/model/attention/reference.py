"""The reference: every hook as it stands, in blocks of queries. It serves all encodings, and is the truth.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.masks.ranges import intersection, latest

# The largest tensor, B * H * queries * T scores, is kept at about this many elements: on a processor more do
# not fit the caches, and took two to four times as long; a GPU is idle with fewer.
REFERENCE_ELEMENTS = 2**20
REFERENCE_ELEMENTS_ON_A_GPU = 2**28


def gated(encoding: LayerEncoding, x: Tensor, read: Tensor, rows: range) -> Tensor:
    """Return the values read by the queries in `rows`, times the gate of their inputs [B, H, Q, K]."""
    factor = encoding.gate(x[:, rows.start : rows.stop])
    return read if factor is None else (read * factor).to(read.dtype)


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
    """Apply every hook literally, in blocks of queries; `rows` asks for those queries alone.

    There may be queries of the last tokens alone, and always are keys of all.
    """
    rows = rows if rows is not None else range(k.shape[-2] - q.shape[-2], k.shape[-2])
    convolved = encoding.convolve(q, k, v)
    if encoding.overrides("attend"):
        read = encoding.attend(x, *convolved)[:, :, rows.start : rows.stop]
    else:
        read = softmax_attention(encoding, x, *convolved, position, window, block, rows)
    return gated(encoding, x, read, rows)


def softmax_attention(
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
    """Apply every hook of softmax attention literally, in blocks of queries."""
    queries, keys = project(encoding, x, q, k, position)
    batch, heads, _, _ = q.shape
    tokens = k.shape[-2]
    before = tokens - q.shape[-2]  # tokens without a query
    rows = rows if rows is not None else range(before, tokens)
    keys_of_a_block = tokens if window is None else min(tokens, 2 * window)
    elements = REFERENCE_ELEMENTS if q.device.type == "cpu" else REFERENCE_ELEMENTS_ON_A_GPU
    block = block or max(1, elements // (batch * heads * keys_of_a_block))
    scale = 1 / math.sqrt(q.shape[-1])
    outputs = []
    # The last blocks, which see the most keys, come first: their memory serves those that see fewer, while
    # tensors that grow from one block to the next would each need more, and leave holes.
    for start in reversed(range(rows.start, rows.stop, block)):
        stop = min(start + block, rows.stop)
        # No query of the block may see a key after its last one, or before its first one's window.
        first = 0 if window is None else max(0, start - window + 1)
        seen = take(keys, range(first, stop))
        asking = take(queries, range(start - before, stop - before))
        weights = weigh(encoding, *logits(encoding, asking, seen, scale, window), asking)
        outputs.append(encoding.mix(weights.to(v.dtype), v[:, :, first:stop], asking, seen))
    return torch.cat(outputs[::-1], -2)


def logits(
    encoding: LayerEncoding, queries: Side, keys: Side, scale: float, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logits of a block [B, H, Q, N] before the mask, and which keys are visible."""
    scores = encoding.scores(queries, keys, scale)
    # Everything up to the weights is float32 or better, whatever the model runs in.
    scores = scores.to(precise(scores.dtype))
    factor = encoding.logit_scale(queries)
    if factor is not None:
        scores = scores * factor
    bias = encoding.bias(queries, keys)
    if bias is not None:
        scores = scores + bias
    visible = visible_keys(encoding, queries, keys, window)
    return encoding.adjust(scores, visible, queries, keys), visible


def visible_keys(encoding: LayerEncoding, queries: Side, keys: Side, window: int | None) -> Tensor:
    """Return the mask of the keys that queries see, by the encoding and the window, [Q, N] or [H, Q, N]."""
    visible = encoding.visible(queries, keys)
    if window is None:
        return visible
    distance = queries.index.unsqueeze(-1) - keys.index
    return visible & (distance < window)


def ranges_in(encoding: LayerEncoding, start: int, stop: int, window: int | None) -> list[range]:
    """Return the ranges of keys that queries from `start` to `stop` may see."""
    ranges = encoding.ranges(start, stop)
    return ranges if window is None else intersection(ranges, latest(window, start, stop))


def weigh(encoding: LayerEncoding, scores: Tensor, visible: Tensor, queries: Side) -> Tensor:
    """Return the weights [B, H, Q, N] of logits, which sum to less than 1 where there is a null logit."""
    weights = encoding.weights(scores, visible)
    null = encoding.null_logit(queries)
    if null is None:
        return weights
    lse = scores.masked_fill(~visible, float("-inf")).logsumexp(-1, keepdim=True)
    return weights * share_of_keys(lse, null)


def share_of_keys(lse: Tensor, null: Tensor) -> Tensor:
    """Return the weight [B, H, Q, 1] of all keys together, from the log-sum-exp of their logits."""
    return (lse - null).sigmoid()


def project(encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, position: Tensor) -> tuple[Side, Side]:
    """Return all keys and the given queries, maybe of the last tokens alone, before and after `transform`."""
    position = position if position.dim() == 1 else position.unsqueeze(1)
    keys = Side(k, k, position, torch.arange(k.shape[-2], device=k.device), encoding.prepare(x))
    before = k.shape[-2] - q.shape[-2]  # tokens without a query
    last = take(keys, range(before, k.shape[-2])) if before else keys
    queries = last._replace(x=q, raw=q)
    turned_q, turned_k = encoding.transform(queries, keys)
    return queries._replace(x=turned_q), keys._replace(x=turned_k)


def times(x: Tensor, factor: Tensor | None) -> Tensor:
    """Return x [B, H, Q, *] times the `logit_scale` of its queries."""
    return x if factor is None else (x * factor).to(x.dtype)


def take(side: Side, *ranges: range) -> Side:
    """Return the tokens in these ranges of one side."""
    values = {name: joined(value, ranges, -1) for name, value in side.values.items()}
    return Side(
        joined(side.x, ranges, -2),
        joined(side.raw, ranges, -2),
        joined(side.position, ranges, -1),
        joined(side.index, ranges, -1),
        values,
    )


def joined(x: Tensor, ranges: Sequence[range], axis: int) -> Tensor:
    """Return the parts of x in these ranges of an axis, one after the other."""
    parts = [x.narrow(axis, part.start, len(part)) for part in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or float64 where that is the type already."""
    return torch.promote_types(dtype, torch.float32)
