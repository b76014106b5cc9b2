"""How much of what a model loses at longer texts a change restores, and the sentence that follows.

With the levels of the same targets by document, in bits per byte,

    lost = level at n - level at the training length
    restored = level at n - level at n with the change
    share = mean restored / mean lost

The interval of a share is that of `restored - share * lost`, whose mean is 0, over the mean of what is lost:
numerator and denominator come from the same documents and seeds. Shares of layers need not add up to 1: a
later layer may repeat the fault of an earlier one, and two changes may repair the same fault.

The sentence blames a layer if a change of only this layer surely restores more than half at the longest
length where something is lost. Surely means: with a chance of error of 5 % for all changes of single layers
together (Bonferroni). The sentence names the change with the largest share; if a change of a single head
restores a share within or above the interval of the largest share, the sentence names the head's change
instead.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pe_bench.commands.explain.changes import Change
from pe_bench.report.statistics import CONFIDENCE, MARGIN, Interval, paired_interval

HALF = 0.5  # of what is lost
# The sentence compares the named change with the best change of each other kind, in all layers together.
KINDS = (("window",), ("sharpen", "fitted"), ("cut", "no positions", "freeze slow"))


@dataclass(frozen=True)
class Place:
    """Where a change is made: in layers, by number, or in one head of a layer.

    is_all: in all layers, and in the positions added to the input if the change acts on them.
    """

    layers: tuple[int, ...]
    head: int | None = None
    is_all: bool = False

    @property
    def is_single(self) -> bool:
        return len(self.layers) == 1 and not self.is_all

    def __str__(self) -> str:
        if self.is_all:
            return "all"
        layers = "-".join(map(str, dict.fromkeys((self.layers[0], self.layers[-1]))))
        return layers if self.head is None else f"{layers}, head {self.head}"

    @property
    def words(self) -> str:
        if self.is_all:
            return "in all layers"
        if self.head is not None:
            return f"in head {self.head} of layer {self.layers[0]}"
        return f"in layer {self}" if self.is_single else f"in layers {self}"


@dataclass(frozen=True)
class Effect:
    """What a change restores at a length.

    words: the change in a sentence. restored: bits per byte (nats per token where the tokenizer loses text).
    share: restored over lost; None where nothing is surely lost, and at the training length. reason: why
    there is no number.
    """

    change: str
    words: str
    place: Place
    length: int
    restored: Interval | None = None
    share: Interval | None = None
    reason: str = ""


@dataclass(frozen=True)
class Loss:
    """What is lost at a length, in bits per byte above the training length's level, or why it is unknown."""

    length: int
    lost: Interval | None = None
    reason: str = ""

    @property
    def is_sure(self) -> bool:
        return self.lost is not None and MARGIN < self.lost.low < math.inf


def loss_of(length: int, within: np.ndarray, beyond: np.ndarray) -> Loss:
    """Return what is lost at `length`.

    within, beyond: levels [seeds, documents] at the training length and at `length`.
    """
    return Loss(length, paired_interval(beyond - within))


def effect_of(
    change: Change, place: Place, length: int, levels: Sequence[np.ndarray], loss: Loss | None
) -> Effect:
    """Return what a change restores.

    levels: [seeds, documents] at the training length, at `length`, and at `length` with the change. loss:
    what is lost at `length`; None at the training length.
    """
    within, beyond, changed = levels
    effect = Effect(change.name, change.words, place, length, paired_interval(beyond - changed))
    if loss is None or not loss.is_sure:
        return effect
    return replace(effect, share=share_of(beyond - changed, beyond - within))


def share_of(restored: np.ndarray, lost: np.ndarray) -> Interval:
    """Return the interval of the mean restored over the mean lost, both [seeds, documents]."""
    total = float(lost.mean())
    share = float(restored.mean()) / total
    rest = paired_interval(restored - share * lost)
    spread = rest.spread and replace(rest.spread, variance=rest.spread.variance / total**2)
    low, high = share + rest.low / total, share + rest.high / total
    return Interval(share, low, high, rest.seeds, rest.documents, spread)


# The sentence


def sentence_of(label: str, train_length: int, losses: Sequence[Loss], effects: Sequence[Effect]) -> str:
    """Return the cause in one sentence, by the rule at the top of this module."""
    sure = [loss for loss in losses if loss.is_sure]
    if not sure:
        reasons = [loss.reason for loss in losses if loss.reason]
        if len(reasons) == len(losses):
            return f"{label} cannot be scored past {train_length:,} tokens: {reasons[0].partition(': ')[0]}"
        scored = max(loss.length for loss in losses if not loss.reason)
        return f"No loss of {label} is sure up to {scored:,} tokens: there is nothing to explain"
    length = sure[-1].length
    known = [effect for effect in effects if effect.length == length and effect.share is not None]
    lost = f"what is lost at {length:,} tokens"
    single = [effect for effect in known if effect.place.is_single]
    whole = [effect for effect in known if effect.place.is_all]
    to_blame = [effect for effect in single if _restores_half(effect, len(single))]
    if to_blame:
        best = _most_precise(to_blame)
        others = _others(whole, best.change)
        return f"{_capital(best.words)} {best.place.words} alone restores {_text(best)} of {lost}{others}"
    best = max(whole, key=_share, default=None)
    if best is None or not _restores_something(best):
        return f"No change surely restores anything of {lost}"
    restored = f"{best.words} {best.place.words} restores {_text(best)} of {lost}"
    return f"No single layer is to blame: {restored}{_others(whole, best.change)}"


def _most_precise(effects: Sequence[Effect]) -> Effect:
    """Return the effect with the largest share, or the effect of a head that restores about as much."""
    best = max(effects, key=_share)
    assert best.share is not None
    least = best.share.low
    heads = [effect for effect in effects if effect.place.head is not None and _share(effect) >= least]
    return max(heads or [best], key=_share)


def _others(whole: Sequence[Effect], named: str) -> str:
    """Return what the best change of each other kind than the named change restores in all layers."""
    parts: list[str] = []
    for kind in KINDS:
        of_kind = [effect for effect in whole if effect.change in kind]
        if named not in kind and of_kind:
            best = max(of_kind, key=_share)
            parts.append(f"{best.words} restores {percent(_share(best))} %")
    return f"; in all layers, {' and '.join(parts)}" if parts else ""


def worst_layer(losses: Sequence[Loss], effects: Sequence[Effect]) -> int | None:
    """Return the layer whose change alone restores most at the longest length where something is lost."""
    best = best_of((effect for effect in effects if effect.place.is_single), losses)
    return None if best is None else best.place.layers[0]


def best_of(effects: Iterable[Effect], losses: Sequence[Loss]) -> Effect | None:
    lengths = [loss.length for loss in losses if loss.is_sure][-1:]
    known = [effect for effect in effects if effect.length in lengths and effect.share is not None]
    return max(known, key=_share, default=None)


def _share(effect: Effect) -> float:
    assert effect.share is not None
    return effect.share.mean


def _restores_half(effect: Effect, of_changes: int) -> bool:
    assert effect.share is not None
    return effect.share.at(1 - (1 - CONFIDENCE) / of_changes)[0] > HALF


def _restores_something(effect: Effect) -> bool:
    return effect.share is not None and effect.share.low > 0


def _text(effect: Effect) -> str:
    assert effect.share is not None
    share = effect.share
    if math.isinf(share.low) or math.isinf(share.high):
        return f"{percent(share.mean)} %"
    return f"{percent(share.mean)} % ({percent(share.low)} to {percent(share.high)} %)"


def percent(share: float) -> str:
    """Return a share as a whole number of percent."""
    return f"{round(100 * share)}" if math.isfinite(share) else f"{share}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
