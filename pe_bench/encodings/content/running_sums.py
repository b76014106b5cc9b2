"""Sums over the keys from each one up to the query's own, as far back as they matter."""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 512  # keys


def sums_from_the_end(
    count: int, terms: Callable[[slice], Tensor], is_settled: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the sums [.., n] from each of the last n of `count` keys to the last one.

    `terms` has what is summed of some keys. They are taken in blocks, the last ones first, until `is_settled`
    says of the sums [.., 1] of a block's first key that the keys before it do not matter.
    """
    blocks: list[Tensor] = []
    for stop in range(count, 0, -BLOCK):
        sums = terms(slice(max(0, stop - BLOCK), stop)).flip(-1).cumsum(-1).flip(-1)
        blocks.append(sums + blocks[-1][..., :1] if blocks else sums)
        if stop > BLOCK and is_settled(blocks[-1][..., :1]).all():
            break
    return torch.cat(blocks[::-1], -1)
