"""What the scalings of RoPE share: other frequencies, for windows longer than those of training.

A scaling is a pure function of the window's length. It gives the frequencies [K/2] and an attention
factor a, which multiplies the cosines and the sines of queries and of keys, and so the logits by a^2.

The factor s says how much longer. Where it is not given it is max(1, window / train_length), the window
being all the tokens of one pass, whatever their positions: training is then plain rope, and what a token
gets depends on how many follow it. A given factor holds at every length, in training too.

After partial RoPE `fraction` is that of the features that are turned, over which the frequencies are spread;
the others are left alone, by the attention factor too, as in Hugging Face's transformers. After p-RoPE it is
that of the frequencies that are kept, and the slow ones stay 0.

The formulas that several scalings need are here as well.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.families import ROTARY
from pe_bench.encodings.rotary.rope import (
    FractionOf,
    Layout,
    require_base,
    require_pairs,
    rope_frequencies,
    rotate,
    slow_ones_zeroed,
    turned_pairs,
)
from pe_bench.errors import require

Ramp = Literal["index", "exact", "turns"]


class Scaled(NamedTuple):
    frequencies: Tensor  # [K/2] float64
    attention_factor: float = 1.0


class RopeScaling(LayerEncoding, ABC):
    """RoPE at the frequencies that `scaled` gives.

    Options:

    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    train_length: up to here the factor of the window is 1
    factor: null: of the window, max(1, window / train_length); or a number, at every length
    """

    family = "rotary"
    claims = frozenset({"shift_invariant", "norm_preserving"})
    compatible_with = ROTARY
    window_factor = "factor"
    smallest_width: ClassVar[int] = 2

    def __init__(
        self,
        d_head: int,
        train_length: int,
        factor: float | None = None,
        base: float = 10_000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__()
        require_pairs(d_head)
        require_base(base)
        self.pairs = turned_pairs(d_head, fraction, fraction_of)
        self.width = 2 * self.pairs if fraction_of == "features" else d_head
        part = f" of which {self.width} are turned" if self.width < d_head else ""
        require(
            self.width >= self.smallest_width,
            f"the head width must be at least {self.smallest_width}, not model.d_head={d_head}{part}",
        )
        require(train_length > 1, f"encoding.train_length must be at least 2 tokens, not {train_length}")
        require(
            factor is None or factor >= 1,
            f"encoding.factor must be at least 1, or null for that of the window, not {factor}",
        )
        self.train_length = train_length
        self.factor = factor
        self.base = base
        self.layout: Layout = layout
        if factor is not None:
            self.claims = frozenset({"prefix_consistent", *self.claims})

    def factor_at(self, window: int) -> float:
        """Return the factor s for a window of so many tokens."""
        return max(1.0, window / self.train_length) if self.factor is None else self.factor

    @abstractmethod
    def scaled(self, window: int) -> Scaled:
        """Return the frequencies and the attention factor for a window of so many tokens."""

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        with queries.x.device:  # where `scaled` creates its tensors: a copy would halt the GPU in every layer
            scaled = self.scaled(keys.x.shape[-2])
            scaled = scaled._replace(frequencies=slow_ones_zeroed(scaled.frequencies, self.pairs))
        return self._turn(queries.x, queries.position, scaled), self._turn(keys.x, keys.position, scaled)

    def _turn(self, x: Tensor, position: Tensor, scaled: Scaled) -> Tensor:
        # Rounded once, at the end.
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        first, rest = precise.tensor_split([self.width], -1)
        turned = rotate(scaled.attention_factor * first, position, scaled.frequencies, self.layout)
        return (torch.cat([turned, rest], -1) if rest.shape[-1] else turned).to(x.dtype)


def ntk_frequencies(width: int, base: float, factor: float) -> Tensor:
    """Return theta' [width / 2] in float64, for widths from 4 on."""
    return rope_frequencies(width, base * factor ** (width / (width - 2)))


def by_parts_frequencies(
    width: int,
    base: float,
    train_length: int,
    factor: float,
    ramp: Ramp = "index",
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Return theta' [width / 2] in float64."""
    frequencies = rope_frequencies(width, base)
    if ramp == "turns":
        turns = train_length * frequencies / (2 * math.pi)
        kept = (turns - beta_slow) / (beta_fast - beta_slow)
    else:
        first, last = ramp_ends(width, base, train_length, beta_fast, beta_slow, is_exact=ramp == "exact")
        kept = 1 - (torch.arange(width // 2, dtype=torch.float64) - first) / max(last - first, 0.001)
    return torch.lerp(frequencies / factor, frequencies, kept.clamp(0, 1))


def ramp_ends(
    width: int, base: float, train_length: int, beta_fast: float, beta_slow: float, is_exact: bool = False
) -> tuple[float, float]:
    """Return the indices of the last pair that is kept whole and of the first that is interpolated whole.

    They are whole numbers, unless it is to be exact.
    """

    def index_of(turns: float) -> float:
        return width * math.log(train_length / (2 * math.pi * turns)) / (2 * math.log(base))

    first, last = index_of(beta_fast), index_of(beta_slow)
    if not is_exact:
        first, last = math.floor(first), math.ceil(last)
    return max(first, 0), min(last, width - 1)


def require_ramp(beta_fast: float, beta_slow: float) -> None:
    require(
        beta_fast > beta_slow > 0,
        f"encoding.beta_fast={beta_fast} must exceed encoding.beta_slow={beta_slow}, and that 0: they are "
        "turns within the training length",
    )
