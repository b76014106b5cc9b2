"""Sums over the keys from each key up to the last, as far back as the sums matter."""

from collections.abc import Callable

import torch
from torch import Tensor

KEYS_PER_BLOCK = 512  # keys


def suffix_sums(
    count: int, terms: Callable[[slice], Tensor], is_settled: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the sums [.., n] of the terms from each of the last n of `count` keys to the last key.

    terms: returns the terms [.., m] of a slice of m keys. is_settled: returns true for sums [.., 1] to which
    earlier keys need not be added. Blocks of keys are summed, the last block first, until the sums from a
    block's first key are all settled.
    """
    blocks: list[Tensor] = []
    for stop in range(count, 0, -KEYS_PER_BLOCK):
        block = slice(max(0, stop - KEYS_PER_BLOCK), stop)
        sums = terms(block).flip(-1).cumsum(-1).flip(-1)
        if blocks:
            sums = sums + blocks[-1][..., :1]
        blocks.append(sums)
        if stop > KEYS_PER_BLOCK and is_settled(sums[..., :1]).all():
            break
    return torch.cat(blocks[::-1], -1)
