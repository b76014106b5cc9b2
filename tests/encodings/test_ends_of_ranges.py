"""What encodings become at the ends of their ranges, their initial values, and options that cannot work."""

from collections.abc import Callable

import pytest
import torch
from support.reference_encodings import shaw_of_the_reference
from support.reference_inputs import (
    D,
    H,
    K,
    T,
    fill,
    near,
    output,
)

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi, alibi_slopes
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.ids.randomized import Randomized
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.errors import UserError

# what an encoding becomes at the end of its range


def fox_without_forgetting() -> FoX:
    encoding = FoX(d_model=D, n_heads=H)
    fill(encoding.weight, torch.zeros(H, D))
    fill(encoding.intercept, torch.full((H,), 100.0))
    return encoding


def shaw_zero() -> Shaw:
    encoding = Shaw(d_head=K, max_distance=2)
    fill(encoding.keys, torch.zeros(3, K))
    fill(encoding.values, torch.zeros(3, K))
    return encoding


def t5_zero() -> T5:
    encoding = T5(d_model=D, n_heads=H)
    fill(encoding.table, torch.zeros(H, 32))
    return encoding


@pytest.mark.parametrize("make", [shaw_zero, t5_zero, fox_without_forgetting, lambda: CoPE(d_head=K)])
def test_parametric_encoding_at_zero_is_nope(make: Callable[[], LayerEncoding]) -> None:
    assert near(output(make()).detach(), output(NoPE()), 1e-12)


def test_fox_with_a_constant_gate_is_alibi() -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    slopes = torch.tensor(alibi_slopes(H), dtype=torch.float64)
    fill(encoding.weight, torch.zeros(H, D))
    fill(encoding.intercept, -torch.log(torch.expm1(slopes)))  # sigmoid of it is exp(-slope)
    assert near(output(encoding).detach(), output(ALiBi(H)), 1e-12)


@pytest.mark.parametrize("inner", [NoPE(), RoPE(d_head=K), ALiBi(H), shaw_of_the_reference()])
def test_window_that_holds_everything_is_the_inner_encoding(inner: LayerEncoding) -> None:
    assert near(output(Stack([inner, SlidingWindow(T)])).detach(), output(inner).detach(), 1e-12)
    assert not near(output(Stack([inner, SlidingWindow(2)])).detach(), output(inner).detach(), 1e-3)


# initial values and mistakes


def test_initial_values_are_the_documented_ones() -> None:
    torch.manual_seed(0)
    assert abs(Learned(64, 512).table.std().item() - 0.02) < 1e-3
    assert abs(T5(d_model=64, n_heads=64).table.std().item() - 1 / 8) < 0.01
    assert abs(Shaw(d_head=64, max_distance=200).keys.std().item() - 0.02) < 1e-3
    assert abs(Shaw(d_head=64, max_distance=200).values.std().item() - 0.02) < 1e-3
    assert abs(FoX(d_model=256, n_heads=64).weight.std().item() - 1 / 16) < 2e-3
    kerple = KerpleLog(4_096)
    assert abs(kerple.p.mean().item() - 1) < 0.05
    assert 1.99 < kerple.p.max().item() <= 2
    assert abs(kerple.a.mean().item() - 0.5) < 0.03
    assert 0.99 < kerple.a.max().item() <= 1
    assert not CoPE(d_head=64).table.any()
    assert not FoX(8, 2).intercept.any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Learned(8, 0),
        lambda: RoPE(d_head=7),
        lambda: RoPE(d_head=8, base=-1.0),
        lambda: T5(8, 2, buckets=32, max_distance=16),
        lambda: T5(8, 2, buckets=1),
        lambda: Shaw(8, max_distance=0),
        lambda: CoPE(8, max_position=0),
        lambda: SlidingWindow(0),
        lambda: Randomized(0),
        lambda: LogN(1),
    ],
)
def test_option_that_cannot_work_is_told_to_the_user(make: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=r"\d"):
        make()
