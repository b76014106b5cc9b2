"""Encodings that are wrong on purpose, each in one way, for `pe-bench check` to find; and some right ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from pe_bench.encodings import LayerEncoding, PositionalEncoding
from pe_bench.encodings.content.gate import Gate
from pe_bench.encodings.content.short_conv import ShortConv
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.masks.ranges import window_ranges
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.recurrent import recurrence as recurrences
from pe_bench.encodings.recurrent.gated_deltanet import GatedDeltaNet
from pe_bench.encodings.recurrent.kda import KDA
from pe_bench.encodings.recurrent.recurrence import (
    TOKENS_PER_CHUNK,
    RecurrenceInputs,
    Recurrent,
    convolved,
    recurrence,
    rms_normed,
)
from pe_bench.encodings.recurrent.retention import Retention
from pe_bench.encodings.rotary.rope import rope_frequencies, rotate

BOTH = frozenset({"shift_invariant", "prefix_consistent"})
WRONG: dict[str, tuple[list[str], str]] = {}


def fails(properties: str, says: str = "") -> Callable[[type], type]:
    """Register a class with the properties that it fails, and what the first of these says."""

    def register(kind: type) -> type:
        WRONG[kind.__name__] = (properties.split(), says)
        return kind

    return register


# Right ones, from which others derive.


@fails("")
class Right(LayerEncoding):
    claims = BOTH | {"decaying"}

    def distance_bias(self, distance):
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=distance.device)
        return -slopes[:, None] * distance


@fails("")
class HelperLikeAHook(Right):
    claims = BOTH

    def weight(self, distance):
        return 1 / (1 + distance)

    def distance_bias(self, distance):
        return torch.stack([self.weight(factor * distance).log() for factor in range(1, 5)])


class LearnedSlopes(LayerEncoding):
    """A slope above zero favours the farthest keys, with logits in the thousands."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.slopes = nn.Parameter(torch.ones(n_heads))

    def distance_bias(self, distance):
        return self.slopes[:, None] * distance


class Rotary(LayerEncoding):
    claims = BOTH | {"norm_preserving"}

    def __init__(self, d_head: int):
        super().__init__()
        self.register_buffer("frequencies", rope_frequencies(d_head, 100.0), persistent=False)

    def turn(self, x, position):
        return rotate(x, position, self.frequencies, "half")

    def transform(self, queries, keys):
        return self.turn(queries.x, queries.position), self.turn(keys.x, keys.position)


class NeedsAnOption(LayerEncoding):
    def __init__(self, d_head: int, strength: float):
        super().__init__()
        if strength > 9:
            raise KeyError("strong")
        self.strength = strength

    def logit_scale(self, queries):
        return torch.full_like(queries.x[..., :1], 1 + self.strength)


# What hooks return, and what the code says.


@fails("returns", r"wrong_encodings.py:\d+: distance_bias returned the shape \[9, 4\], must be \[H, n\]")
class BiasWithHeadsLast(Right):
    def distance_bias(self, distance):
        return super().distance_bias(distance).mT


@fails("returns", r"TypeError: distance_bias returned None: is a return missing\?")
class BiasWithoutReturn(Right):
    def distance_bias(self, distance):
        super().distance_bias(distance)


@fails("returns", r"wrong_encodings.py:\d+: ZeroDivisionError: a mistake$")
class RaisesInForward(LayerEncoding):
    def logit_scale(self, queries):
        raise ZeroDivisionError("a mistake\nof two lines")


@fails("runs", r"RuntimeError")
class SqueezesOneToken(Right):
    def distance_bias(self, distance):
        return super().distance_bias(distance).squeeze()


@fails("repeatable", r"two calls in training")
class DropoutInAHook(Right):
    def adjust(self, scores, visible, queries, keys):
        return nn.functional.dropout(scores, 0.1, self.training)


@fails("identity", r"^reference_inputs.py: opened after the import")
class ReadsAFileInAHook(Right):
    def distance_bias(self, distance):
        Path(__file__).with_name("reference_inputs.py").read_text(encoding="utf-8")
        return super().distance_bias(distance)


# In a decoder.


@fails("causal prefix blocks fused many_keys", r"other tokens behind change an output by \d")
class SeesTheNextToken(LayerEncoding):
    def visible(self, queries, keys):
        return keys.index <= queries.index.unsqueeze(-1) + 1


@fails("shift", r"shift_invariant is not claimed, and holds: positions \+ 5 or \+ 403")
class ShiftNotClaimed(Right):
    claims = frozenset({"prefix_consistent", "decaying"})


@fails("batch", r"alone and in a batch, also of other ids, a sequence differs by \d")
class BatchMean(LayerEncoding):
    def adjust(self, scores, visible, queries, keys):
        return scores - 0.5 * scores.mean(0, keepdim=True)


@fails("pure fused", r"after other texts or ids, .* a text differs by \d")
class LongestSeen(Rotary):
    longest = 1

    def turn(self, x, position):
        self.longest = max(self.longest, x.shape[-2])
        return super().turn(x, position.double() * 32 / self.longest)


@fails("effect", r"HookMisspelt.colums is never called: is it columns of a LayerEncoding\?")
class HookMisspelt(Right):
    def colums(self, queries, keys):
        return None


@fails("extrapolation", r"128 tokens raise no LengthError")
class SilentPastItsEnd(PositionalEncoding):
    past_training = "undefined"

    def embed(self, x, ids, tokens):
        return x + sinusoids(ids, x.shape[-1], 100.0, "interleaved").to(x.dtype)


@fails("extrapolation", r"beyond distance 512 equal tokens differ")
class ClampsWithoutEnd(LayerEncoding):
    past_training = "clamps"

    def distance_bias(self, distance):
        return -distance.double().log1p().expand(4, -1)


@fails("state", r"loaded into one of another seed, its output differs by \d")
class RandomFeaturesNotSaved(LayerEncoding):
    def __init__(self, n_heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.rand(n_heads), persistent=False)

    def distance_bias(self, distance):
        return -self.slopes[:, None] * distance


@fails("scale", r"inputs of rms 1 leave with rms 3\.\d")
class LoudInput(PositionalEncoding):
    def embed(self, x, ids, tokens):
        return x + 5 * sinusoids(ids, x.shape[-1], 100.0, "interleaved").to(x.dtype)


@fails("causal", r"outputs of tokens 0 to 15 of 32 of a text move by \d")
class ReadsTheDistanceToARareToken(PositionalEncoding):
    """The next `~` after each token, which random tokens and most texts do not have."""

    def embed(self, x, ids, tokens):
        distance = torch.arange(tokens.shape[-1], 0, -1, device=x.device)
        is_later = (tokens == ord("~")).flip(-1).cumsum(-1).flip(-1) > 0
        moved = 0.1 * ids.float().sin() + 0.1 * is_later / distance
        return x + moved[..., None].to(x)


# In a layer.


@fails("positions device", r"equal tokens at one position differ by \d")
class AlwaysFromZero(Rotary):
    def turn(self, x, position):
        return super().turn(x, torch.arange(x.shape[-2]))


@fails("score_scale", r"twice the scale is off from twice the scores by \d")
class NoRoot(LayerEncoding):
    def scores(self, queries, keys, scale):
        return queries.x @ keys.x.mT


@fails("masked_weights effect", r"a hidden key has a weight of \d")
class FiniteMask(LayerEncoding):
    def weights(self, scores, visible):
        return scores.masked_fill(~visible, -1e9).softmax(-1)


@fails("fused", r"fused and reference differ by \d")
class RangesTooNarrow(SlidingWindow):
    """The farthest visible key of the window is missing from the ranges."""

    def __init__(self):
        super().__init__(window=6)

    def ranges(self, start, stop):
        return window_ranges(self.window - 1, start, stop)


@fails("returns", r"first_keys says of 3 of 9 queries that they see other keys than visible")
class FirstKeyTooEarly(SlidingWindow):
    """The first key of each query is the one before its window."""

    def __init__(self):
        super().__init__(window=6)

    def first_keys(self, tokens):
        return (super().first_keys(tokens) - 1).clamp(min=0)


@fails("returns", r"first_keys must be at least 0, at most the query, and never fall")
class FirstKeyBeforeTheText(SlidingWindow):
    def __init__(self):
        super().__init__(window=6)

    def first_keys(self, tokens):
        return torch.arange(tokens) + 1 - self.window


@fails("returns", r"first_keys returned torch.int32 on cpu, must be torch.int64 on the CPU")
class FirstKeysOfInt32(FirstKeyTooEarly):
    def first_keys(self, tokens):
        return SlidingWindow.first_keys(self, tokens).int()


@fails("norm", r"a norm changes by \d")
class NormsChange(Rotary):
    def turn(self, x, position):
        return 1.1 * super().turn(x, position)


@fails("decay", r"the bias rises by 9.0e-02")
class BiasThatRises(LayerEncoding):
    claims = BOTH | {"decaying"}

    def distance_bias(self, distance):
        return (0.1 * distance - 0.01 * distance.float().square()).expand(4, -1)


@fails("sight", r"window=8, and a query sees 9 of the latest keys")
class WindowSeesOneMore(LayerEncoding):
    window = 8

    def visible(self, queries, keys):
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance <= self.window)


# In its arithmetic.


@fails("half_precision", r"on average bfloat16 is off by \d")
class PositionsInTheTypeOfQueries(Rotary):
    def turn(self, x, position):
        return super().turn(x, position.to(x.dtype))


@fails("long_context", r"finite; float32 and float64 differ by \d")
class PositionsInSinglePrecision(Rotary):
    """Positions are rounded to float32, or to float64 for features in float64."""

    def turn(self, x, position):
        return super().turn(x, position.to(torch.promote_types(x.dtype, torch.float32)) + 0.1)


@fails("slopes", r"along .*slopes the gradient is not the slope of the output")
class HalfAGradient(LearnedSlopes):
    def distance_bias(self, distance):
        return -0.5 * (self.slopes + self.slopes.detach())[:, None] * distance


@fails("slopes", r"phase is inert: it changes no output")
class ParameterWithoutUse(Right):
    def __init__(self, d_head: int):
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(d_head // 2))


# Right in a small model, wrong with wide heads, many keys or options at their ends.


@fails("sizes", r"a norm changes by \d")
class LastPairsGrow(Rotary):
    def turn(self, x, position):
        turned = super().turn(x, position)
        return torch.cat([turned[..., :64], 1.1 * turned[..., 64:]], -1)


@fails("many_keys", r"across position 2,048 an output is off by \d")
class PositionsModulo2048(Rotary):
    def turn(self, x, position):
        return super().turn(x, position % 2_048)


# Layers without softmax. Where both of their forms are wrong alike, only their equations tell.

EQUATIONS = "equations"
STRONG_DECAYS = "strong decays"
WRONG_LAYERS: dict[str, tuple[str, dict[str, Any]]] = {}


def found_by(what: str, **options: Any) -> Callable[[type], type]:
    """Register a layer with what finds its fault, such as a property of check, and with its options."""

    def register(kind: type) -> type:
        WRONG_LAYERS[kind.__name__] = (what, options)
        return kind

    return register


class TokenByToken(Recurrent):
    """A layer whose two forms read what `after_token` gives, one token after the other."""

    def attend(self, x, q, k, v):
        return self._attend_precisely(self.read, x, q, k, v)

    def attend_chunked(self, x, q, k, v):
        return self._attend_precisely(self.read, x, q, k, v)

    def read(self, tokens: RecurrenceInputs):
        state = tokens.q.new_zeros(*tokens.q.shape[:2], tokens.q.shape[-1], tokens.v.shape[-1])
        outputs = []
        for t in range(tokens.q.shape[-2]):
            query, value = tokens.q[..., t, None, :], tokens.v[..., t, None, :]
            key, decay = tokens.k[..., t, :, None], tokens.log_decay[..., t, :, None].exp()
            strength = tokens.strength[..., t, None, None]
            state, output = self.after_token(state, query, key, value, decay, strength)
            outputs.append(output)
        return torch.cat(outputs, -2)

    def after_token(self, state, query, key, value, decay, strength):
        state = state * decay
        state = state + key * (strength * (value - key.mT @ state))
        return state, query @ state


class SteppedDeltaNet(TokenByToken, GatedDeltaNet):
    """A right one, from which others derive."""


@found_by(EQUATIONS)
class CorrectionReadsTheStateBeforeItDecays(SteppedDeltaNet):
    def after_token(self, state, query, key, value, decay, strength):
        state = state * decay + key * (strength * (value - key.mT @ state))
        return state, query @ state


@found_by(EQUATIONS)
class OutputBeforeTheUpdate(SteppedDeltaNet):
    def after_token(self, state, query, key, value, decay, strength):
        after, _ = super().after_token(state, query, key, value, decay, strength)
        return after, query @ (state * decay)


@found_by(EQUATIONS)
class DecayAfterTheUpdate(SteppedDeltaNet):
    def after_token(self, state, query, key, value, decay, strength):
        after, output = super().after_token(state, query, key, value, torch.ones_like(decay), strength)
        return after * decay, output


@found_by(EQUATIONS)
class StrengthOfTheValueAlone(SteppedDeltaNet):
    def after_token(self, state, query, key, value, decay, strength):
        state = state * decay
        state = state + key * (strength * value - key.mT @ state)
        return state, query @ state


@found_by(EQUATIONS)
class DecayOfTheFeaturesOfValues(TokenByToken, KDA):
    def after_token(self, state, query, key, value, decay, strength):
        return super().after_token(state, query, key, value, decay.mT, strength)


@found_by(EQUATIONS)
class KeysOfAnyNorm(GatedDeltaNet):
    def recurrence_inputs(self, x, q, k, v):
        return super().recurrence_inputs(x, q, k, v)._replace(k=self._convolved_and_activated("k", k))


@found_by(EQUATIONS, negative=True)
class StrengthNeverDoubled(GatedDeltaNet):
    def recurrence_inputs(self, x, q, k, v):
        inputs = super().recurrence_inputs(x, q, k, v)
        return inputs._replace(strength=inputs.strength / 2)


@found_by(EQUATIONS)
class LostTap(GatedDeltaNet):
    def _convolved_and_activated(self, name, x):
        return nn.functional.silu(convolved(x, self.taps[name][..., 1:]))


@found_by(EQUATIONS)
class TapsReversed(KDA):
    def _convolved_and_activated(self, name, x):
        return nn.functional.silu(convolved(x, self.taps[name].flip(-1)))


@found_by(EQUATIONS)
class ConvolutionWithoutItsFunction(GatedDeltaNet):
    def _convolved_and_activated(self, name, x):
        return convolved(x, self.taps[name])


@found_by(EQUATIONS)
class SwappedGate(GatedDeltaNet):
    def output(self, x, read):
        return rms_normed(read) * self.norm * torch.sigmoid(self.raw_gate(x))


@found_by(EQUATIONS)
class GateBeforeTheNorm(KDA):
    def output(self, x, read):
        return rms_normed(read * self.activation(self.raw_gate(x))) * self.norm


@found_by(EQUATIONS, lower_bound=-5.0)
class LowerBoundCutsOff(KDA):
    def log_decay(self, x):
        bound = self.lower_bound
        self.lower_bound = None
        plain = super().log_decay(x)
        self.lower_bound = bound
        return plain.clamp(min=bound)


@found_by(EQUATIONS)
class HeadsOfRetentionReversed(Retention):
    def recurrence_inputs(self, x, q, k, v):
        inputs = super().recurrence_inputs(x, q, k, v)
        return inputs._replace(log_decay=inputs.log_decay.flip(1))


@found_by("fused")
class StateLostAtAChunksBorder(GatedDeltaNet):
    def attend_chunked(self, x, q, k, v):
        def read(tokens):
            parts = zip(*(each.split(TOKENS_PER_CHUNK, 2) for each in tokens), strict=True)
            return torch.cat([recurrence(RecurrenceInputs(*part)) for part in parts], -2)

        return self._attend_precisely(read, x, q, k, v)


@found_by("fused")
class ChunksWithoutTheTokenItself(GatedDeltaNet):
    def attend_chunked(self, x, q, k, v):
        def read(tokens):
            own = (tokens.q * tokens.k).sum(-1, keepdim=True) * tokens.v
            return recurrence(tokens) - tokens.strength.unsqueeze(-1) * own

        return self._attend_precisely(read, x, q, k, v)


def factors_in_single_precision(passed):
    """As `_pair_products`, from the chunk's first token and in the type of the tokens."""
    later, earlier = passed.exp(), (-passed).exp()
    return lambda a, b: ((a * later) @ (b * earlier).mT).tril()


@found_by(STRONG_DECAYS)
class FactorsThatOverflow(KDA):
    def attend_chunked(self, x, q, k, v):
        with patch.object(recurrences, "_pair_products", factors_in_single_precision):
            return super().attend_chunked(x, q, k, v)


@found_by("causal")
class ConvolutionOfTheNextToken(ShortConv):
    def convolve(self, q, k, v):
        return super().convolve(*(torch.cat([each[:, :, 1:], each[:, :, -1:]], 2) for each in (q, k, v)))


@found_by("causal")
class GateOfTheNextToken(Gate):
    def gate(self, x):
        return super().gate(torch.cat([x[:, 1:], x[:, -1:]], 1))
