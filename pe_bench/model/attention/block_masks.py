"""Which keys the queries of FlexAttention see: blocks are visible, hidden or mixed, and those have tiles.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one chunk, n blocks of T tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.shared.ranges import intersection, latest
from pe_bench.model.attention.reference import slice_tokens

# Called with the indices of batch, head, query and key.
Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# So many queries and so many keys are a block: FlexAttention's own number.
BLOCK = 128
# `visible` is asked about so many pairs of a query and a key at a time.
CHUNK_ELEMENTS = 2**24


def block_mask(encoding: LayerEncoding, queries: Side, keys: Side, window: int | None) -> BlockMask:
    """Return the mask of what each query sees, by `visible` and the window."""
    tokens, device = queries.x.shape[-2], queries.x.device
    if encoding.overrides("visible"):
        return mask_of_tiles(encoding, queries, keys, window)
    return mask_of_window(tokens, tokens if window is None else window, device)


def mask_of_window(tokens: int, window: int, device: torch.device) -> BlockMask:
    """Return the mask that shows the last `window` tokens, the query's own among them."""
    block = torch.arange(_blocks(tokens), device=device)
    middle = BLOCK * (block.unsqueeze(-1) - block)
    nearest, furthest = middle - (BLOCK - 1), middle + (BLOCK - 1)
    some = (furthest >= 0) & (nearest < window)
    # In a block that the text does not fill, some rows are not queries.
    filled = (block < tokens // BLOCK).unsqueeze(-1)
    whole = (nearest >= 0) & (furthest < window) & filled
    # As a tensor, so that all windows are one kernel.
    limit = torch.tensor(window, device=device)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < limit)

    return _blocked(some, whole, seen, tokens)


def mask_of_tiles(encoding: LayerEncoding, queries: Side, keys: Side, window: int | None) -> BlockMask:
    """Return the mask that `visible` gives the reference, whatever it is: mixed blocks are tiles.

    Queries are taken in chunks, with the keys that are in their `ranges`: never all pairs at once.
    """
    tokens, device = queries.x.shape[-2], queries.x.device
    blocks = _blocks(tokens)
    somes, wholes, places = [], [], []
    # Tile 0 hides everything, tile 1 nothing.
    tiles = [torch.stack([torch.zeros(BLOCK, BLOCK), torch.ones(BLOCK, BLOCK)]).bool().to(device)]
    count = torch.ones((), dtype=torch.long, device=device)  # of tiles so far, less one
    chunk = BLOCK * max(1, CHUNK_ELEMENTS // (BLOCK * tokens))
    for start in range(0, tokens, chunk):
        rows = _visible_rows(encoding, queries, keys, window, start, min(start + chunk, tokens))
        tiled = rows.view(rows.shape[0], -1, BLOCK, blocks, BLOCK).transpose(2, 3)
        some, whole = tiled.flatten(3).any(-1), tiled.flatten(3).all(-1)
        mixed = some & ~whole
        numbered = count + mixed.flatten().cumsum(0).view_as(mixed)
        count = count + mixed.sum()
        somes.append(some)
        wholes.append(whole)
        places.append(torch.where(mixed, numbered, whole.long()))
        tiles.append(tiled[mixed])
    some, whole, place = (torch.cat(parts, 1) for parts in (somes, wholes, places))
    return _blocked(some, whole, _seen_in(torch.cat(tiles), place.int()), tokens)


def _seen_in(tile: Tensor, place: Tensor) -> Seen:
    """Return a function that reads tiles [.., BLOCK, BLOCK], one of them for each block [1 or H, n, n]."""
    is_shared = place.shape[0] == 1

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = place[0 if is_shared else head, query // BLOCK, key // BLOCK]
        return tile[own, query % BLOCK, key % BLOCK]

    return seen


def _visible_rows(
    encoding: LayerEncoding, queries: Side, keys: Side, window: int | None, start: int, stop: int
) -> Tensor:
    """Return which keys these queries see [1 or H, Q, N], in whole blocks: what no text fills is hidden."""
    tokens = queries.x.shape[-2]
    ranges = encoding.ranges(start, stop)
    found = []
    for one in ranges if window is None else intersection(ranges, latest(window, start, stop)):
        some_queries, some_keys = slice_tokens(queries, start, stop), slice_tokens(keys, one.start, one.stop)
        visible = encoding.visible(some_queries, some_keys)
        if window is not None:
            visible = visible & (some_queries.index.unsqueeze(-1) - some_keys.index < window)
        found.append((one, visible if visible.dim() == 3 else visible.unsqueeze(0)))
    heads = max((visible.shape[0] for _, visible in found), default=1)
    shape = heads, BLOCK * _blocks(stop - start), BLOCK * _blocks(tokens)
    rows = torch.zeros(shape, dtype=torch.bool, device=queries.x.device)
    for one, visible in found:
        rows[:, : stop - start, one.start : one.stop] = visible
    return rows


def _blocked(some: Tensor, whole: Tensor, seen: Seen, tokens: int) -> BlockMask:
    """Return the mask `seen`: some blocks [.., n, n] have visible pairs, and some of these no others."""
    mixed = some & ~whole
    kv_num_blocks, kv_indices = _listed(mixed)
    full_kv_num_blocks, full_kv_indices = _listed(whole)
    q_num_blocks, q_indices = _listed(mixed.mT)
    full_q_num_blocks, full_q_indices = _listed(whole.mT)
    return BlockMask(
        seq_lengths=(tokens, tokens),
        kv_num_blocks=kv_num_blocks,
        kv_indices=kv_indices,
        full_kv_num_blocks=full_kv_num_blocks,
        full_kv_indices=full_kv_indices,
        q_num_blocks=q_num_blocks,
        q_indices=q_indices,
        full_q_num_blocks=full_q_num_blocks,
        full_q_indices=full_q_indices,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=seen,
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of each row [.., n, n] are chosen, [1, 1 or H, n], and which, first in [.., n, n]."""
    chosen = chosen.view(1, -1, *chosen.shape[-2:])
    order = chosen.int().argsort(dim=-1, descending=True, stable=True).int().contiguous()
    return chosen.sum(-1).int(), order


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)
