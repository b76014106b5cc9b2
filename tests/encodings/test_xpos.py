"""xpos: its formula, its envelope, and how far it reaches."""

import math

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import near
from support.rotary_encodings import (
    K8,
    Q8,
    V8,
    X8,
    products,
)
from torch import Tensor

from pe_bench.encodings.base import LengthError
from pe_bench.encodings.rotary.xpos import XPos
from pe_bench.model.attention import attention, reference_attention

# xpos


def xpos_pair_by_pair(q: Tensor, k: Tensor, distance: int, scale_base: float) -> float:
    """sum_c Re(q_c conj(k_c) e^(i r theta_c)) zeta_c^(r / scale_base) of interleaved pairs."""
    total = 0.0
    for c in range(4):
        a, b = complex(q[2 * c], q[2 * c + 1]), complex(k[2 * c], k[2 * c + 1])
        angle = distance * 10_000.0 ** (-2 * c / 8)
        turned = (a * b.conjugate() * complex(math.cos(angle), math.sin(angle))).real
        total += turned * ((2 * c / 8 + 0.4) / 1.4) ** (distance / scale_base)
    return total


def test_xpos_is_its_formula_pair_by_pair() -> None:
    found = products(XPos(8, scale_base=4.0), shift=30)
    for i in range(9):
        for j in range(i + 1):
            expected = xpos_pair_by_pair(Q8[1, 1, i], K8[1, 1, j], i - j, 4.0)
            assert abs(float(found[1, 1, i, j]) - expected) < 1e-10


def test_xpos_counts_from_the_keys_of_each_sequence() -> None:
    encoding, here = XPos(8, scale_base=4.0).double(), torch.arange(9)
    position = torch.stack([here, 5 * here + 1_000_000])
    both = attention(encoding, X8, Q8, K8, V8, position)
    for row in (0, 1):
        one = slice(row, row + 1)
        alone = attention(encoding, X8[one], Q8[one], K8[one], V8[one], position[row])
        assert near(both[one], alone, 1e-10)


def test_xpos_is_finite_and_exact_at_65536_tokens_on_both_paths() -> None:
    tokens, generator = 65_536, torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, tokens, 4, generator=generator)
    x, position, encoding = torch.zeros(1, tokens, 4), torch.arange(tokens), XPos(4)
    with torch.no_grad():
        fused = attention(encoding, x, q, k, v, position)
        assert fused.isfinite().all()
        for rows in (range(16), range(tokens - 16, tokens)):
            reference = reference_attention(encoding, x, q, k, v, position, rows=rows)
            exact = reference_attention(
                encoding, x.double(), q.double(), k.double(), v.double(), position, rows=rows
            )
            assert near(reference, exact, 1e-5)
            assert near(fused[:, :, rows.start : rows.stop], exact, 1e-5)


@pytest.mark.parametrize(
    ("dtype", "scale_base", "longest"),
    [(torch.float32, 512.0, 66_875), (torch.bfloat16, 512.0, 66_872), (torch.float16, 512.0, 3_418)],
)
def test_xpos_past_what_its_factors_can_hold_is_an_error_with_the_way_out(
    dtype: torch.dtype, scale_base: float, longest: int
) -> None:
    encoding, x = XPos(8, scale_base=scale_base), torch.ones(1, 1, 2, 8, dtype=dtype)
    held = torch.tensor([0, longest - 1])
    assert all(turned.isfinite().all() for turned in turned_sides(encoding, x, x, held, held))
    with pytest.raises(
        LengthError, match=rf"scale_base=512 .* {longest} positions .* {longest + 2}: .*larger"
    ):
        turned_sides(encoding, x, x, held + torch.tensor([0, 2]), held + torch.tensor([0, 2]))
