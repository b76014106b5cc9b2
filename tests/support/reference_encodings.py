"""Encodings with the parameters of the reference numbers."""

import torch
from support.reference_inputs import (
    K,
    fill,
    series,
)
from torch import Tensor

from pe_bench.encodings.base import PositionalEncoding
from pe_bench.encodings.relative.shaw import Shaw


def shaw_of_the_reference() -> Shaw:
    encoding = Shaw(d_head=K, max_distance=2).double()
    # The reference's tables have rows for later keys too, which a decoder does not read.
    fill(encoding.keys, series(torch.sin, 0.15, 5, K)[:3])
    fill(encoding.values, series(torch.sin, 0.25, 5, K)[:3])
    return encoding


def ids(encoding: PositionalEncoding, tokens: int, seed: int = 0, train: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return encoding.ids(torch.zeros(3, tokens, dtype=torch.long), train=train, generator=generator)
