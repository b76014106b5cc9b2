"""The base of RoPE's scalings: other frequencies, for windows longer than the training length.

A scaling is a pure function of the window's length. It gives the frequencies [K/2] and an attention
factor a, which multiplies the cosines and the sines of queries and of keys, and so the logits by a^2.

The factor s is the ratio of the window to the training length: max(1, window / train_length) by default, with
all tokens of one pass as the window, at any positions. Training is then plain rope, and a token's rotation
depends on the number of tokens after it. A given factor holds at every length, in training too.

After partial RoPE, `fraction` is the share of the features that are turned, over which the frequencies are
spread; neither rotation nor attention factor changes the other features, as in Hugging Face's transformers.
After p-RoPE, `fraction` is the share of the frequencies that are kept; slow frequencies stay 0.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import AtLeast2, Factor, LayerEncoding, Side, precise
from pe_bench.encodings.rotary.rope import RoPE, Rotary, rope_frequencies, rotate
from pe_bench.errors import require

ROUND_OFF = 1e-12  # the rounding error of float64


class ScaledRotation(NamedTuple):
    """The frequencies and the attention factor of a rotation in one window."""

    frequencies: Tensor  # [K/2] float64
    attention_factor: float = 1.0


@dataclass(eq=False)
class RopeScaling(Rotary, ABC):
    """RoPE at the frequencies of `scaled`.

    Options:

    train_length: up to here the factor of the window is 1
    factor: null: of the window, max(1, window / train_length); or a number, at every length
    """

    claims = frozenset({"shift_invariant", "norm_preserving"})
    window_factor = "factor"
    smallest_width = 2

    train_length: AtLeast2
    factor: Factor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        part = f" of which {self.width} are turned" if self.width < self.d_head else ""
        least = self.smallest_width
        wrong = f"the head width must be at least {least}, not model.d_head={self.d_head}{part}"
        require(self.width >= least, wrong)
        if self.factor is not None:
            self.claims = frozenset({"prefix_consistent", *self.claims})

    def factor_at(self, window: int) -> float:
        """Return the factor s for a window of this number of tokens."""
        if self.factor is not None:
            return self.factor
        return max(1.0, window / self.train_length)

    @abstractmethod
    def scaled(self, window: int) -> ScaledRotation:
        """Return the frequencies, before `keep_highest`, and the attention factor for a window of tokens."""

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        with queries.x.device:  # `scaled` creates its tensors there: a copy would halt the GPU in every layer
            frequencies, attention_factor = self.scaled(keys.x.shape[-2])
            scaled = ScaledRotation(self.keep_highest(frequencies), attention_factor)
        return self._turn(queries, scaled), self._turn(keys, scaled)

    def _turn(self, side: Side, scaled: ScaledRotation) -> Tensor:
        """Return queries or keys turned at the scaled frequencies, and times the attention factor."""
        # Rounded once, at the end.
        x = side.x.to(precise(side.x.dtype))
        first, rest = x.tensor_split([self.width], -1)
        turned = rotate(scaled.attention_factor * first, side.position, scaled.frequencies, self.layout)
        if rest.shape[-1] > 0:
            turned = torch.cat([turned, rest], -1)
        return turned.to(side.x.dtype)


def ntk_frequencies(width: int, base: float, factor: float) -> Tensor:
    """Return the frequencies theta' [width / 2] of NTK-aware scaling in float64; the width is 4 or more."""
    exponent = width / (width - 2)
    return rope_frequencies(width, base * factor**exponent)


def rotation_at(layer: LayerEncoding, window: int) -> ScaledRotation | None:
    """Return a layer's frequencies and attention factor in a window of this number of tokens.

    None for an encoding that is neither RoPE nor one of its scalings.
    """
    transform = type(layer).transform
    if isinstance(layer, RopeScaling) and transform is RopeScaling.transform:
        scaled = layer.scaled(window)
        return ScaledRotation(layer.keep_highest(scaled.frequencies), scaled.attention_factor)
    if isinstance(layer, RoPE) and transform is RoPE.transform:
        return ScaledRotation(layer.frequencies)
    return None


def have_equal_rotations(
    one: LayerEncoding, other: LayerEncoding, window: int, tolerance: float = ROUND_OFF
) -> bool:
    """Return true if two layers have equal rotations, up to `tolerance`, in a window of `window` tokens.

    False if one of the layers is neither RoPE nor one of its scalings.
    """
    first = rotation_at(one, window)
    second = rotation_at(other, window)
    if first is None or second is None:
        return False
    if first.frequencies.shape != second.frequencies.shape:
        return False
    has_one_layout = getattr(one, "layout", None) == getattr(other, "layout", None)
    has_one_factor = math.isclose(first.attention_factor, second.attention_factor, rel_tol=tolerance)
    frequencies = second.frequencies.to(first.frequencies.device)
    return has_one_layout and has_one_factor and torch.allclose(first.frequencies, frequencies, tolerance, 0)
