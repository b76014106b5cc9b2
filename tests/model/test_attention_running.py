"""Sums along a row end where the keys before no longer matter, and nothing else changes."""

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content import running_sums
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.running_sums import sums_from_the_end
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.inspection.check.case import as_type, layer_inputs
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import attention, reference_attention

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

K = 8  # the head width of `layer_inputs`


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_sums, "BLOCK", 8)


def never(sums: Tensor) -> Tensor:
    return torch.zeros_like(sums, dtype=torch.bool)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 30])
def test_sums_in_blocks_are_those_of_the_whole_row(count: int) -> None:
    x = torch.rand(2, 3, count, dtype=torch.float64)
    found = sums_from_the_end(count, lambda keys: x[..., keys], never)
    assert worst(found, x.flip(-1).cumsum(-1).flip(-1)) < 1e-12


def test_sums_end_with_the_block_in_which_all_rows_are_settled() -> None:
    x = torch.tensor([[1.0], [0.1]]).expand(2, 40)
    read = []

    def terms(keys: slice) -> Tensor:
        read.append(keys)
        return x[:, keys]

    found = sums_from_the_end(40, terms, lambda sums: sums > 1.5)
    assert found.shape == (2, 16)
    assert read == [slice(32, 40), slice(24, 32)]
    assert worst(found[:, 0], torch.tensor([16.0, 1.6])) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 5, 200])
def test_contextual_positions_end_where_the_last_row_serves(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    encoding, arguments = CoPE(K, rows).double(), (*layer_inputs(90), torch.arange(90))
    encoding.table.normal_()
    for block in (1, 8, 90):
        found = reference_attention(encoding, *arguments, block=block)
        monkeypatch.setattr(running_sums, "BLOCK", 1_000)
        assert worst(found, reference_attention(encoding, *arguments)) < 1e-12
        monkeypatch.setattr(running_sums, "BLOCK", 8)


@torch.no_grad()
@pytest.mark.parametrize("make", [StickBreaking, lambda: Stack([StickBreaking(), SlidingWindow(20)])])
def test_a_stick_that_is_used_up_leaves_nothing(make, monkeypatch: pytest.MonkeyPatch) -> None:
    x, q, k, v = as_type(layer_inputs(90), torch.float32)
    arguments = (x, 30 * q, k, v, torch.arange(90))
    found = attention(make(), *arguments)
    monkeypatch.setattr(running_sums, "BLOCK", 1_000)
    assert worst(found, attention(make(), *arguments)) < 1e-6


def test_gradients_do_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(encoding) -> tuple[Tensor, ...]:
        inputs = [one.requires_grad_() for one in layer_inputs(40)]
        output = attention(encoding, *inputs, torch.arange(40))
        return torch.autograd.grad(output.square().sum(), inputs[1:])

    for encoding in (CoPE(K, 5).double(), StickBreaking()):
        in_blocks = gradients(encoding)
        with monkeypatch.context() as patch:
            patch.setattr(running_sums, "BLOCK", 1_000)
            for one, other in zip(in_blocks, gradients(encoding), strict=True):
                assert worst(one, other) < 1e-12


@pytest.mark.parametrize("size", [1.0, 20.0])
@pytest.mark.parametrize("window", [5, 30])
def test_gradient_of_stick_breaking_is_that_of_the_product(window: int, size: float) -> None:
    torch.manual_seed(0)
    scores, direction = size * torch.randn(3, 30, 30).double(), torch.randn(3, 30, 30).double()
    visible = torch.ones(30, 30).tril(-1).triu(1 - window).bool()
    scores.requires_grad_()
    broken = scores.sigmoid()
    left = torch.where(visible, 1 - broken, 1).flip(-1).cumprod(-1).flip(-1)
    product = torch.where(visible, broken * torch.nn.functional.pad(left[..., 1:], (0, 1), value=1), 0)
    weights = StickBreaking().weights(scores, visible)
    assert worst(weights, product) < 1e-12
    (found,) = torch.autograd.grad(weights, scores, direction)
    (expected,) = torch.autograd.grad(product, scores, direction)
    assert worst(found, expected) < 1e-12
