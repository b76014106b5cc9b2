"""Scaled rotary encodings by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import series
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.scalings.llama3 import Llama3
from pe_bench.encodings.scalings.longrope import LongRoPE
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.encodings.scalings.rope_ntk import RopeNTK
from pe_bench.encodings.scalings.rope_ntk_by_parts import RopeNTKByParts
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.encodings.scalings.rope_scaling import RopeScaling
from pe_bench.encodings.scalings.yarn import YaRN

WIDTH, TRAIN, BASE = 16, 512, 10_000.0
LONG = [1.0, 1.1, 1.5, 2.0, 3.0, 4.0, 4.0, 4.0]
SCALINGS: dict[str, Callable[..., RopeScaling]] = {
    "rope_pi": RopePI,
    "rope_ntk": RopeNTK,
    "rope_dynamic_ntk": RopeDynamicNTK,
    "rope_ntk_by_parts": RopeNTKByParts,
    "yarn": YaRN,
    "llama3": Llama3,
    "longrope": LongRoPE,
}
every_scaling = pytest.mark.parametrize("name", SCALINGS)


def scaling(name: str, d_head: int = WIDTH, train_length: int = TRAIN, **options: Any) -> RopeScaling:
    """A scaling by its name, longrope with factors that are no ones."""
    given = {"long_factors": LONG[: d_head // 2]} if name == "longrope" else {}
    return SCALINGS[name](d_head, train_length, **{**given, **options})


def turned(encoding: LayerEncoding, tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Queries and keys [1, 2, tokens, WIDTH] at the positions 0, 1, 2, .."""
    q, k = (series(wave, 0.7, 1, 2, tokens, WIDTH).to(dtype) for wave in (torch.sin, torch.cos))
    position = torch.arange(tokens)
    return turned_sides(encoding, q, k, position, position)


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return all(map(torch.equal, a, b))
