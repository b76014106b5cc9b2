"""Rotary encodings, and their products of queries and keys."""

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import H, fill, series
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.rotary.pope import PoPE
from pe_bench.encodings.rotary.rope import Form, Layout

LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")
FORMS: tuple[Form, ...] = ("pairs", "complex", "dense")
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_form = pytest.mark.parametrize("form", FORMS)


def drawn_pope() -> PoPE:
    encoding = PoPE(n_heads=H, d_head=8)
    fill(encoding.phase, -2 - series(torch.sin, 0.7, H, 8))
    return encoding.double()


Q8, K8, V8 = (
    series(wave, step, 2, H, 9, 8) for wave, step in ((torch.sin, 0.7), (torch.cos, 0.9), (torch.sin, 0.3))
)
X8 = torch.zeros(2, 9, 2 * 8, dtype=torch.float64)


def products(encoding: LayerEncoding, shift: int = 0) -> Tensor:
    """[2, H, 9, 9], without scale and mask."""
    position = torch.arange(9) + shift
    q, k = turned_sides(encoding.double(), Q8, K8, position, position)
    return (q @ k.mT).detach()
