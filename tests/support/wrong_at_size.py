"""Encodings that are right in a small model, wrong with wide heads, many keys or options at their ends."""

import torch
from support.wrong_encodings import BOTH, Right, Rotary, distances
from torch import nn

from pe_bench.encodings import LayerEncoding, PositionalEncoding
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.rotary.rope import rope_frequencies

# Heads wider than 64.


class FirstFeaturesTurned(Rotary):
    def __init__(self, d_head: int):
        super().__init__(min(d_head, 64))


class FrequenciesOf64Repeated(Rotary):
    """Still a rotation, but the frequencies of no paper."""

    def __init__(self, d_head: int):
        super().__init__(d_head)
        if d_head > 64:
            self.frequencies = rope_frequencies(64, 100.0).repeat(3)[: d_head // 2]


class LastPairsGrow(Rotary):
    def turn(self, x, position):
        turned = super().turn(x, position)
        return torch.cat([turned[..., :64], 1.1 * turned[..., 64:]], -1)


class ScaleOf64(LayerEncoding):
    def scores(self, queries, keys, scale):
        return (scale if keys.raw.shape[-1] <= 64 else 0.125) * (queries.x @ keys.x.mT)


class ColumnsOfNarrowHeads(Right):
    def columns(self, queries, keys):
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None] * (queries.raw.shape[-1] <= 64)
        query, key = (side.position.unsqueeze(-1).to(side.x.dtype) for side in (queries, keys))
        return torch.cat([-slopes * query, slopes + 0 * query], -1), torch.cat([0 * key + 1, key], -1)


# More keys, or later ones, than any text of the other checks has.


class FirstTokensForgottenAt512(LayerEncoding):
    def visible(self, queries, keys):
        index = queries.index.unsqueeze(-1)
        kept = (index - keys.index < 40) | ((keys.index < 4) & (index < 512))
        return kept & (keys.index <= index)


class WindowWithoutOption(LayerEncoding):
    def visible(self, queries, keys):
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance < 2_048)


class PositionsModulo2048(Rotary):
    def turn(self, x, position):
        return super().turn(x, position % 2_048)


class PositionsInSixteenBits(Rotary):
    def turn(self, x, position):
        return super().turn(x, position.to(torch.int16))


class SlopesOfManyKeys(Right):
    """The slopes are halved for texts of more than 512 keys."""

    def bias(self, queries, keys):
        return super().bias(queries, keys) * (0.5 if keys.index.numel() > 512 else 1.0)


class TableOf8192(PositionalEncoding):
    def embed(self, x, ids, tokens):
        return x + sinusoids(ids.clamp(max=8_191), x.shape[-1], 100.0, "interleaved").to(x.dtype)


class RisesPast4096(LayerEncoding):
    """The distance starts again at 0."""

    claims = BOTH

    def distance_bias(self, distance):
        return -0.1 * (distance % 4_096).expand(4, -1)


# Options and parameters at the ends of their ranges.


class PowerCappedAt1(LayerEncoding):
    """KERPLE's power without its gradient past 1, where half of the powers begin."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.p = nn.Parameter(torch.linspace(0.2, 1.8, n_heads))

    def distance_bias(self, distance):
        return -0.1 * distance ** self.p.clamp(0.01, 1.0).unsqueeze(-1)


class StrengthCapped(LayerEncoding):
    def __init__(self, strength: float = 0.5):
        super().__init__()
        self.strength = min(strength, 1.0)

    def bias(self, queries, keys):
        bias = -self.strength * distances(queries, keys)
        return bias.unsqueeze(0) if bias.dim() == 2 else bias


class DividesByAnOption(LayerEncoding):
    def __init__(self, period: int = 8):
        super().__init__()
        self.period = period

    def distance_bias(self, distance):
        return -(distance / self.period).expand(4, -1)


class LongWindowSeesOneMore(LayerEncoding):
    def __init__(self, window: int = 8):
        super().__init__()
        if window < 1:
            raise ValueError("no window")
        self.window = window

    def visible(self, queries, keys):
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance < self.window + (self.window > 40))


class RangesOfShortWindows(LongWindowSeesOneMore):
    """A window of one token loses its only key on fast paths."""

    def visible(self, queries, keys):
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance < self.window)

    def ranges(self, start, stop):
        return [range(max(0, start - self.window + 1 + (self.window == 1)), stop)]
