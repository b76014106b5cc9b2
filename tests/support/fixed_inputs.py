"""Inputs of a few tokens, and what encodings make of them."""

import torch
from support.reference_inputs import B, D, H, K, series
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.reference import project

TOKENS = 14
ROWS = torch.arange(TOKENS)


def inputs(tokens: int = TOKENS, batch: int = B) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = series(torch.cos, 0.37, batch, tokens, D)
    q, k, v = (series(torch.sin, step, batch, H, tokens, K) for step in (0.3, 0.5, 0.7))
    return x, q, k, v


def output(encoding: LayerEncoding, position: Tensor = ROWS, block: int | None = None) -> Tensor:
    return reference_attention(encoding.double(), *inputs(len(position)), position, block=block)


def visible(encoding: LayerEncoding, tokens: int) -> list[list[int]]:
    """The indices of the keys that each query sees."""
    x, q, k, _ = inputs(tokens)
    seen = encoding.visible(*project(encoding, x, q, k, torch.arange(tokens)))
    return [row.nonzero().flatten().tolist() for row in seen]


def factors(encoding: LayerEncoding, position: Tensor) -> Tensor:
    x, q, k, _ = inputs(len(position))
    scale = encoding.logit_scale(project(encoding, x, q, k, position)[0])
    assert scale is not None
    return scale.detach()
