"""Encodings with the parameters of the reference numbers."""

import torch
from torch import Tensor

from pe_bench.encodings.base import PositionalEncoding


def ids(encoding: PositionalEncoding, tokens: int, seed: int = 0, train: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return encoding.ids(torch.zeros(3, tokens, dtype=torch.long), train=train, generator=generator)
