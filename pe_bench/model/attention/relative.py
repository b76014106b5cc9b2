"""Attention with a table of rows by distance: near keys through shifted views, all others fused.

Near are the keys that a query of the chunk sees at a distance with a row of its own; farther back one row
serves all. What is added to all scores of a query changes no weight: rows count from the last one, and
products with far keys are plain. Each part has an output and a log-sum-exp, by which they are merged.

A band holds what the near pairs have of R rows. Rows [.., R] of neighbouring queries, each shifted by one
against the one before, are a view of the same memory, with strides (R - 1, 1): nothing is gathered.

Letters: B batch, H query heads, T tokens, Q queries and N near keys of one chunk, R rows, K head width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.shared.relative import Relative
from pe_bench.model.attention.fused import fused_with_lse, merge_by_lse
from pe_bench.model.attention.reference import precise

# So many queries are taken at a time, and fewer where near scores [B, H, Q, N] would have more elements.
CHUNK_QUERIES = 256
CHUNK_ELEMENTS = 2**21


def fused_relative_attention(
    encoding: Relative, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings that have tables, at positions that count tokens, where no gradient is wanted."""
    # Autocast would reduce scores, log-sum-exps and weights to half precision; they are float32 here.
    with torch.autocast(q.device.type, enabled=False):
        near = Near(encoding, q)
        starts = range(0, q.shape[-2], near.size)
        return torch.cat([_attend(near, q, k, v, start) for start in starts], -2)


def _attend(near: "Near", q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
    """Return the output [B, H, Q, K] of the chunk of queries that begins at `start`."""
    stop, first = min(start + near.size, q.shape[-2]), max(0, start - near.reach)
    chunk = q[:, :, start:stop]
    parts = [near(chunk, k[:, :, first:stop], v[:, :, first:stop])]
    if first:
        parts.append(fused_with_lse(near.far(chunk), k[:, :, :first], v[:, :, :first], None, near.scale))
    output = merge_by_lse(parts)
    return (output if near.last_of_value is None else output + near.last_of_value).to(v.dtype)


class Near:
    """The attention to near keys of `encoding`, for chunks of queries like `q` [B, H, T, K]."""

    def __init__(self, encoding: Relative, q: Tensor):
        tables, dtype = encoding.tables(), precise(q.dtype)
        self.scale = tables.factor / math.sqrt(q.shape[-1])
        self._of_query, _ = _from_the_last(tables.of_query, dtype)
        self._of_key, self._last_of_key = _from_the_last(tables.of_key, dtype)
        self._of_value, self.last_of_value = _from_the_last(tables.of_value, dtype)
        others = (self._of_query, self._of_key, self._of_value)
        rows = [table.shape[-2] for table in others if table is not None]
        # How many keys before a query have a row of their own.
        self.reach = max(0, max(rows, default=0) - 1)
        fitting = CHUNK_ELEMENTS // (q.shape[0] * q.shape[1] * (CHUNK_QUERIES + self.reach))
        self.size = max(1, min(CHUNK_QUERIES, fitting))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [B, H, Q, K] and log-sum-exp [B, H, Q, 1] over the near keys of these queries."""
        q, k = q.to(precise(q.dtype)), k.to(precise(k.dtype))
        before = k.shape[-2] - q.shape[-2]
        scores = self.far(q) @ k.mT
        if self._of_query is not None:
            scores += queries_band(q @ self._of_query.mT, before)
        if self._of_key is not None:
            scores += keys_band(k @ self._of_key.mT, before)
        scores *= self.scale
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(before + 1), float("-inf"))
        lse = scores.logsumexp(-1, keepdim=True)
        weights = scores.sub_(lse).exp_()
        output = weights @ v.to(weights.dtype)
        if self._of_value is not None:
            output += by_distance(weights, self._of_value.shape[-2]) @ self._of_value.flip(-2)
        return output, lse

    def far(self, q: Tensor) -> Tensor:
        """Return what the queries [B, H, Q, K] are to a key that has the last row."""
        return q if self._last_of_key is None else q + self._last_of_key.to(q.dtype)


def queries_band(products: Tensor, before: int) -> Tensor:
    """Return the band [.., Q, N] of products [.., Q, R] of queries with rows.

    `before` keys are no query's own. The band is zero farther back than there are rows; for keys after
    the query it may be anything.
    """
    queries, rows = products.shape[-2:]
    band = _shifted(products.flip(-1), (queries, queries + before), rows - 1 - before)
    return band.triu(before - rows + 1)


def keys_band(products: Tensor, before: int) -> Tensor:
    """Return the same band of products [.., N, R] of keys with rows."""
    keys, rows = products.shape[-2:]
    return _shifted(products, (keys, keys - before), before).tril(rows - 1 - before).mT


def by_distance(weights: Tensor, rows: int) -> Tensor:
    """Return the weights [.., Q, N] at each of so many distances, [.., Q, rows], the farthest first."""
    queries, keys = weights.shape[-2:]
    # Keys before the text, so that every query has one at each distance.
    padded = functional.pad(weights, (queries - 1 + rows - keys, 0))
    strides = (*padded.stride()[:-2], padded.shape[-1] + 1, 1)
    return padded.as_strided((*weights.shape[:-1], rows), strides)


def _shifted(x: Tensor, shape: tuple[int, int], first: int) -> Tensor:
    """Return the view [.., *shape] of x [.., n, R] whose entry (i, j) is x[.., i, first + j - i]."""
    x = x.contiguous()
    strides = (*x.stride()[:-2], x.shape[-1] - 1, 1)
    return x.as_strided((*x.shape[:-2], *shape), strides, x.storage_offset() + first)


def _from_the_last(table: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Return the rows but the last, less the last one, if there are any; and the last one."""
    if table is None:
        return None, None
    others, last = table.to(dtype).tensor_split([-1], -2)
    return others - last if others.shape[-2] else None, last
