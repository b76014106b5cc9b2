"""Attention on a GPU through PyTorch's FlexAttention: biases, windows and other masks in one fused kernel.

The kernel computes the bias of a score from small tensors, which receive gradients: one value for each
distance, or values of each query and each key. Hidden blocks cost nothing. FlexAttention is compiled, because
uncompiled it makes tensors of T x T.

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

from pe_bench.encodings.base import LayerEncoding, Side, precise
from pe_bench.model.attention.fused import can_tabulate, distance_table
from pe_bench.model.attention.reference import (
    apply_logit_scale,
    make_sides,
    select_tokens,
    share_of_keys,
    visible_keys,
)
from pe_bench.native.inductor import compiled

# Called with a score and the indices of its batch, head, query and key; returns the new score.
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

MIN_KERNEL_WIDTH = 16  # the smallest width of the matrices that the kernels multiply
# Pipeline stages of a kernel that reads a bias by distance. It holds a block of biases for each stage, and
# more stages would need more shared memory than an H100 has.
PIPELINE_STAGES_WITH_TABLE = 2
CACHED_WINDOW_MASKS = 32  # masks of windows, cached for other layers and the next step


def can_flex(encoding: LayerEncoding, q: Tensor, position: Tensor) -> bool:
    """Return true if `fused_flex_attention` agrees with the reference for queries like `q` [B, H, T, K]."""
    has_own_scores = encoding.overrides("scores", "terms", "adjust", "weights", "mix")
    if has_own_scores or q.dtype == torch.float64:
        return False
    if not encoding.overrides("bias", "distance_bias") or encoding.has_columns():
        return True
    return not encoding.overrides("bias") and can_tabulate(position)


def fused_flex_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int | None
) -> Tensor:
    """Compute attention for encodings that `can_flex` allows.

    The arguments are as in `attention`, with queries of all tokens.
    """
    queries, keys = make_sides(encoding, x, q, k, position)
    null = encoding.null_logit(queries)
    scaled_q = apply_logit_scale(queries.x, encoding.logit_scale(queries))
    wide = [_padded_to(MIN_KERNEL_WIDTH, x) for x in (scaled_q, keys.x, v)]
    score_mod = bias_mod(encoding, queries, keys)
    mask = block_mask(encoding, queries, keys, window)
    scale = 1 / math.sqrt(q.shape[-1])
    output, sums = flex(
        *wide,
        score_mod=score_mod,
        block_mask=mask,
        scale=scale,
        return_aux=AuxRequest(lse=null is not None),
        kernel_options=_kernel_options(encoding),
    )
    output = output[..., : v.shape[-1]]
    if null is None:
        return output
    share = share_of_keys(sums.lse.unsqueeze(-1), null)
    return (output * share).to(v.dtype)


def _kernel_options(encoding: LayerEncoding) -> dict[str, Any] | None:
    """Return the options of a kernel that reads a bias by distance; None for other kernels."""
    reads_table = encoding.overrides("distance_bias") and not encoding.has_columns()
    return {"num_stages": PIPELINE_STAGES_WITH_TABLE} if reads_table else None


def flex(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Call `flex_attention`, compiled by itself, or as a part of the function that PyTorch is compiling."""
    if torch.compiler.is_compiling():
        return flex_attention(q, k, v, **options)
    # From the second length on, the length is a variable of the kernel. On a CPU, for tests, operations run
    # one by one.
    backend = "eager" if q.device.type == "cpu" else "inductor"
    return compiled(flex_attention, backend)(q, k, v, **options)


def bias_mod(encoding: LayerEncoding, queries: Side, keys: Side) -> ScoreMod | None:
    """Return a function that adds the encoding's bias to a score; None without a bias."""
    if not encoding.overrides("bias", "distance_bias"):
        return None
    if encoding.has_columns():
        return add_columns(*encoding.columns(queries, keys), like=queries.x)
    table = distance_table(encoding, queries.x)
    assert table is not None
    table_HT = table.to(precise(queries.x.dtype))

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # Keys after the query are masked, but the kernel reads the table for them too.
        return score + table_HT[head, (query - key).clamp(min=0)]

    return add_bias


def add_columns(query_columns: Tensor, key_columns: Tensor, like: Tensor) -> ScoreMod:
    """Return a function that adds the product of columns [.., T, c] of queries and of keys to a score.

    Columns may be sums over the whole text with small differences, for which float32 is not precise enough:
    each column is the sum of two float32 numbers.
    """
    columns_q = _split_precision(query_columns, like)
    columns_k = _split_precision(key_columns, like)

    def add_products(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        product = 0
        rest = 0
        for (column_q, rest_q), (column_k, rest_k) in zip(columns_q, columns_k, strict=True):
            # Each tensor is read once: FlexAttention has a gradient for a single reading.
            query_value = column_q[batch, head, query]
            key_value = column_k[batch, head, key]
            query_rest = rest_q[batch, head, query]
            key_rest = rest_k[batch, head, key]
            product = product + query_value * key_value
            rest = rest + query_value * key_rest + query_rest * key_value
        return score + (product + rest)

    return add_products


def _split_precision(columns: Tensor, like: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Split each column into two tensors [B, H, T] of lower precision with the column as their sum.

    like: [B, H, T, *], for the sizes of batch and heads and for the type.
    """
    spread = columns.expand(*like.shape[:-1], columns.shape[-1])
    pairs = []
    for column in spread.unbind(-1):
        rounded = column.to(precise(like.dtype)).contiguous()
        # The first part receives the gradient of the sum.
        rest = (column - rounded).detach().to(rounded.dtype).contiguous()
        pairs.append((rounded, rest))
    return pairs


def _padded_to(width: int, x: Tensor) -> Tensor:
    """Return x [.., n] with zeros appended to the last axis up to `width`; a wider x as it is."""
    missing = width - x.shape[-1]
    return functional.pad(x, (0, max(0, missing)))


# The masks of FlexAttention: blocks of pairs are visible, hidden or mixed; each mixed block has a tile.
#
# Letters: B batch, H query heads, T tokens, Q queries and N keys of one chunk, n blocks of T tokens.

# Called with the indices of batch, head, query and key; returns true for a visible pair.
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

FLEX_BLOCK = 128  # queries, and keys, of a block: FlexAttention's own number
MAX_PAIRS_PER_CALL = 2**24  # pairs of a query and a key in one call of `visible`


def block_mask(encoding: LayerEncoding, queries: Side, keys: Side, window: int | None) -> BlockMask:
    """Return the mask of visible keys, by `visible` and the window."""
    if encoding.overrides("visible"):
        return mask_of_tiles(encoding, queries, keys, window)
    tokens = queries.x.shape[-2]
    return mask_of_window(tokens, tokens if window is None else window, queries.x.device)


@lru_cache(CACHED_WINDOW_MASKS)
def mask_of_window(tokens: int, window: int, device: torch.device) -> BlockMask:
    """Return the mask of the last `window` tokens of each query, its own token among them."""
    block = torch.arange(_count_blocks(tokens), device=device)
    middle = FLEX_BLOCK * (block.unsqueeze(-1) - block)
    nearest = middle - (FLEX_BLOCK - 1)
    furthest = middle + (FLEX_BLOCK - 1)
    some = (furthest >= 0) & (nearest < window)
    # In a block that the text does not fill, some rows are no queries.
    filled = (block < tokens // FLEX_BLOCK).unsqueeze(-1)
    full = (nearest >= 0) & (furthest < window) & filled
    # As a tensor, so that one kernel handles all windows.
    limit = torch.tensor(window, device=device)

    def is_in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < limit)

    return _block_mask(some, full, is_in_window, tokens)


def mask_of_tiles(encoding: LayerEncoding, queries: Side, keys: Side, window: int | None) -> BlockMask:
    """Return the mask of an encoding with any `visible`: blocks, and a tile for each partly visible block.

    `visible` is called for chunks of queries, because all pairs at once need too much memory.
    """
    tokens = queries.x.shape[-2]
    device = queries.x.device
    blocks = _count_blocks(tokens)
    somes, fulls, tile_indices = [], [], []
    # Tile 0 hides everything, tile 1 nothing.
    hidden = torch.zeros(FLEX_BLOCK, FLEX_BLOCK, dtype=torch.bool, device=device)
    tiles = [torch.stack([hidden, ~hidden])]
    count = torch.ones((), dtype=torch.long, device=device)  # the number of tiles so far, less one
    chunk = FLEX_BLOCK * max(1, MAX_PAIRS_PER_CALL // (FLEX_BLOCK * tokens))
    for start in range(0, tokens, chunk):
        stop = min(start + chunk, tokens)
        rows = _visible_rows(encoding, queries, keys, window, start, stop)
        split = rows.view(rows.shape[0], -1, FLEX_BLOCK, blocks, FLEX_BLOCK)
        tiled = split.transpose(2, 3)
        pairs = tiled.flatten(3)
        some = pairs.any(-1)
        full = pairs.all(-1)
        mixed = some & ~full
        numbered = count + mixed.flatten().cumsum(0).view_as(mixed)
        count = count + mixed.sum()
        somes.append(some)
        fulls.append(full)
        tile_indices.append(torch.where(mixed, numbered, full.long()))
        tiles.append(tiled[mixed])
    some = torch.cat(somes, 1)
    full = torch.cat(fulls, 1)
    tile = torch.cat(tiles)
    tile_index = torch.cat(tile_indices, 1).int()
    is_shared = tile_index.shape[0] == 1

    def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = 0 if is_shared else head
        index = tile_index[row, query // FLEX_BLOCK, key // FLEX_BLOCK]
        return tile[index, query % FLEX_BLOCK, key % FLEX_BLOCK]

    return _block_mask(some, full, is_visible, tokens)


def _visible_rows(
    encoding: LayerEncoding, queries: Side, keys: Side, window: int | None, start: int, stop: int
) -> Tensor:
    """Return the mask [1 or H, Q, N] of the queries `start` to `stop` - 1, padded to whole blocks."""
    visible = visible_keys(encoding, select_tokens(queries, range(start, stop)), keys, window)
    rows = visible if visible.dim() == 3 else visible.unsqueeze(0)
    missing_queries = -rows.shape[1] % FLEX_BLOCK
    missing_keys = -rows.shape[2] % FLEX_BLOCK
    return functional.pad(rows, (0, missing_keys, 0, missing_queries))


def _block_mask(some: Tensor, full: Tensor, is_visible: MaskMod, tokens: int) -> BlockMask:
    """Return the mask of the pairs with `is_visible`, as FlexAttention reads it.

    some, full: true for blocks [.., n, n] with any, and with all pairs visible.
    """
    mixed_lists = _block_lists(some & ~full)
    lists = (*mixed_lists, *_block_lists(full))
    return BlockMask.from_kv_blocks(*lists, FLEX_BLOCK, mask_mod=is_visible, seq_lengths=(tokens, tokens))


def _block_lists(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the chosen blocks of each row [.., n] of blocks, in the form that FlexAttention takes.

    These are the number of chosen blocks, int32 [1, 1 or H, n], and the indices of all n blocks, int32
    [1, 1 or H, n, n], with the chosen blocks first.
    """
    chosen = chosen.view(1, -1, *chosen.shape[-2:])
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1).int(), order.int().contiguous()


def _count_blocks(tokens: int) -> int:
    return -(-tokens // FLEX_BLOCK)
