"""LongRoPE: RoPE with a factor for each pair, theta'_c = theta_c / lambda_c, found by search for each model.

Windows longer than the training length L take lambda from `long_factors`, others from `short_factors`,
which are ones where they are not given. Queries and keys are both multiplied by
a = sqrt(1 + ln s / ln L), and so the logits by a^2.

Past the training length: defined; the frequencies jump where the window becomes longer than that.

Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv:2402.13753.

There is no default for lambda: the search needs the model, and pe-bench does not make it. The switch at
the training length is that of Hugging Face's transformers and of the authors' code,
https://github.com/microsoft/LongRoPE, which has ones up to it. The paper's n-hat, first tokens of a text
that are left as they were, is ignored, as it is in transformers. Both have one s, the target length over L,
for windows of all lengths, as here where `factor` is given.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pe_bench.encodings.rotary.rope import FractionOf, Layout, pairs_within, rope_frequencies
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, Scaled
from pe_bench.errors import require


def longrope_frequencies(width: int, base: float, factors: Tensor) -> Tensor:
    """Return theta' [width / 2] in float64, from a factor for each pair."""
    return rope_frequencies(width, base) / factors.double()


def longrope_attention_factor(factor: float, train_length: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(train_length))


class LongRoPE(RopeScaling):
    """Options:

    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    train_length: longer windows take long_factors
    factor: for the attention factor alone; null: max(1, window / train_length); or a number
    long_factors: must be given: d_head / 2 numbers from 1 on, for windows beyond train_length
    short_factors: the same for windows up to it; null: ones
    """

    paper = "arXiv:2402.13753"

    long_factors: Tensor
    short_factors: Tensor

    def __init__(
        self,
        d_head: int,
        train_length: int,
        factor: float | None = None,
        base: float = 10_000.0,
        layout: Layout = "half",
        long_factors: list[float] | None = None,
        short_factors: list[float] | None = None,
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, train_length, factor, base, layout, fraction, fraction_of)
        pairs = self.width // 2
        require(
            long_factors is not None,
            "longrope has no default factors, because they are searched for each model: give "
            f"encoding.long_factors=[...] with d_head/2 = {pairs} numbers of at least 1, and "
            f"encoding.short_factors=[...] if windows of up to {train_length} tokens have others than ones",
        )
        assert long_factors is not None
        short_factors = [1.0] * pairs if short_factors is None else short_factors
        for name, factors in (("long_factors", long_factors), ("short_factors", short_factors)):
            require_factors(f"encoding.{name}", factors, pairs)
            self.register_buffer(name, torch.tensor(factors, dtype=torch.float64), persistent=False)
        if factor != 1:
            self.claims = self.claims - {"norm_preserving"}
        if long_factors != short_factors:
            self.claims = self.claims - {"prefix_consistent"}

    @classmethod
    def example(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return factors that rise from 1 to 4: not those of any search."""
        is_spread = options.get("fraction_of") != "frequencies"
        pairs = pairs_within(options["d_head"], options.get("fraction", 1.0) if is_spread else 1.0)
        return {"long_factors": torch.linspace(1, 4, pairs).tolist()}

    def scaled(self, window: int) -> Scaled:
        factors = self.long_factors if window > self.train_length else self.short_factors
        return Scaled(
            longrope_frequencies(self.width, self.base, factors),
            longrope_attention_factor(self.factor_at(window), self.train_length),
        )


def require_factors(name: str, factors: list[float], pairs: int) -> None:
    require(
        len(factors) == pairs,
        f"{name} must have {pairs} numbers, one for each pair of features of a head, not {len(factors)}",
    )
    wrong = [number for number in factors if not (math.isfinite(number) and number >= 1)]
    require(
        not wrong, f"{name} must be finite and at least 1, and {wrong[:3]} {'are' if wrong[1:] else 'is'} not"
    )
