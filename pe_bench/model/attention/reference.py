"""The reference for all encodings, which defines the result: every hook is called, in blocks of queries.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side, precise
from pe_bench.encodings.masks.ranges import intersection, window_ranges

# Elements of the largest tensor, B * H * queries * T scores: more overflow the caches of a processor and took
# two to four times as long; fewer leave a GPU idle.
REFERENCE_ELEMENTS = 2**20
REFERENCE_ELEMENTS_ON_A_GPU = 2**28


def gated(encoding: LayerEncoding, x: Tensor, read: Tensor, rows: range) -> Tensor:
    """Multiply `read`, the heads' output [B, H, Q, K] for the queries `rows`, by the encoding's gate, if any.

    x: the layer's input [B, T, D].
    """
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
    """Return the attention output [B, H, Q, K] of `rows`, by every hook, in blocks of queries.

    q may be of the last tokens alone; k and v are of all tokens. window: as in `attention`. block: queries of
    a block; None: as many as fit the memory. rows: indices of queries; None: all of q.
    """
    if rows is None:
        tokens = k.shape[-2]
        rows = range(tokens - q.shape[-2], tokens)
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
    """Return the output of `reference_attention` for softmax attention, without convolution and gate."""
    queries, keys = make_sides(encoding, x, q, k, position)
    batch, heads, _, _ = q.shape
    tokens = k.shape[-2]
    before = tokens - q.shape[-2]  # tokens without a query
    rows = rows if rows is not None else range(before, tokens)
    keys_of_a_block = tokens if window is None else min(tokens, 2 * window)
    elements = REFERENCE_ELEMENTS if q.device.type == "cpu" else REFERENCE_ELEMENTS_ON_A_GPU
    row_elements = batch * heads * keys_of_a_block
    block = block or max(1, elements // row_elements)
    scale = 1 / math.sqrt(q.shape[-1])
    outputs = []
    # The last blocks, which see the most keys, come first: later blocks fit into their memory. Tensors that
    # grow from block to block would fragment the memory.
    for start in reversed(range(rows.start, rows.stop, block)):
        stop = min(start + block, rows.stop)
        # No query of the block sees a key after its last token, or before the window of its first token.
        first = 0 if window is None else max(0, start - window + 1)
        seen = select_tokens(keys, range(first, stop))
        asking = select_tokens(queries, range(start - before, stop - before))
        scores, visible = logits(encoding, asking, seen, scale, window)
        weights = attention_weights(encoding, scores, visible, asking).to(v.dtype)
        outputs.append(encoding.mix(weights, v[:, :, first:stop], asking, seen))
    outputs.reverse()
    return torch.cat(outputs, -2)


def logits(
    encoding: LayerEncoding, queries: Side, keys: Side, scale: float, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logits of a block [B, H, Q, N] before the mask, and the mask of visible keys.

    scale: of the products of queries and keys, 1/sqrt(K).
    """
    scores = encoding.scores(queries, keys, scale)
    # Scores and weights are float32 or better, in every type of the model.
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
    """Return the mask of visible keys under the encoding and the window, [Q, N] or [H, Q, N]."""
    visible = encoding.visible(queries, keys)
    if window is None:
        return visible
    distance = queries.index.unsqueeze(-1) - keys.index
    return visible & (distance < window)


def ranges_in(encoding: LayerEncoding, start: int, stop: int, window: int | None) -> list[range]:
    """Return ranges of indices outside which the queries from `start` to `stop` - 1 see no key."""
    ranges = encoding.ranges(start, stop)
    return ranges if window is None else intersection(ranges, window_ranges(window, start, stop))


def attention_weights(encoding: LayerEncoding, scores: Tensor, visible: Tensor, queries: Side) -> Tensor:
    """Return the weights [B, H, Q, N] of logits; with a null logit their sum is below 1."""
    weights = encoding.weights(scores, visible)
    null = encoding.null_logit(queries)
    if null is None:
        return weights
    shown = scores.masked_fill(~visible, float("-inf"))
    lse = shown.logsumexp(-1, keepdim=True)
    return weights * share_of_keys(lse, null)


def share_of_keys(lse: Tensor, null: Tensor) -> Tensor:
    """Return the weight [B, H, Q, 1] that a null logit leaves to all keys, whose logits have this `lse`."""
    return (lse - null).sigmoid()


def make_sides(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, position: Tensor
) -> tuple[Side, Side]:
    """Return queries and keys as an encoding's hooks read them, after `prepare` and `transform`.

    Queries are of the last tokens, keys of all tokens. position: [T] or [B, T].
    """
    position = position if position.dim() == 1 else position.unsqueeze(1)
    tokens = k.shape[-2]
    index = torch.arange(tokens, device=k.device)
    keys = Side(k, k, position, index, encoding.prepare(x))
    before = tokens - q.shape[-2]  # tokens without a query
    last = select_tokens(keys, range(before, tokens)) if before else keys
    queries = last._replace(x=q, raw=q)
    turned_q, turned_k = encoding.transform(queries, keys)
    return queries._replace(x=turned_q), keys._replace(x=turned_k)


def apply_logit_scale(x: Tensor, factor: Tensor | None) -> Tensor:
    """Return queries x [B, H, Q, *] times their `logit_scale`; None: unchanged."""
    return x if factor is None else (x * factor).to(x.dtype)


def select_tokens(side: Side, *ranges: range) -> Side:
    """Return the part of a side in ranges of its tokens, counted from its first token whatever its index."""
    return Side(
        x=select_ranges(side.x, ranges, -2),
        raw=select_ranges(side.raw, ranges, -2),
        position=select_ranges(side.position, ranges, -1),
        index=select_ranges(side.index, ranges, -1),
        values={name: select_ranges(value, ranges, -1) for name, value in side.values.items()},
    )


def select_ranges(x: Tensor, ranges: Sequence[range], axis: int) -> Tensor:
    """Return the parts of x in ranges along an axis, concatenated."""
    parts = [x.narrow(axis, part.start, len(part)) for part in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)
