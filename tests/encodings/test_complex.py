"""multiplicative and complex embeddings."""

from collections.abc import Callable

import pytest
import torch
from support.embeddings import VOCABULARY, embedded
from support.reference_inputs import fill, near, series

from pe_bench.encodings.base import LengthError, PositionalEncoding
from pe_bench.encodings.ids.bipe import BiPE
from pe_bench.encodings.inputs.complex import Complex
from pe_bench.encodings.inputs.multiplicative import Multiplicative
from pe_bench.errors import UserError


def with_vocabulary(encoding: PositionalEncoding, texts: list[str] = VOCABULARY) -> PositionalEncoding:
    encoding.read_vocabulary(texts)
    return encoding.double()


# multiplicative


def test_multiplicative_is_a_product_with_each_feature() -> None:
    encoding, x = Multiplicative(4, 6, alpha=0.5).double(), series(torch.sin, 0.3, 1, 2, 4)
    assert encoding.table is not None
    fill(encoding.table, series(torch.cos, 0.7, 6, 4))
    rows = series(torch.cos, 0.7, 6, 4)[[3, 1]]
    assert near(embedded(encoding, x, torch.tensor([3, 1])), x * (1 + 0.5 * rows), 1e-12)
    waves = Multiplicative(4, 6, "sinusoidal", alpha=0.5)
    pe = torch.tensor([[0, 1, 0, 1], [0.841471, 0.540302, 0.01, 0.99995]])
    assert near(embedded(waves, x), x * (1 + 0.5 * pe), 2e-6)


def test_multiplicative_sinusoids_have_no_table_and_no_end() -> None:
    encoding = Multiplicative(8, 6, "sinusoidal")
    assert not list(encoding.parameters())
    assert encoding.past_training == "defined"
    x = torch.ones(1, 500, 8)
    assert embedded(encoding, x).isfinite().all()
    assert 0.8 < float(embedded(encoding, x).square().mean().sqrt()) < 1.2
    with pytest.raises(LengthError, match="max_position=6"):
        embedded(Multiplicative(8, 6), x)


# complex


def test_complex_shift_is_a_turn_and_norms_do_not_depend_on_position() -> None:
    encoding = with_vocabulary(Complex(6))
    assert isinstance(encoding, Complex) and encoding.multiples is not None
    fill(encoding.multiples, series(torch.sin, 0.7, len(VOCABULARY), 3))
    x, ids = series(torch.cos, 0.9, 1, 5, 6), torch.arange(5)
    here, there = (torch.complex(*embedded(encoding, x, p).chunk(2, -1)) for p in (ids, ids + 7))
    omega = encoding.multiples[:5].detach() * 10_000.0 ** -(torch.arange(3) / 3).double()
    turned = here * torch.polar(torch.ones_like(omega), 7 * omega)
    assert near(there.real, turned.real, 1e-7)
    assert near(there.imag, turned.imag, 1e-7)
    assert near(there.abs(), torch.complex(*x.chunk(2, -1)).abs(), 1e-12)


def test_complex_frequencies_of_every_pair_take_steps_of_their_own_size() -> None:
    """A step of one size for all would make the slow pairs as fast as the fast ones."""
    encoding = with_vocabulary(Complex(8))
    assert isinstance(encoding, Complex) and encoding.multiples is not None
    before = encoding.multiples * encoding.base_frequencies
    after = (encoding.multiples + 0.01) * encoding.base_frequencies
    assert near(((after - before) / before).detach(), torch.full_like(before, 0.01), 1e-6)


@pytest.mark.parametrize("make", [Complex, lambda d_model: BiPE(d_model, 4)])
def test_an_unknown_vocabulary_is_told_when_it_is_needed(make: Callable[[int], PositionalEncoding]) -> None:
    encoding = make(8)
    encoding.read_vocabulary(())
    with pytest.raises(UserError, match="without a*.* vocabulary|vocabulary and was built without"):
        embedded(encoding, torch.zeros(1, 3, 8))
