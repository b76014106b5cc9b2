"""Four ways to turn a pair of features, one rotation."""

from typing import Any

import pytest
import torch
from support.cases import find_case
from support.reference_inputs import H, near, series
from support.rotary_encodings import FORMS, K8, Q8, every_form, every_layout, products
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pe_bench.encodings.rotary.rope import Form, Layout, RoPE, rope_frequencies, rotate
from pe_bench.inspection.check.suite import PROPERTIES, Property, check

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


@every_layout
@pytest.mark.parametrize("form", ["complex", "dense"])
def test_every_form_of_rope_has_the_same_gradient(layout: Layout, form: Form) -> None:
    x, position, theta = Q8.clone().requires_grad_(), torch.arange(9), rope_frequencies(8, 10_000.0)
    gradients = [
        torch.autograd.grad((rotate(x, position, theta, layout, one) * K8).sum(), x)[0]
        for one in ("pairs", form)
    ]
    assert near(gradients[0], gradients[1], 1e-12)


def test_layout_reaches_the_rotation() -> None:
    assert not near(products(RoPE(8)), products(RoPE(8, layout="interleaved")), 0.1)


class Operations(TorchDispatchMode):
    """Collects the names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@every_layout
def test_forms_of_rope_are_calculated_each_in_its_way(layout: Layout) -> None:
    used = {}
    for form in FORMS:
        with Operations() as operations:
            RoPE(8, layout=layout, form=form).double().transform(Q8, K8, torch.arange(9), torch.arange(9))
        used[form] = operations.names & {"complex", "bmm"}
    assert used == {"pairs": set(), "complex": {"complex"}, "dense": {"bmm"}}


@every_layout
@pytest.mark.parametrize("form", ["complex", "dense"])
@pytest.mark.parametrize(
    "wanted",
    [
        one
        for one in PROPERTIES
        if one.name in ("causal", "blocks", "fused", "half_precision", "norm", "shift")
    ],
    ids=lambda one: one.name,
)
def test_every_form_of_rope_keeps_what_encodings_promise(
    layout: Layout, form: Form, wanted: Property
) -> None:
    finding = check(find_case("rope", (f"encoding.layout={layout}", f"encoding.form={form}")), wanted)
    assert finding.state == "holds", finding.measured
