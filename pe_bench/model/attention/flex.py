"""Attention on a GPU through PyTorch's FlexAttention: biases, windows and other masks in one fused kernel.

What is added to a score is computed where the score is, from small tensors that the kernel reads: a value of
each distance, or values of each query and each key. Gradients flow to them. Blocks that are hidden cost
nothing. FlexAttention is compiled: uncompiled, it makes tensors of T x T.

Letters: B batch, H query heads, T tokens, K head width, D model width.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.model.attention.fused import can_tabulate, distance_table
from pe_bench.model.attention.reference import (
    precise,
    project,
    share_of_keys,
    take,
    times,
    visible_keys,
)
from pe_bench.native.inductor import compiled

# Called with a score and the indices of its batch, head, query and key.
Added = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# The kernels multiply matrices of at least this width.
MIN_WIDTH = 16
# A kernel that reads a bias of each distance holds a block of these numbers for each of its stages, and with
# more stages than these it needs more shared memory than an H100 has.
STAGES_WITH_A_TABLE = 2
# So many masks of a window are kept, for the other layers and the next step.
KEPT_MASKS = 32


def can_flex(encoding: LayerEncoding, q: Tensor, position: Tensor) -> bool:
    """Return whether `fused_flex_attention` agrees with the reference for queries like `q` [B, H, T, K]."""
    if encoding.overrides("scores", "terms", "adjust", "weights", "mix") or q.dtype == torch.float64:
        return False
    if not encoding.overrides("bias", "distance_bias") or encoding.has_columns():
        return True
    return not encoding.overrides("bias") and can_tabulate(position)


def fused_flex_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int | None
) -> Tensor:
    """Serve encodings that `can_flex`; `window` as in `attention`."""
    queries, keys = project(encoding, x, q, k, position)
    null = encoding.null_logit(queries)
    scaled_q = times(queries.x, encoding.logit_scale(queries))
    wide = [_at_least(MIN_WIDTH, x) for x in (scaled_q, keys.x, v)]
    output, sums = flex(
        *wide,
        score_mod=added_to_scores(encoding, queries, keys),
        block_mask=block_mask(encoding, queries, keys, window),
        scale=1 / math.sqrt(q.shape[-1]),
        return_aux=AuxRequest(lse=null is not None),
        kernel_options=_kernel_options(encoding),
    )
    output = output[..., : v.shape[-1]]
    if null is None:
        return output
    return (output * share_of_keys(sums.lse.unsqueeze(-1), null)).to(v.dtype)


def _kernel_options(encoding: LayerEncoding) -> dict[str, Any] | None:
    reads_table = encoding.overrides("distance_bias") and not encoding.has_columns()
    return {"num_stages": STAGES_WITH_A_TABLE} if reads_table else None


def flex(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Run `flex_attention` compiled by itself, or as a part of what is being compiled around it."""
    if torch.compiler.is_compiling():
        return flex_attention(q, k, v, **options)
    # From the second length on, the length is a variable of the kernel. On a CPU, for tests, the operations
    # are run one by one.
    backend = "eager" if q.device.type == "cpu" else "inductor"
    return compiled(flex_attention, backend)(q, k, v, **options)


def added_to_scores(encoding: LayerEncoding, queries: Side, keys: Side) -> Added | None:
    """Return the encoding's bias, as FlexAttention adds it; nothing where there is none."""
    if not encoding.overrides("bias", "distance_bias"):
        return None
    if encoding.has_columns():
        return add_columns(*encoding.columns(queries, keys), like=queries.x)
    table = distance_table(encoding, queries.x)
    assert table is not None
    table_HT = table.to(precise(queries.x.dtype))

    def added(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # Keys after the query are masked, but an index before the table would be read all the same.
        return score + table_HT[head, (query - key).clamp(min=0)]

    return added


def add_columns(query_columns: Tensor, key_columns: Tensor, like: Tensor) -> Added:
    """Return a function that adds the product of columns [.., T, c] of the queries and the keys.

    Columns may be sums over the whole text whose differences count, and float32 is too short for these: each
    is two numbers of that type, the second one what the first leaves out.
    """
    columns_q = _in_two(query_columns, like)
    columns_k = _in_two(key_columns, like)

    def added(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        product, rest = 0, 0
        for (column_q, rest_q), (column_k, rest_k) in zip(columns_q, columns_k, strict=True):
            # Read once: FlexAttention has a gradient for one reading of a tensor only.
            query_value, key_value = column_q[batch, head, query], column_k[batch, head, key]
            product = product + query_value * key_value
            rest = rest + query_value * rest_k[batch, head, key] + rest_q[batch, head, query] * key_value
        return score + (product + rest)

    return added


def _in_two(columns: Tensor, like: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each column, spread over batch and heads of `like`, as two tensors [B, H, T] whose sum it is."""
    spread = columns.expand(*like.shape[:-1], columns.shape[-1])
    pairs = []
    for column in spread.unbind(-1):
        rounded = column.to(precise(like.dtype)).contiguous()
        # The gradient of the sum is that of its first part.
        rest = (column - rounded).detach().to(rounded.dtype).contiguous()
        pairs.append((rounded, rest))
    return pairs


def _at_least(width: int, x: Tensor) -> Tensor:
    return functional.pad(x, (0, max(0, width - x.shape[-1])))


# Which keys the queries of FlexAttention see: blocks are visible, hidden or mixed, and those have tiles.
#
# Letters: B batch, H query heads, T tokens, Q queries and N keys of one chunk, n blocks of T tokens.

# Called with the indices of batch, head, query and key.
Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# So many queries and so many keys are a block: FlexAttention's own number.
BLOCK = 128
# `visible` is asked about so many pairs of a query and a key at a time.
CHUNK_ELEMENTS = 2**24


def block_mask(encoding: LayerEncoding, queries: Side, keys: Side, window: int | None) -> BlockMask:
    """Return the mask of what each query sees, by `visible` and the window."""
    if encoding.overrides("visible"):
        return mask_of_tiles(encoding, queries, keys, window)
    tokens = queries.x.shape[-2]
    return mask_of_window(tokens, tokens if window is None else window, queries.x.device)


@lru_cache(KEPT_MASKS)
def mask_of_window(tokens: int, window: int, device: torch.device) -> BlockMask:
    """Return the mask that shows the last `window` tokens, the query's own among them."""
    block = torch.arange(_blocks(tokens), device=device)
    middle = BLOCK * (block.unsqueeze(-1) - block)
    nearest = middle - (BLOCK - 1)
    furthest = middle + (BLOCK - 1)
    some = (furthest >= 0) & (nearest < window)
    # In a block that the text does not fill, some rows are not queries.
    filled = (block < tokens // BLOCK).unsqueeze(-1)
    full = (nearest >= 0) & (furthest < window) & filled
    # As a tensor, so that all windows are one kernel.
    limit = torch.tensor(window, device=device)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < limit)

    return _blocked(some, full, seen, tokens)


def mask_of_tiles(encoding: LayerEncoding, queries: Side, keys: Side, window: int | None) -> BlockMask:
    """Return the mask that `visible` gives the reference, whatever it is: mixed blocks are tiles.

    Queries are taken in chunks: never all pairs at once.
    """
    tokens = queries.x.shape[-2]
    device = queries.x.device
    blocks = _blocks(tokens)
    somes, fulls, tile_indices = [], [], []
    # Tile 0 hides everything, tile 1 nothing.
    hidden = torch.zeros(BLOCK, BLOCK, dtype=torch.bool, device=device)
    tiles = [torch.stack([hidden, ~hidden])]
    count = torch.ones((), dtype=torch.long, device=device)  # of tiles so far, less one
    chunk = BLOCK * max(1, CHUNK_ELEMENTS // (BLOCK * tokens))
    for start in range(0, tokens, chunk):
        rows = _visible_rows(encoding, queries, keys, window, start, min(start + chunk, tokens))
        tiled = rows.view(rows.shape[0], -1, BLOCK, blocks, BLOCK).transpose(2, 3)
        some, full = tiled.flatten(3).any(-1), tiled.flatten(3).all(-1)
        mixed = some & ~full
        numbered = count + mixed.flatten().cumsum(0).view_as(mixed)
        count = count + mixed.sum()
        somes.append(some)
        fulls.append(full)
        tile_indices.append(torch.where(mixed, numbered, full.long()))
        tiles.append(tiled[mixed])
    some, full, tile_index = (torch.cat(parts, 1) for parts in (somes, fulls, tile_indices))
    tile = torch.cat(tiles)
    tile_index = tile_index.int()
    is_shared = tile_index.shape[0] == 1

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        index = tile_index[0 if is_shared else head, query // BLOCK, key // BLOCK]
        return tile[index, query % BLOCK, key % BLOCK]

    return _blocked(some, full, seen, tokens)


def _visible_rows(
    encoding: LayerEncoding, queries: Side, keys: Side, window: int | None, start: int, stop: int
) -> Tensor:
    """Return which keys these queries see [1 or H, Q, N], in whole blocks: what no text fills is hidden."""
    visible = visible_keys(encoding, take(queries, range(start, stop)), keys, window)
    rows = visible if visible.dim() == 3 else visible.unsqueeze(0)
    return functional.pad(rows, (0, -rows.shape[2] % BLOCK, 0, -rows.shape[1] % BLOCK))


def _blocked(some: Tensor, full: Tensor, seen: Seen, tokens: int) -> BlockMask:
    """Return the mask `seen`: some blocks [.., n, n] have visible pairs, and some of these no others."""
    lists = *_listed(some & ~full), *_listed(full)
    return BlockMask.from_kv_blocks(*lists, BLOCK, mask_mod=seen, seq_lengths=(tokens, tokens))


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of each row [.., n, n] are chosen, [1, 1 or H, n], and which, first in [.., n, n]."""
    chosen = chosen.view(1, -1, *chosen.shape[-2:])
    order = chosen.int().argsort(dim=-1, descending=True, stable=True).int().contiguous()
    return chosen.sum(-1).int(), order


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)
