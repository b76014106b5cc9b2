"""Encodings that are not what they declare: claims, limits, hooks, options, parameters, their gradients."""

import torch
from support.wrong_encodings import BOTH, Right, Rotary, SilentPastItsEnd, distances
from torch import nn

from pe_bench.encodings import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.rotary.rope import rope_frequencies, rotate


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


class DefinedThatRaises(UndefinedWithoutNumbers):
    past_training = "defined"


class DefinedAndNotANumber(LayerEncoding):
    def distance_bias(self, distance):
        return (99 - distance).double().log().expand(4, -1)


class ParameterWithoutUse(Right):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


class TableThatIsSaved(Right):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.ones(4))


class TableThatStaysBehind(Right):
    def __init__(self):
        super().__init__()
        self.slopes = torch.ones(4)


class LoudInput(PositionalEncoding):
    def embed(self, x, ids, tokens):
        return x + 5 * sinusoids(ids, x.shape[-1], 100.0, "interleaved").to(x.dtype)


class ShiftNotClaimed(Right):
    claims = frozenset({"prefix_consistent", "decaying"})


class ShiftClaimed(SilentPastItsEnd):
    past_training = "defined"
    claims = BOTH


class ShiftNotClaimedUndefined(LayerEncoding):
    """An encoding that refuses large positions and is invariant within the others."""

    past_training = "undefined"
    claims = frozenset({"prefix_consistent"})

    def transform(self, q, k, q_position, k_position):
        if k_position.max() > 31:
            raise LengthError(f"32 positions, and none for {int(k_position.max())}")
        return rotate(q, q_position, rope_frequencies(8, 9.0), "half"), rotate(
            k, k_position, rope_frequencies(8, 9.0), "half"
        )


class PrefixNotClaimed(Right):
    claims = frozenset({"shift_invariant", "decaying"})


class HookMisspelt(Right):
    def colums(self, queries, keys):
        return None


class HookOfTheOtherClass(Right):
    def embed(self, x, ids, tokens):
        return 2 * x


class BiasOfTheQueryAlone(LayerEncoding):
    """The softmax ignores a constant added to a whole row."""

    def bias(self, queries, keys):
        return -0.1 * queries.raw.sum(-1, keepdim=True).expand(-1, -1, -1, keys.index.numel())


class ScoresWithATermBesideTheScale(LayerEncoding):
    def scores(self, queries, keys, scale):
        return scale * (queries.x @ keys.x.mT) - 0.1 * distances(queries, keys)


class MaskIsALargeNumber(LayerEncoding):
    def weights(self, scores, visible):
        return (0.9 * scores).masked_fill(~visible, -1e9).softmax(-1)


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


class ScaleThatCancels(LayerEncoding):
    def __init__(self, d_head: int):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(d_head))

    def transform(self, q, k, q_position, k_position):
        return (q * self.gain.exp()).to(q.dtype), (k * (-self.gain).exp()).to(k.dtype)

    def distance_bias(self, distance):
        return -0.1 * distance.unsqueeze(0)


class ClampedAt1024(Right):
    claims = BOTH

    def distance_bias(self, distance):
        return super().distance_bias(distance.clamp(max=1_024))


class ClampedAtAThousand(Rotary):
    """Positions end at 1,000."""

    def turn(self, x, position):
        return super().turn(x, position.clamp(max=1_000))


class InputClampedAt1024(PositionalEncoding):
    def embed(self, x, ids, tokens):
        return x + sinusoids(ids.clamp(max=1_024), x.shape[-1], 100.0, "interleaved").to(x.dtype)


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


class BiasOfTheFirstCall(HalfAGradient):
    """The bias is kept from the first call, and later values of the parameter are not read."""

    kept = None

    def distance_bias(self, distance):
        if self.kept is None:
            self.kept = self.strength.tolist()
        return -(torch.tensor(self.kept) + 0 * self.strength)[:, None] * distance


class SlopesByKeyHead(LayerEncoding):
    def __init__(self, n_heads: int, n_kv_heads: int):
        super().__init__()
        self.strength = nn.Parameter(torch.linspace(0.1, 1.0, n_kv_heads))
        self.group = n_heads // n_kv_heads

    def distance_bias(self, distance):
        return -self.strength.repeat_interleave(self.group)[:, None] * distance
