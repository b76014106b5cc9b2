"""longrope: which of its factors act, and which are refused."""

import math
from typing import Any

import pytest
import torch
from support.commands import Command
from support.reference_inputs import near
from support.scalings import BASE, LONG, TRAIN, WIDTH

from pe_bench.encodings.rotary.rope import rope_frequencies
from pe_bench.encodings.scalings.longrope import LongRoPE
from pe_bench.errors import UserError

SHORT = [1.0, 1.0, 1.2, 1.2, 1.2, 1.3, 1.3, 1.3]


# longrope


def test_longrope_takes_the_long_factors_beyond_the_training_length_and_the_short_ones_up_to_it() -> None:
    encoding, plain = LongRoPE(WIDTH, TRAIN, long_factors=LONG), rope_frequencies(WIDTH, BASE)
    assert torch.equal(encoding.scaled(TRAIN).frequencies, plain)
    assert near(
        encoding.scaled(TRAIN + 1).frequencies, plain / torch.tensor(LONG, dtype=torch.float64), 1e-15
    )
    both = LongRoPE(WIDTH, TRAIN, long_factors=LONG, short_factors=SHORT)
    assert near(both.scaled(TRAIN).frequencies, plain / torch.tensor(SHORT, dtype=torch.float64), 1e-15)
    assert torch.equal(both.scaled(TRAIN + 1).frequencies, encoding.scaled(TRAIN + 1).frequencies)


def test_longrope_without_factors_is_refused_in_one_line(train: Command) -> None:
    outcome = train("encoding=longrope")
    assert outcome.code == 2
    assert "longrope has no default factors" in outcome.line
    assert "encoding.long_factors=[...] with d_head/2 = 4 numbers" in outcome.line
    assert train("encoding=longrope", "encoding.long_factors=[1,1.5,2,4]").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_factors": [1.0] * 7}, "encoding.long_factors must have 8 numbers.*not 7"),
        ({"long_factors": []}, "encoding.long_factors must have 8 numbers.*not 0"),
        (
            {"long_factors": LONG, "short_factors": [1.0] * 9},
            "encoding.short_factors must have 8 numbers.*not 9",
        ),
        (
            {"long_factors": [*LONG[:7], 0.99]},
            r"encoding.long_factors must be finite and at least 1, and \[0.99\] is not",
        ),
        ({"long_factors": [*LONG[:7], math.inf]}, "encoding.long_factors must be finite"),
        ({"long_factors": [*LONG[:7], math.nan]}, "encoding.long_factors must be finite"),
        ({"long_factors": LONG, "short_factors": [0.0] * 8}, "encoding.short_factors must be .* are not"),
    ],
)
def test_longrope_factors_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LongRoPE(WIDTH, TRAIN, **options)
