"""What an encoding makes of embeddings."""

import torch
from torch import Tensor

from pe_bench.encodings.base import PositionalEncoding
from pe_bench.encodings.inputs.recursive import Cell

CELLS: tuple[Cell, ...] = ("gru", "mlp", "ode_rk4", "ode_euler")
VOCABULARY = [*"abcdefghi", ".", "\n"]


def embedded(encoding: PositionalEncoding, x: Tensor, ids: Tensor | None = None) -> Tensor:
    """The embeddings x [B, T, D] with positions; tokens are 0, 1, 2, .. in each sequence."""
    index = torch.arange(x.shape[1])
    return encoding.embed(x, index if ids is None else ids, index.expand(len(x), -1)).detach()
