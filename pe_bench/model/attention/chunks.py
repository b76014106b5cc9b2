"""Fused attention in chunks of queries, over the visible keys of each chunk.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one chunk, K head width, D model width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, ScoreTerm, Side, precise
from pe_bench.encodings.relative.tables import Relative
from pe_bench.model.attention.fused import fused, fused_with_lse, merge_by_lse
from pe_bench.model.attention.reference import (
    apply_logit_scale,
    make_sides,
    ranges_in,
    select_ranges,
    select_tokens,
    visible_keys,
)

CHUNK_QUERIES = 256
MAX_CHUNK_ELEMENTS = 2**21  # the most elements of a bias or of near scores [B, H, Q, N] in a chunk


def fused_chunk_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int | None
) -> Tensor:
    """Compute attention for a window, and for encodings that hide keys, add a bias or have `terms` of scores.

    Queries are computed in chunks, the last chunk first. The arguments are as in `attention`.
    """
    queries, keys = make_sides(encoding, x, q, k, position)
    tokens = k.shape[-2]
    before = tokens - q.shape[-2]  # tokens without a query
    outputs = []
    # The last chunks, which see the most keys, come first: later chunks fit into their memory.
    for start, stop, ranges in reversed(_chunks(encoding, q, range(before, tokens), window)):
        asking = select_tokens(queries, range(start - before, stop - before))
        seen = select_tokens(keys, *ranges)
        values = select_ranges(v, ranges, -2)
        outputs.append(_attend_chunk(encoding, asking, seen, values, window))
    outputs.reverse()
    return torch.cat(outputs, -2)


def _chunks(
    encoding: LayerEncoding, q: Tensor, rows: range, window: int | None
) -> list[tuple[int, int, list[range]]]:
    """Split the queries with the indices `rows` into chunks, in order.

    Of each chunk: its first index, the index after its last, and ranges that hold all keys it sees.
    """
    is_biased = encoding.overrides("bias", "distance_bias")
    batch, heads, _, _ = q.shape
    chunks = []
    start = rows.start
    while start < rows.stop:
        stop = min(start + CHUNK_QUERIES, rows.stop)
        ranges = ranges_in(encoding, start, stop, window)
        key_count = sum(map(len, ranges))
        fitting = MAX_CHUNK_ELEMENTS // (batch * heads * key_count)
        if is_biased and fitting < stop - start:
            stop = start + max(1, fitting)
            ranges = ranges_in(encoding, start, stop, window)
        chunks.append((start, stop, ranges))
        start = stop
    return chunks


def _attend_chunk(
    encoding: LayerEncoding, queries: Side, keys: Side, v: Tensor, window: int | None
) -> Tensor:
    """Return the output [B, H, Q, K] of a chunk of queries over their visible keys."""
    visible = visible_keys(encoding, queries, keys, window)
    factor = encoding.logit_scale(queries)
    scale = 1 / math.sqrt(queries.raw.shape[-1])
    bias = encoding.bias(queries, keys)
    null = encoding.null_logit(queries)
    if not encoding.overrides("terms"):
        mask = _mask_or_bias(visible, bias, v)
        return fused(apply_logit_scale(queries.x, factor), keys.x, v, mask, scale, null)
    terms = _terms_in(encoding.terms(queries, keys), visible)
    terms = [(term._replace(q=apply_logit_scale(term.q, factor)), seen) for term, seen in terms]
    masks = []
    for term, seen in terms:
        seen_bias = None if bias is None else bias[..., seen]
        masks.append(_mask_or_bias(term.mask[..., seen], seen_bias, v))
    if torch.is_grad_enabled() or v.device.type != "cpu":
        return _attend_once(terms, masks, v, scale, null)
    parts = []
    for (term, seen), mask in zip(terms, masks, strict=True):
        seen_k = term.k[..., seen, :]
        seen_v = v[..., seen, :]
        parts.append(fused_with_lse(term.q, seen_k, seen_v, mask, scale))
    return merge_by_lse(parts, null).to(v.dtype)


def _attend_once(
    terms: Sequence[tuple[ScoreTerm, slice]],
    masks: list[Tensor],
    v: Tensor,
    scale: float,
    null: Tensor | None,
) -> Tensor:
    """Return the output [B, H, Q, K] over all terms by one call of `fused`, which has gradients.

    Each key appears once for each term, with zeros in the columns of other terms.
    """
    width = terms[0][0].q.shape[-1]
    wide_k = []
    for index, (term, seen) in enumerate(terms):
        terms_after = len(terms) - index - 1
        padding = (index * width, terms_after * width)
        wide_k.append(functional.pad(term.k[..., seen, :], padding))
    values = torch.cat([v[..., seen, :] for _, seen in terms], -2)
    wide_q = torch.cat([term.q for term, _ in terms], -1)
    return fused(wide_q, torch.cat(wide_k, -2), values, torch.cat(masks, -1), scale, null)


def _terms_in(terms: Sequence[ScoreTerm], visible: Tensor) -> list[tuple[ScoreTerm, slice]]:
    """Return the terms with visible pairs, each with the slice from its first to its last visible key.

    visible: the mask of visible keys; hidden pairs are removed from the masks of the terms.
    """
    shown = []
    for term in terms:
        mask = visible & term.mask
        # The maximum of bytes is many times faster than `any`.
        is_seen = mask.flatten(0, -2).view(torch.uint8).amax(0)
        keys = is_seen.nonzero()
        if len(keys):
            seen = slice(int(keys[0]), int(keys[-1]) + 1)
            shown.append((term._replace(mask=mask), seen))
    return shown


def _mask_or_bias(visible: Tensor, bias: Tensor | None, v: Tensor) -> Tensor:
    """Return a mask for `fused`, [1 or B, 1 or H, Q, N] or [Q, N]: of numbers to add if there is a bias.

    v: only for its type and device.
    """
    if bias is None:
        return visible.unsqueeze(0) if visible.dim() == 3 else visible
    # The CPU's kernel takes a float32 mask for half precision queries; other kernels need one type.
    dtype = precise(v.dtype) if v.device.type == "cpu" else v.dtype
    mask = bias.to(dtype).masked_fill(~visible, float("-inf"))
    return mask if mask.dim() == 4 else mask.unsqueeze(0)


# Attention with a table of rows by distance: near keys through shifted views, far keys by the fused kernel.
#
# Near keys are at a distance with its own row; the last row is used for all far keys. A number added to all
# scores of a query changes no weight, so rows are taken relative to the last row, and products with far keys
# are plain. The outputs over near and far keys are merged by their log-sum-exps.
#
# A band holds the table's products for the near pairs, with R rows. Rows [.., R] of neighbouring queries,
# each shifted by one place, are a view of the same memory with strides (R - 1, 1): no number is gathered.
#
# Letters: B batch, H query heads, T tokens, Q queries and N near keys of one chunk, R rows, K head width.


def fused_relative_attention(
    encoding: Relative, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Compute attention for encodings with tables, at positions that rise by 1, without gradients.

    The arguments are as in `attention`, with queries of all tokens.
    """
    # Autocast would reduce scores, log-sum-exps and weights to half precision; they are float32 here.
    with torch.autocast(q.device.type, enabled=False):
        near = NearKeyAttention(encoding, q)
        outputs = []
        for start in range(0, q.shape[-2], near.size):
            outputs.append(_attend_near_and_far(near, q, k, v, start))
        return torch.cat(outputs, -2)


def _attend_near_and_far(near: "NearKeyAttention", q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
    """Return the output [B, H, Q, K] of the queries from `start` to `start + near.size`, over all their keys.

    q, k, v: of the whole text, [B, H, T, K].
    """
    stop = min(start + near.size, q.shape[-2])
    first = max(0, start - near.reach)
    chunk = q[:, :, start:stop]
    parts = [near(chunk, k[:, :, first:stop], v[:, :, first:stop])]
    if first:
        far_k = k[:, :, :first]
        far_v = v[:, :, :first]
        parts.append(fused_with_lse(near.add_far_row(chunk), far_k, far_v, None, near.scale))
    output = merge_by_lse(parts)
    if near.last_relative_value is not None:
        output = output + near.last_relative_value
    return output.to(v.dtype)


class NearKeyAttention:
    """Attention to near keys, for chunks of queries like `q` [B, H, T, K].

    Near keys are at a distance with a row of its own in the tables; all farther keys share the last row.
    """

    def __init__(self, encoding: Relative, q: Tensor):
        tables = encoding.tables()
        dtype = precise(q.dtype)
        root = math.sqrt(q.shape[-1])
        self.scale = tables.factor / root
        self._relative_keys, _ = _relative_to_last(tables.relative_keys, dtype)
        self._relative_queries, self._last_relative_query = _relative_to_last(tables.relative_queries, dtype)
        self._relative_values, self.last_relative_value = _relative_to_last(tables.relative_values, dtype)
        tables_by_distance = (self._relative_keys, self._relative_queries, self._relative_values)
        rows = [table.shape[-2] for table in tables_by_distance if table is not None]
        # The number of near keys before a query.
        self.reach = max([1, *rows]) - 1
        batch, heads, _, _ = q.shape
        keys_of_a_chunk = CHUNK_QUERIES + self.reach
        fitting = MAX_CHUNK_ELEMENTS // (batch * heads * keys_of_a_chunk)
        self.size = max(1, min(CHUNK_QUERIES, fitting))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [B, H, Q, K] and log-sum-exp [B, H, Q, 1] over the near keys of these queries."""
        q = q.to(precise(q.dtype))
        k = k.to(precise(k.dtype))
        before = k.shape[-2] - q.shape[-2]
        scores = self.add_far_row(q) @ k.mT
        if self._relative_keys is not None:
            scores += queries_band(q @ self._relative_keys.mT, before)
        if self._relative_queries is not None:
            scores += keys_band(k @ self._relative_queries.mT, before)
        scores *= self.scale
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(before + 1)
        scores.masked_fill_(later, float("-inf"))
        lse = scores.logsumexp(-1, keepdim=True)
        weights = scores.sub_(lse).exp_()
        output = weights @ v.to(weights.dtype)
        if self._relative_values is not None:
            weights_by_distance = by_distance(weights, self._relative_values.shape[-2])
            output += weights_by_distance @ self._relative_values.flip(-2)
        return output, lse

    def add_far_row(self, q: Tensor) -> Tensor:
        """Add to queries [B, H, Q, K] the row of `relative_queries` that all far keys share, its last row."""
        if self._last_relative_query is None:
            return q
        return q + self._last_relative_query.to(q.dtype)


def queries_band(products: Tensor, before: int) -> Tensor:
    """Return, for each query and key, the query's product with the row of their distance, [.., Q, N].

    products: of queries with the rows of a table by distance, [.., Q, R]. before: the number of keys before
    the first query. The result is zero at distances of R or more, and arbitrary for later keys.
    """
    queries, rows = products.shape[-2:]
    band = _shifted(products.flip(-1), (queries, queries + before), rows - 1 - before)
    return band.triu(before - rows + 1)


def keys_band(products: Tensor, before: int) -> Tensor:
    """Return, for each query and key, the key's product with the row of their distance, [.., Q, N].

    products: of keys with the R rows of a table by distance, [.., N, R]. before: the number of keys before
    the first query. The result is zero at distances of R or more, and arbitrary for later keys.
    """
    keys, rows = products.shape[-2:]
    return _shifted(products, (keys, keys - before), before).tril(rows - 1 - before).mT


def by_distance(weights: Tensor, rows: int) -> Tensor:
    """Return weights [.., Q, N] ordered by distance, [.., Q, rows]: from distance rows - 1 down to 0."""
    queries, keys = weights.shape[-2:]
    # Padded with keys before the text: every query has a key at each distance.
    padded = functional.pad(weights, (queries - 1 + rows - keys, 0))
    strides = (*padded.stride()[:-2], padded.shape[-1] + 1, 1)
    return padded.as_strided((*weights.shape[:-1], rows), strides)


def _shifted(x: Tensor, shape: tuple[int, int], first: int) -> Tensor:
    """Return the view [.., *shape] of x [.., n, R] whose entry (i, j) is x[.., i, first + j - i]."""
    x = x.contiguous()
    strides = (*x.stride()[:-2], x.shape[-1] - 1, 1)
    return x.as_strided((*x.shape[:-2], *shape), strides, x.storage_offset() + first)


def _relative_to_last(table: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Return two parts of a table: its earlier rows minus the last row, and the last row.

    A part without rows is None.
    """
    if table is None:
        return None, None
    rest, last = table.to(dtype).tensor_split([-1], -2)
    if not rest.shape[-2]:
        return None, last
    return rest - last, last
