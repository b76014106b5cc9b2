"""Relative encodings with drawn parameters, and their logits."""

import math
from typing import Any, TypeVar

import torch
from support.reference_inputs import K4, Q4, X4, D, H, K, T, fill, series
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.relative.deberta import DeBERTa, Terms
from pe_bench.encodings.relative.tupe import TUPE, Positions
from pe_bench.model.attention.reference import logits, project

LAYERS, TRAIN = 2, 16
E = TypeVar("E", bound=torch.nn.Module)
CONTENT = Q4 @ K4.mT  # [B, H, T, T], neither scaled nor masked


def with_parameters(encoding: E) -> E:
    """The encoding in float64, every parameter a wave of its own."""
    for number, parameter in enumerate(encoding.double().parameters()):
        fill(parameter, series(torch.sin, 0.3 + 0.17 * number, *parameter.shape))
    return encoding


def final_logits(layer: LayerEncoding, position: Tensor | None = None, q: Tensor = Q4) -> Tensor:
    """[B, H, T, T] with zeros for keys after the query."""
    position = torch.arange(T) if position is None else position
    queries, keys = project(layer, X4, q, K4, position)
    return logits(layer, queries, keys, 1 / math.sqrt(K))[0].detach().tril()


def deberta(max_distance: int = 3, terms: Terms = "c2p+p2c", buckets: int | None = None) -> DeBERTa:
    return with_parameters(DeBERTa(D, H, K, LAYERS, max_distance, buckets, terms))


def tupe(max_position: int = T, positions: Positions = "learned", **options: Any) -> TUPE:
    return with_parameters(TUPE(D, H, K, max_position, positions=positions, **options))
