"""Four ways to turn a pair of features, one rotation."""

import pytest
import torch
from support.reference_inputs import H, near, series
from support.rotary_encodings import every_form, every_layout
from torch import Tensor

from pe_bench.encodings.rotary.rope import Form, Layout, rope_frequencies, rotate

# rope: four ways to turn a pair, one rotation


@every_layout
@every_form
@pytest.mark.parametrize("position", [torch.arange(6), 1_000 * torch.arange(12.0).view(2, 1, 6) + 0.5])
def test_every_form_of_rope_turns_each_pair_by_its_angle(
    layout: Layout, form: Form, position: Tensor
) -> None:
    x, theta = series(torch.sin, 0.7, 2, H, 6, 8), rope_frequencies(8, 10_000.0)
    turned = rotate(x, position, theta, layout, form)
    for c in range(4):
        a, b = (c, c + 4) if layout == "half" else (2 * c, 2 * c + 1)
        angle = position.double() * theta[c]
        assert near(turned[..., a], x[..., a] * angle.cos() - x[..., b] * angle.sin(), 1e-12)
        assert near(turned[..., b], x[..., a] * angle.sin() + x[..., b] * angle.cos(), 1e-12)


@every_layout
@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_of_rope_has_exact_angles_in_every_type(
    layout: Layout, form: Form, dtype: torch.dtype
) -> None:
    x, position = series(torch.sin, 0.7, 1, H, 64, 8).to(dtype), torch.arange(64) + 65_000
    theta = rope_frequencies(8, 10_000.0)
    turned = rotate(x, position, theta, layout, form)
    assert turned.dtype == dtype
    rounding = 4 * torch.finfo(dtype).eps
    assert near(turned, rotate(x.double(), position, theta, layout), rounding)
