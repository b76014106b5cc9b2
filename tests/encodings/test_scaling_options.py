"""Options of scaled rotary encodings."""

from collections.abc import Callable
from typing import Any

import pytest
from support.scalings import TRAIN, WIDTH, every_scaling, scaling

from pe_bench.encodings.scalings.llama3 import Llama3
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.encodings.scalings.rope_ntk import RopeNTK
from pe_bench.encodings.scalings.rope_ntk_by_parts import RopeNTKByParts
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.encodings.scalings.rope_scaling import (
    RopeScaling,
)
from pe_bench.encodings.scalings.yarn import YaRN
from pe_bench.errors import UserError

# options


@every_scaling
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_head": 15}, "d_head=15"),
        ({"base": 1.0}, "encoding.base must exceed 1.*1.0"),
        ({"train_length": 1}, "encoding.train_length must be at least 2 tokens, not 1"),
        ({"factor": 0.0}, "encoding.factor must be .*not 0.0"),
    ],
)
def test_option_that_cannot_work_is_told_to_the_user(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        scaling(name, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RopePI(WIDTH, TRAIN, factor=0.5), "encoding.factor must be at least 1.*not 0.5"),
        (lambda: RopeNTK(2, TRAIN), "at least 4, not model.d_head=2"),
        (lambda: RopeDynamicNTK(2, TRAIN), "at least 4, not model.d_head=2"),
        (lambda: YaRN(WIDTH, TRAIN, beta_fast=1.0), "beta_fast=1.0 must exceed encoding.beta_slow=1.0"),
        (lambda: RopeNTKByParts(WIDTH, TRAIN, beta_slow=0.0), "beta_slow=0.0, and that 0"),
        (lambda: YaRN(WIDTH, TRAIN, attention_factor=0.0), "encoding.attention_factor must be positive.*0.0"),
        (
            lambda: Llama3(WIDTH, TRAIN, low_frequency_factor=4.0),
            "high_frequency_factor=4.0 must exceed encoding.low_frequency_factor=4.0",
        ),
        (lambda: Llama3(WIDTH, TRAIN, low_frequency_factor=-1.0), "low_frequency_factor=-1.0, and that 0"),
    ],
)
def test_option_of_one_that_cannot_work_is_told_to_the_user(
    make: Callable[[], RopeScaling], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make()
