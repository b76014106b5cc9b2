"""Widespread mistakes in positional encodings, each written out, for the tests to find.

Such code trains and gives numbers. Letters: B batch, H heads, T tokens, K head width, D model width.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, Side
from pe_bench.encodings.rotary.rope import rope_frequencies

# Sinusoids [T, D]. What they get wrong is the exponent of 10,000.


def sinusoids_with_one_exponent_a_column(position: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """Sine and cosine of a pair turn at two speeds."""
    column = torch.arange(width, dtype=torch.float64)
    angle = position.double().unsqueeze(-1) / base ** (column / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


def sinusoids_with_exclusive_or(position: Tensor, width: int, base: int = 10_000) -> Tensor:
    """`^` is no power in Python, and `//` no division."""
    pairs = [position.double() / (base ^ (2 * pair // width)) for pair in range(width // 2)]
    return torch.stack([column for angle in pairs for column in (angle.sin(), angle.cos())], -1)


def sinusoids_with_exponents_not_divided(position: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """The angles are in float32, where base^10 is infinite."""
    angle = position.float().unsqueeze(-1) / base ** torch.arange(0, width, 2).float()
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


# Rotations.


class Turned(LayerEncoding):
    """Correct, in the layout of halves; shared by the rotary mistakes."""

    family = "rotary"
    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    frequencies: Tensor

    def __init__(self, d_head: int):
        super().__init__()
        self.register_buffer("frequencies", rope_frequencies(d_head, 10_000.0), persistent=False)

    def angle(self, position: Tensor) -> Tensor:
        return position.double().unsqueeze(-1) * self.frequencies.double()

    def turn(self, x: Tensor, position: Tensor, sense: int = 1) -> Tensor:
        angle = torch.cat([self.angle(position)] * 2, -1)
        a, b = x.chunk(2, -1)
        return (x * angle.cos() + sense * torch.cat([-b, a], -1) * angle.sin()).to(x.dtype)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return self.turn(queries.x, queries.position), self.turn(keys.x, keys.position)


class HalvesWithInterleavedAngles(Turned):
    """Pairs (c, c + K/2), angles of pairs (2c, 2c + 1)."""

    def turn(self, x: Tensor, position: Tensor, sense: int = 1) -> Tensor:
        angle = self.angle(position).repeat_interleave(2, -1)
        a, b = x.chunk(2, -1)
        return (x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()).to(x.dtype)


class KeysTurnBackwards(Turned):
    """Queries turn one way, and keys the other: scores depend on the sum of positions."""

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return self.turn(queries.x, queries.position), self.turn(keys.x, keys.position, -1)


class BothTurnBackwards(Turned):
    """Still a rotation, but not the paper's."""

    def turn(self, x: Tensor, position: Tensor, sense: int = 1) -> Tensor:
        return super().turn(x, position, -1)


class TurnedAndForgotten(Turned):
    """The rotated queries and keys are dropped."""

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        super().transform(queries, keys)
        return queries.x, keys.x


class FrequenciesInAPlainTensor(Turned):
    """The frequencies stay on their device when the model moves."""

    def __init__(self, d_head: int):
        nn.Module.__init__(self)
        self.frequencies = rope_frequencies(d_head, 10_000.0)


class FrequenciesAreSaved(Turned):
    def __init__(self, d_head: int):
        nn.Module.__init__(self)
        self.register_buffer("frequencies", rope_frequencies(d_head, 10_000.0))


class AlwaysFromZero(Turned):
    """Positions are counted and the given ones ignored."""

    def turn(self, x: Tensor, position: Tensor, sense: int = 1) -> Tensor:
        return super().turn(x, torch.arange(x.shape[-2]), sense)


class HeadsMerged(Turned):
    """Complex numbers made real again over the wrong axis."""

    def turn(self, x: Tensor, position: Tensor, sense: int = 1) -> Tensor:
        angle = self.angle(position)
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(2).to(x.dtype)


class FrequenciesOfTheModelsWidth(Turned):
    """The first K/2 of D/2 frequencies: none of them is slow."""

    def __init__(self, d_head: int, d_model: int):
        super().__init__(d_head)
        self.frequencies = rope_frequencies(d_model, 10_000.0)[: d_head // 2]


# Tables of absolute positions.


class TableThatIsIndexed(PositionalEncoding):
    past_training = "undefined"

    def __init__(self, d_model: int, max_position: int):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(max_position, d_model))

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return x + self.table[ids.long()].to(x.dtype)


class TableThatIsSliced(TableThatIsIndexed):
    """A length past its end meets a shape that does not fit."""

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]].to(x.dtype)


class SinusoidsInAPlainTensor(PositionalEncoding):
    def __init__(self, d_model: int):
        super().__init__()
        self.table = sinusoids_with_one_exponent_a_column(torch.arange(128), d_model)

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return x + self.table[ids.long()].to(x.dtype)


# Relative keys and values. Row 0 of the tables is for the most distant key.


class RelativeKeys(LayerEncoding):
    """Shared by the relative mistakes: tables of `max_distance` + 1 rows."""

    family = "relative"
    past_training = "clamps"

    def __init__(self, d_head: int, max_distance: int = 2):
        super().__init__()
        self.max_distance = max_distance
        self.keys = nn.Parameter(torch.randn(max_distance + 1, d_head))
        self.values = nn.Parameter(torch.randn(max_distance + 1, d_head))

    def rows(self, queries: Side, keys: Side) -> Tensor:
        offset = keys.position.unsqueeze(-2) - queries.position.unsqueeze(-1)
        return (offset.clamp(-self.max_distance, 0) + self.max_distance).long()

    def relative(self, queries: Side, keys: Side) -> Tensor:
        return (queries.x.unsqueeze(-2) * self.keys[self.rows(queries, keys)].to(queries.x.dtype)).sum(-1)

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        by_pair = self.values[self.rows(queries, keys)].to(v.dtype)
        return weights @ v + (weights.unsqueeze(-1) * by_pair).sum(-2)


class RelativeWithPairs(RelativeKeys):
    """Correct, but with a tensor of every pair's features: T x T x K."""

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        return scale * (queries.x @ keys.x.mT + self.relative(queries, keys))


class RelativeQueriesToo(RelativeKeys):
    """A vector for each token, where the paper has one for each pair."""

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        rows = self.keys[: len(queries.index)], self.keys[: len(keys.index)]
        moved = [
            side.x + nn.functional.pad(row, (0, 0, 0, len(side.index) - len(row)))
            for side, row in zip((queries, keys), rows, strict=True)
        ]
        return scale * (moved[0] @ moved[1].mT)


class RelativeBesideTheScale(RelativeKeys):
    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        return scale * (queries.x @ keys.x.mT) + self.relative(queries, keys)


class RelativeValuesUnused(RelativeWithPairs):
    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        return weights @ v


class RelativeTheOtherWay(RelativeWithPairs):
    """clip(i - j): all keys of a decoder are on the side where row 0 is the nearest."""

    def rows(self, queries: Side, keys: Side) -> Tensor:
        offset = queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2)
        return offset.clamp(0, self.max_distance).long()


# Attention itself.


class NoRoot(LayerEncoding):
    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        return queries.x @ keys.x.mT


class NoMask(LayerEncoding):
    def visible(self, queries: Side, keys: Side) -> Tensor:
        return torch.ones(len(queries.index), len(keys.index), dtype=torch.bool)


class FiniteMask(LayerEncoding):
    """Masked, unless all visible scores are even lower."""

    low = -1e9

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.masked_fill(~visible, self.low).softmax(-1)


class LowerMask(FiniteMask):
    low = -1e4
