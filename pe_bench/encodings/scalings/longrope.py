r"""LongRoPE: RoPE with a factor for each pair, theta'_c = theta_c / lambda_c, found by search for each model.

Windows longer than the training length L take lambda from `long_factors`, others from `short_factors`,
which are ones where they are not given. Queries and keys are both multiplied by
a = sqrt(1 + ln s / ln L), and so the logits by a^2.

$\theta'_c = \frac{\theta_c}{\lambda_c}, \quad q \mapsto a q, \; k \mapsto a k, \; a = \sqrt{1 + \frac{\ln
s}{\ln L}}$

Past the training length: defined; the frequencies jump where the window becomes longer than that.

Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv:2402.13753.

There is no default for lambda: the search needs the model, and `extend` makes one of its own. The switch at
the training length is that of Hugging Face's transformers and of the authors' code,
https://github.com/microsoft/LongRoPE, which has ones up to it. The paper's n-hat, first tokens of a text
that are left as they were, is ignored, as it is in transformers. Both have one s, the target length over L,
for windows of all lengths, as here where `factor` is given.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import Factor
from pe_bench.encodings.rotary.rope import pairs_within, rope_frequencies
from pe_bench.encodings.scalings.rope_ntk_by_parts import RopeNTKByParts
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, ScaledRotation, ntk_frequencies
from pe_bench.errors import require


def longrope_attention_factor(factor: float, train_length: int) -> float:
    growth = math.log(factor) / math.log(train_length)
    return math.sqrt(1 + growth)


@dataclass(eq=False)
class LongRoPE(RopeScaling):
    """Options:

    train_length: longer windows take long_factors
    factor: for the attention factor alone; null: max(1, window / train_length); or a number
    long_factors: must be given: d_head / 2 numbers from 1 on, for windows beyond train_length
    short_factors: the same for windows up to it; null: ones
    """

    searched = "long_factors"

    long_factors: list[Factor] | None = None
    short_factors: list[Factor] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = self.width // 2
        require(
            self.long_factors is not None,
            "longrope has no default factors, because they are searched for each model: give "
            f"encoding.long_factors=[...] with d_head/2 = {pairs} numbers of at least 1",
        )
        self.long = nn.Buffer(self._divisors("long_factors"), persistent=False)
        self.short = nn.Buffer(self._divisors("short_factors"), persistent=False)
        if self.factor != 1:
            self.claims = self.claims - {"norm_preserving"}
        if self.long_factors != (self.short_factors or [1.0] * pairs):
            self.claims = self.claims - {"prefix_consistent"}

    def _divisors(self, option: str) -> Tensor:
        """Return the lambda of each pair [K/2] from one of the two options; ones where it is not given.

        option: long_factors or short_factors. Raises `UserError` for a wrong number of factors.
        """
        pairs = self.width // 2
        factors = getattr(self, option) or [1.0] * pairs
        wrong = f"encoding.{option} must have {pairs} numbers, one a pair, not {len(factors)}"
        require(len(factors) == pairs, wrong)
        return torch.tensor(factors, dtype=torch.float64)

    @classmethod
    def example(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return factors that rise from 1 to 4, which no search has found."""
        is_spread = options.get("fraction_of") != "frequencies"
        pairs = pairs_within(options["d_head"], options.get("fraction", 1.0) if is_spread else 1.0)
        return {"long_factors": torch.linspace(1, 4, pairs).tolist()}

    @classmethod
    def guesses(cls, options: Mapping[str, Any], length: int) -> list[list[float]]:
        """Return factors that reproduce RoPE, interpolation, NTK-aware scaling and NTK by parts."""
        width = 2 * len(cls.example(options)["long_factors"])
        base = options.get("base", 10_000.0)
        train_length = options["train_length"]
        plain = rope_frequencies(width, base)
        factor = length / train_length
        ntk = ntk_frequencies(width, base, factor) if width > 2 else plain / factor
        parts = RopeNTKByParts(d_head=width, train_length=train_length, base=base).scaled(length).frequencies
        guesses: list[list[float]] = []
        for frequencies in (plain, plain / factor, ntk, parts):
            factors = (plain / frequencies).round(decimals=2)
            guesses.append(factors.clamp(min=1).tolist())
        return guesses

    def scaled(self, window: int) -> ScaledRotation:
        factors = self.long if window > self.train_length else self.short
        frequencies = rope_frequencies(self.width, self.base) / factors.double()
        attention_factor = longrope_attention_factor(self.factor_at(window), self.train_length)
        return ScaledRotation(frequencies, attention_factor)
