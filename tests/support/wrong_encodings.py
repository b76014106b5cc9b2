"""Encodings that are wrong on purpose, each in one way, for `pe-bench check` to find."""

import torch
from torch import nn

from pe_bench.encodings import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.masks.ranges import latest
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.rotary.rope import rope_frequencies, rotate

BOTH = frozenset({"shift_invariant", "prefix_consistent"})


def distances(queries, keys):
    return (queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2)).clamp(min=0)


class Right(LayerEncoding):
    """A correct encoding."""

    claims = BOTH | {"decaying"}

    def distance_bias(self, distance):
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=distance.device)
        return -slopes[:, None] * distance


class TurnsByValues(LayerEncoding):
    """Right, too: `transform` reads what `prepare` returned."""

    claims = BOTH

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_heads, d_model) / d_model**0.5)

    def prepare(self, x):
        return {"factors": (x @ self.weight.mT.to(x.dtype)).tanh().mT}

    def transform(self, queries, keys):
        return queries.x, keys.x * (1 + 0.5 * keys.values["factors"].unsqueeze(-1)).to(keys.x.dtype)


class SeesTheNextToken(LayerEncoding):
    def visible(self, queries, keys):
        return keys.index <= queries.index.unsqueeze(-1) + 1


class OtherInTraining(LayerEncoding):
    """An encoding that behaves differently in training, in float32 with gradients."""

    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.125, 0.0625]), persistent=False)

    def distance_bias(self, distance):
        in_training = self.slopes.dtype == torch.float32 and torch.is_grad_enabled()
        return -(0.9 if in_training else 1.0) * self.slopes[:, None] * distance


class RangesTooNarrow(SlidingWindow):
    """The farthest visible key of the window is missing from the ranges."""

    def __init__(self):
        super().__init__(window=6)

    def ranges(self, start, stop):
        return latest(self.window - 1, start, stop)


class NullOfEachHead(LayerEncoding):
    def null_logit(self, queries):
        return torch.zeros(4)


class NullOfTheBlock(LayerEncoding):
    """A null logit that depends on which queries are asked together."""

    def null_logit(self, queries):
        return queries.raw.amax((-2, -1), keepdim=True)


class IdsReadLaterTokens(PositionalEncoding):
    def ids(self, tokens, *, train, generator):
        return (tokens == 9).long().flip(-1).cumsum(-1).flip(-1) + torch.arange(tokens.shape[-1])

    def embed(self, x, ids, tokens):
        return x + sinusoids(ids, x.shape[-1], 100.0, "interleaved").to(x.dtype)


class Rotary(LayerEncoding):
    """Shared by the rotary mistakes; `turn` is rope's."""

    claims = BOTH | {"norm_preserving"}

    def __init__(self, d_head: int):
        super().__init__()
        self.register_buffer("frequencies", rope_frequencies(d_head, 100.0), persistent=False)

    def turn(self, x, position):
        return rotate(x, position, self.frequencies, "half")

    def transform(self, queries, keys):
        return self.turn(queries.x, queries.position), self.turn(keys.x, keys.position)


class AnglesOverTheNumberOfKeys(Rotary):
    def turn(self, x, position):
        return super().turn(x, position.double() * 32 / x.shape[-2])


class PositionsInTheTypeOfQueries(Rotary):
    def turn(self, x, position):
        return super().turn(x, position.to(x.dtype))


class AnglesInSinglePrecision(Rotary):
    """Angles are in float32, or in float64 for features in float64."""

    def turn(self, x, position):
        precise = torch.promote_types(x.dtype, torch.float32)
        angle = position.to(precise).unsqueeze(-1) * self.frequencies.to(precise)
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class InputAnglesInSinglePrecision(PositionalEncoding):
    def embed(self, x, ids, tokens):
        precise = torch.promote_types(x.dtype, torch.float32)
        angle = ids.to(precise).unsqueeze(-1) * rope_frequencies(x.shape[-1], 100.0).to(ids.device, precise)
        return x + torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype)


class LearnedSlopes(LayerEncoding):
    """Right: a slope above zero favours the farthest keys, with logits in the thousands."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.slopes = nn.Parameter(torch.zeros(n_heads))

    def distance_bias(self, distance):
        return self.slopes[:, None] * distance


class PowersThatOverflow(LayerEncoding):
    claims = BOTH

    def transform(self, queries, keys):
        grown, shrunk = 1.01 ** queries.position.to(queries.x.dtype), 1.01 ** -keys.position.to(keys.x.dtype)
        return queries.x * grown.unsqueeze(-1), keys.x * shrunk.unsqueeze(-1)


class InputThatOverflows(PositionalEncoding):
    def embed(self, x, ids, tokens):
        return x + 0.5 * (0.01 * ids.to(x.dtype)).exp().unsqueeze(-1)


class NormsChange(Rotary):
    def turn(self, x, position):
        return 1.1 * super().turn(x, position)


class SilentPastItsEnd(PositionalEncoding):
    past_training = "undefined"

    def embed(self, x, ids, tokens):
        return x + sinusoids(ids, x.shape[-1], 100.0, "interleaved").to(x.dtype)


class IdsOfTheGlobalGenerator(SilentPastItsEnd):
    past_training = "defined"

    def ids(self, tokens, *, train, generator):
        length = tokens.shape[-1]
        return torch.randperm(2 * length)[:length].sort().values if train else torch.arange(length)


class AddsTheFirstValue(LayerEncoding):
    def mix(self, weights, v, queries, keys):
        return weights @ v + 0.1 * v[..., :1, :]


class BatchMean(LayerEncoding):
    def adjust(self, scores, visible, queries, keys):
        return scores - 0.5 * scores.mean(0, keepdim=True)


class LongestSeen(Rotary):
    """An encoding that remembers the longest length, as if texts could only grow."""

    def __init__(self, d_head: int):
        super().__init__(d_head)
        self.longest = 1

    def turn(self, x, position):
        self.longest = max(self.longest, x.shape[-2])
        return super().turn(x, position.double() * 32 / self.longest)


class CacheByLengthAndEnds(Rotary):
    """Positions are kept, by their number, the first and the last."""

    def __init__(self, d_head: int):
        super().__init__(d_head)
        self.kept = {}

    def turn(self, x, position):
        if x.device.type == "meta":
            return super().turn(x, position)
        key = (position.shape, float(position.flatten()[0]), float(position.flatten()[-1]))
        return super().turn(x, torch.tensor(self.kept.setdefault(key, position.tolist())))


class SharedCacheByLengthAndEnds(CacheByLengthAndEnds):
    shared = {}

    def __init__(self, d_head: int):
        super().__init__(d_head)
        self.kept = self.shared


class TextCacheByEnds(PositionalEncoding):
    """The number of full stops so far is kept, by the length of the text, its first and its last token."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def embed(self, x, ids, tokens):
        key = (tokens.shape, *tokens[:, 0].tolist(), *tokens[:, -1].tolist())
        count = torch.tensor(self.kept.setdefault(key, (tokens == 9).cumsum(-1).tolist()))
        place = sinusoids(ids, x.shape[-1], 100.0, "interleaved")
        return x + (place + 0.1 * count.unsqueeze(-1)).to(x.dtype)


class ColumnsEndAfterOneChunk(Right):
    """Wrong on the path with columns from the 257th key on."""

    def columns(self, queries, keys):
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
        places = [side.position.unsqueeze(-1).double() for side in (queries, keys)]
        ones = [torch.ones_like(place) for place in places]
        late = torch.cat([ones[1], places[1] - (keys.index > 256).double().unsqueeze(-1)], -1)
        return torch.cat([-slopes * places[0], slopes * ones[0]], -1).to(queries.x.dtype), late.to(
            keys.x.dtype
        )


class PlaceTakenForIndex(LayerEncoding):
    """Right where the keys begin at the first token, and so not with a window from outside."""

    claims = frozenset({"prefix_consistent", "shift_invariant"})

    def bias(self, queries, keys):
        start = queries.position[..., :1] - queries.index[:1]
        place = torch.arange(len(keys.index), device=keys.index.device) + start
        if not (keys.position.diff(dim=-1) == 1).all():
            place = keys.position
        bias = -0.1 * (queries.position.unsqueeze(-1) - place.unsqueeze(-2)).clamp(min=0)
        return bias.unsqueeze(0) if bias.dim() == 2 else bias


class OffByOneUnderAnOffset(PositionalEncoding):
    def embed(self, x, ids, tokens):
        place = ids + (ids[..., :1] > 0)
        return x + sinusoids(place, x.shape[-1], 100.0, "interleaved").to(x.dtype)


class MadeOnTheCPU(LayerEncoding):
    def distance_bias(self, distance):
        return -torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None] * distance


class BiasWithHeadsLast(Right):
    def distance_bias(self, distance):
        return super().distance_bias(distance).mT


class BiasOfNumpy(Right):
    def distance_bias(self, distance):
        return super().distance_bias(distance).numpy()


class SqueezesOneToken(Right):
    def distance_bias(self, distance):
        return super().distance_bias(distance).squeeze()


class VisibleIsAFactor(LayerEncoding):
    def visible(self, queries, keys):
        return (keys.index <= queries.index.unsqueeze(-1)).float()


class LogarithmOfZero(LayerEncoding):
    def distance_bias(self, distance):
        rise = torch.tensor([0.0, 0.5, 0.0, 0.0])[:, None]
        return rise * distance.double().log()


class HidesByAnInfiniteBias(LayerEncoding):
    def distance_bias(self, distance):
        return torch.zeros(4, len(distance)).masked_fill(distance > 5, float("-inf"))


class DropoutInAHook(Right):
    def adjust(self, scores, visible, queries, keys):
        return nn.functional.dropout(scores, 0.1, self.training)


class RaisesInForward(LayerEncoding):
    def logit_scale(self, queries):
        raise ZeroDivisionError("a mistake\nof two lines")


class NeedsAnOption(LayerEncoding):
    def __init__(self, d_head: int, strength: float):
        super().__init__()
        if strength > 9:
            raise KeyError("strong")
        self.strength = strength

    def logit_scale(self, queries):
        return torch.full_like(queries.x[..., :1], 1 + self.strength)


class NoEncoding:
    pass


class BiasThatRises(LayerEncoding):
    claims = BOTH | {"decaying"}

    def distance_bias(self, distance):
        return (0.1 * distance - 0.01 * distance.float().square()).expand(4, -1)


class DecayWithoutBias(Rotary):
    claims = BOTH | {"decaying"}


class UndefinedWithoutNumbers(SilentPastItsEnd):
    def embed(self, x, ids, tokens):
        if ids.max() > 31:
            raise LengthError("too long")
        return super().embed(x, ids, tokens)


class ClampsWithoutEnd(LayerEncoding):
    past_training = "clamps"

    def distance_bias(self, distance):
        return -distance.double().log1p().expand(4, -1)


class DefinedAndNotANumber(LayerEncoding):
    def distance_bias(self, distance):
        return (99 - distance).double().log().expand(4, -1)


class ParameterWithoutUse(Right):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


class LoudInput(PositionalEncoding):
    def embed(self, x, ids, tokens):
        return x + 5 * sinusoids(ids, x.shape[-1], 100.0, "interleaved").to(x.dtype)


class ShiftNotClaimed(Right):
    claims = frozenset({"prefix_consistent", "decaying"})


class ShiftNotClaimedUndefined(LayerEncoding):
    """An encoding that refuses large positions and is invariant within the others."""

    past_training = "undefined"
    claims = frozenset({"prefix_consistent"})

    def transform(self, queries, keys):
        if keys.position.max() > 31:
            raise LengthError(f"32 positions, and none for {int(keys.position.max())}")
        return rotate(queries.x, queries.position, rope_frequencies(8, 9.0), "half"), rotate(
            keys.x, keys.position, rope_frequencies(8, 9.0), "half"
        )


class HookMisspelt(Right):
    def colums(self, queries, keys):
        return None


class HookOfTheOtherClass(Right):
    def embed(self, x, ids, tokens):
        return 2 * x


class NamedInertAndMoves(LayerEncoding):
    inert = frozenset({"strength"})

    def __init__(self, n_heads: int):
        super().__init__()
        self.strength = nn.Parameter(torch.ones(n_heads))

    def distance_bias(self, distance):
        return -self.strength[:, None] * distance


class PhaseThatCancels(Rotary):
    """Queries and keys are turned by the same learned angle, which no product of the two depends on."""

    def __init__(self, d_head: int):
        super().__init__(d_head)
        self.phase = nn.Parameter(torch.zeros(d_head // 2))

    def turn(self, x, position):
        a, b = super().turn(x, position).chunk(2, -1)
        cos, sin = self.phase.cos(), self.phase.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class ClampedAt1024(Right):
    claims = BOTH

    def distance_bias(self, distance):
        return super().distance_bias(distance.clamp(max=1_024))


class WindowSeesOneMore(LayerEncoding):
    def __init__(self, window: int = 8):
        super().__init__()
        self.window = window

    def visible(self, queries, keys):
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance <= self.window)


class OptionNeverRead(Right):
    def __init__(self, strength: float = 0.5):
        super().__init__()


class OptionOnlyKept(Right):
    def __init__(self, strength: float = 0.5):
        super().__init__()
        self.strength = strength


class RandomFeaturesNotSaved(LayerEncoding):
    def __init__(self, n_heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.rand(n_heads), persistent=False)

    def distance_bias(self, distance):
        return -self.slopes[:, None] * distance


class GradientThatIsNotANumber(LayerEncoding):
    """The root's slope at distance 0 is infinite."""

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.ones(4, 1))

    def distance_bias(self, distance):
        return -(self.strength.square() * distance).sqrt()


class HalfAGradient(LayerEncoding):
    def __init__(self, n_heads: int):
        super().__init__()
        self.strength = nn.Parameter(torch.ones(n_heads))

    def distance_bias(self, distance):
        return -0.5 * (self.strength + self.strength.detach())[:, None] * distance


class SlopesByKeyHead(LayerEncoding):
    def __init__(self, n_heads: int, n_kv_heads: int):
        super().__init__()
        self.strength = nn.Parameter(torch.linspace(0.1, 1.0, n_kv_heads))
        self.group = n_heads // n_kv_heads

    def distance_bias(self, distance):
        return -self.strength.repeat_interleave(self.group)[:, None] * distance
