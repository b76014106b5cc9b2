"""Tests of the optimizer: its steps against PyTorch's, and Muon's against singular values."""

import pytest
import torch
from support.native import here

from pe_bench.inspection.check.case import largest_difference
from pe_bench.training import optimizer
from pe_bench.training.optimizer import (
    Optimizer,
    ParameterGroup,
    orthogonalise,
    orthogonalise_in_bfloat16,
)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 16, 40), (2, 40, 16), (1, 1, 5)])
def test_orthogonalised_matrices_keep_their_singular_vectors_with_values_that_the_polynomial_gives(shape):
    matrices = drawn(*shape)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    # As the polynomial moves them one by one, from values that are scaled by the matrix's norm.
    expected = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    moved = orthogonalise(matrices)
    torch.testing.assert_close(moved, left @ torch.diag_embed(expected) @ right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(orthogonalise(matrices.float()).double(), moved, rtol=0, atol=2e-4)


@pytest.mark.parametrize("shape", [(3, 128, 128), (2, 128, 344), (2, 344, 128)])
def test_in_bfloat16_matrices_are_orthogonalised_to_two_hundredths(shape):
    matrices = drawn(*shape)
    exact = orthogonalise(matrices)
    moved = orthogonalise_in_bfloat16(matrices.float())
    assert moved.dtype == torch.float32
    error = (moved.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert float(error) < 0.02
    assert torch.equal(orthogonalise_in_bfloat16(torch.zeros(2, 4, 6)), torch.zeros(2, 4, 6))


def test_steps_in_bfloat16_keep_weights_and_momenta_in_float32_and_are_near_those_in_float32():
    moved = []
    for dtype in (None, torch.bfloat16):
        weights = torch.nn.Parameter(drawn(32, 48).float())
        muon = Optimizer([ParameterGroup(lr=0.02, parameters=[weights])], dtype)
        weights.grad = drawn(32, 48).float().flip(0)
        muon.step()
        assert weights.dtype == muon.state[weights]["momentum_buffer"].dtype == torch.float32
        moved.append(weights.detach() - drawn(32, 48).float())
    assert 0 < float((moved[0] - moved[1]).norm() / moved[0].norm()) < 0.02


@here
@pytest.mark.parametrize("shape", [(5, 16, 40), (3, 27, 20), (2, 128, 128)])
def test_compiled_code_is_as_near_to_float64_as_pytorch_whatever_the_threads(shape, monkeypatch):
    wide = drawn(*shape).float()
    low_rank = wide[..., :3] @ wide[..., :3, :]
    for matrices in (wide, low_rank, 1e-6 * wide):
        exact, compiled = orthogonalise(matrices.double()), orthogonalise(matrices)
        with monkeypatch.context() as patch:
            patch.setattr(optimizer, "is_native", lambda square: False)
            theirs = largest_difference(orthogonalise(matrices), exact)
        assert largest_difference(compiled, exact) <= 2 * theirs
        torch.set_num_threads(3)
        assert torch.equal(orthogonalise(matrices), compiled)
        torch.set_num_threads(1)


def test_a_matrix_of_zeros_is_not_moved_and_gradients_of_almost_nothing_are_damped():
    assert torch.equal(orthogonalise(torch.zeros(2, 4, 6)), torch.zeros(2, 4, 6))
    for size in (1e-22, 1e-38, 1e-44):
        moved = orthogonalise(drawn(3, 16, 16).float() * size)
        assert bool(moved.isfinite().all()) and float(moved.abs().max()) < 1e-10


def test_steps_are_those_of_pytorchs_muon_also_of_matrices_of_one_shape_and_without_a_gradient():
    generator = torch.Generator().manual_seed(1)
    start = [drawn(*shape).float() for shape in [(16, 16), (48, 16), (16, 40), (48, 16)]]
    ours, theirs = ([torch.nn.Parameter(value.clone()) for value in start] for _ in range(2))
    idle = torch.nn.Parameter(torch.ones(4, 4))
    muon = Optimizer([ParameterGroup(weight_decay=0.1, lr=0.02, parameters=[*ours, idle])])
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(*a.shape, generator=generator)
            b.grad = a.grad.clone()
        muon.step()
        reference.step()
    for begun, a, b in zip(start, ours, theirs, strict=True):
        moved = b.detach() - begun
        assert float((a.detach() - b.detach()).norm() / moved.norm()) < 0.02  # the precision of bfloat16
        momenta = muon.state[a]["momentum_buffer"], reference.state[b]["momentum_buffer"]
        torch.testing.assert_close(*momenta, rtol=1e-5, atol=1e-6)
    assert torch.equal(idle, torch.ones(4, 4)) and not muon.state[idle]


def test_steps_of_adamw_are_those_of_pytorchs_to_the_last_bit():
    ours, theirs = ([torch.nn.Parameter(drawn(*shape).float()) for shape in [(3, 5), (7,)]] for _ in range(2))
    idle = torch.nn.Parameter(torch.ones(4))
    groups = [ParameterGroup(0.1, (0.9, 0.95), 2.0, 0.0, [*ours, idle]), ParameterGroup(betas=(0.9, 0.95))]
    optimizer = Optimizer(groups)
    reference = torch.optim.AdamW(theirs, lr=0.02, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    for step in range(1, 4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad, b.grad = (drawn(*a.shape).float() / step for _ in range(2))
        optimizer.set_rate(0.01)
        optimizer.step()
        optimizer.zero_grad()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) and a.grad is None
        assert all(torch.equal(optimizer.state[a][key], value) for key, value in reference.state[b].items())
    assert torch.equal(idle, torch.ones(4)) and not optimizer.state[idle]
