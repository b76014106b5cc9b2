"""The share of a model's loss at longer texts that a change restores, and the sentence on the cause.

With the levels of the same targets by cluster (a document or a part of one), in bits per byte (in nats per
token if bytes are unknown),

    lost = level at n - level at the training length
    restored = level at n - level at n with the change
    share = mean restored / mean lost

The interval of a share is the interval of `restored - share * lost`, whose mean is 0, over the mean of
`lost`: numerator and denominator come from the same documents and seeds. Shares of layers need not add up
to 1: a later layer may repeat the fault of an earlier one, and two changes may repair the same fault.

The sentence blames a layer if a change of only this layer surely restores more than half at the longest
length with a sure loss. Surely means: with a chance of error of 5 % for all tried changes of single layers
together (Bonferroni); in a deep model, these are the changes that help in its worst quarter of layers. The
sentence names the change with the largest share; if a change of a single head restores a share within or
above the interval of the largest share, the sentence names the head's change instead.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pe_bench.commands.explain.changes import Change
from pe_bench.report.statistics import CONFIDENCE, MARGIN, Interval, paired_interval

HALF_OF_LOSS = 0.5  # a share of the loss
NOT_FINITE = "scores are not finite"
# The sentence compares the named change with the best change of each other kind, in all layers together.
KINDS_OF_CHANGES = (("window",), ("sharpen", "fitted"), ("cut", "no positions", "freeze slow"))


@dataclass(frozen=True)
class Place:
    """The layers, or the one head of a layer, in which a change is made."""

    layers: tuple[int, ...]
    head: int | None = None  # the number of the head; None for all heads
    is_all: bool = False  # all layers, and the positions added to the input if the change acts on positions

    @property
    def is_single(self) -> bool:
        """Return whether the change is made in one layer, or in one head."""
        return len(self.layers) == 1 and not self.is_all

    def __str__(self) -> str:
        if self.is_all:
            return "all"
        if self.head is not None:
            return f"{self.layers[0]}, head {self.head}"
        if self.is_single:
            return f"{self.layers[0]}"
        return f"{self.layers[0]}-{self.layers[-1]}"

    @property
    def words(self) -> str:
        """Return the place as it is named in a sentence."""
        if self.is_all:
            return "in all layers"
        if self.head is not None:
            return f"in head {self.head} of layer {self.layers[0]}"
        return f"in layer {self}" if self.is_single else f"in layers {self}"


@dataclass(frozen=True)
class Effect:
    """How much a change lowers the level at a length, and the share of a sure loss that it restores."""

    change: str  # the name of the change
    words: str  # the change in a sentence
    place: Place
    length: int
    restored: Interval | None = None  # bits per byte, or nats per token where the tokenizer loses text
    # The share of the loss that the change restores; None where no loss is certain, and at the training
    # length.
    share: Interval | None = None
    reason: str = ""  # why there is no number


@dataclass(frozen=True)
class Loss:
    """The loss to explain: a model's level at a longer length minus its level at the training length."""

    length: int
    lost: Interval | None = None  # above 0 is worse; bits per byte, or nats per token where bytes are unknown
    reason: str = ""  # why there is no number

    @property
    def is_sure(self) -> bool:
        """Return whether all of the interval is above the margin, and finite."""
        return self.lost is not None and MARGIN < self.lost.low < math.inf


def loss_of(length: int, within: np.ndarray, beyond: np.ndarray) -> Loss:
    """Return the loss at `length`; without a number if a level is infinite or NaN.

    within, beyond: levels [seeds, clusters] at the training length and at `length`.
    """
    if not (np.isfinite(within).all() and np.isfinite(beyond).all()):
        return Loss(length, reason=NOT_FINITE)
    return Loss(length, paired_interval(beyond - within))


def effect_of(
    change: Change, place: Place, length: int, levels: Sequence[np.ndarray], loss: Loss | None
) -> Effect:
    """Return the effect of a change: the fall of the level, and the share of a sure loss that it restores.

    It has no number if a changed level is infinite or NaN.

    levels: three arrays of levels [seeds, clusters]: at the training length, at `length`, and at `length`
    with the change. loss: the loss at `length`; None at the training length.
    """
    within, beyond, changed = levels
    if not np.isfinite(changed).all():
        return Effect(change.name, change.words, place, length, reason=NOT_FINITE)
    restored = beyond - changed
    effect = Effect(change.name, change.words, place, length, paired_interval(restored))
    if loss is None or not loss.is_sure:
        return effect
    return replace(effect, share=restored_share(restored, beyond - within))


def restored_share(restored: np.ndarray, lost: np.ndarray) -> Interval:
    """Return the interval of the mean of `restored` over the mean of `lost`, both [seeds, clusters]."""
    total = float(lost.mean())
    share = float(restored.mean()) / total
    rest = paired_interval(restored - share * lost)
    spread = rest.spread
    if spread is not None:
        spread = replace(spread, variance=spread.variance / total**2)
    low = share + rest.low / total
    high = share + rest.high / total
    return Interval(share, low, high, rest.seeds, rest.documents, spread)


def is_nonzero(interval: Interval) -> bool:
    """Return whether the whole interval is above zero, or the whole interval is below zero."""
    return interval.low > 0 or interval.high < 0


# The sentence


def cause_sentence(label: str, train_length: int, losses: Sequence[Loss], effects: Sequence[Effect]) -> str:
    """Return the cause of the losses in one sentence, by the rule at the top of this module.

    The sentence names a change of one layer that surely restores over half of the loss, else the best change
    of all layers. label: the name of the encoding. losses: by rising length.
    """
    sure = [loss for loss in losses if loss.is_sure]
    if not sure:
        reasons = [loss.reason for loss in losses if loss.reason]
        if len(reasons) == len(losses):
            reason, _, _ = reasons[0].partition(": ")
            return f"{label} cannot be scored past {train_length:,} tokens: {reason}"
        scored = max(loss.length for loss in losses if not loss.reason)
        return f"No loss of {label} is sure up to {scored:,} tokens: there is nothing to explain"
    length = sure[-1].length
    known = _effects_with_share(effects, length)
    lost = f"what is lost at {length:,} tokens"
    single = [effect for effect in known if effect.place.is_single]
    whole = [effect for effect in known if effect.place.is_all]
    to_blame = [effect for effect in single if _surely_restores_half(effect, len(single))]
    if to_blame:
        best = _effect_to_name(to_blame)
        change = best.words[:1].upper() + best.words[1:]
        others = _clause_on_other_kinds(whole, best.change)
        return f"{change} {best.place.words} alone restores {_share_text(best)} of {lost}{others}"
    best = max(whole, key=_mean_share, default=None)
    if best is None or not surely_restores_something(best):
        return f"No change of all layers surely restores anything of {lost}"
    restored = f"{best.words} {best.place.words} restores {_share_text(best)} of {lost}"
    others = _clause_on_other_kinds(whole, best.change)
    finding = "No single layer is to blame" if single else "No layer was changed alone"
    return f"{finding}: {restored}{others}"


def _effects_with_share(effects: Iterable[Effect], length: int) -> list[Effect]:
    """Return the effects at a length whose share of the loss is known."""
    return [effect for effect in effects if effect.length == length and effect.share is not None]


def _effect_to_name(effects: Sequence[Effect]) -> Effect:
    """Return the effect that the sentence names: the one with the largest share of the loss.

    The effect of a single head is preferred if its share lies in or above the interval of the largest share.
    """
    best = max(effects, key=_mean_share)
    assert best.share is not None
    least = best.share.low
    head_effects = [effect for effect in effects if effect.place.head is not None]
    as_good = [effect for effect in head_effects if _mean_share(effect) >= least]
    return max(as_good or [best], key=_mean_share)


def _clause_on_other_kinds(whole: Sequence[Effect], named_change: str) -> str:
    """Name the best change of each kind but that of `named_change`, and the share it restores, as a clause.

    whole: the effects of changes in all layers.
    """
    clauses: list[str] = []
    for kind in KINDS_OF_CHANGES:
        same_kind = [effect for effect in whole if effect.change in kind]
        if named_change not in kind and same_kind:
            best = max(same_kind, key=_mean_share)
            share = percent(_mean_share(best))
            clauses.append(f"{best.words} restores {share} %")
    return f"; in all layers, {' and '.join(clauses)}" if clauses else ""


def worst_layer(losses: Sequence[Loss], effects: Sequence[Effect]) -> int | None:
    """Return the number of the layer in which one change restores the largest share; None without a share.

    Shares are of the longest length with a sure loss. A change of one head of the layer counts too.
    """
    best = best_effect((effect for effect in effects if effect.place.is_single), losses)
    return None if best is None else best.place.layers[0]


def best_effect(effects: Iterable[Effect], losses: Sequence[Loss]) -> Effect | None:
    """Return the effect with the largest share of the loss at the longest length with a sure loss.

    Returns None if no effect has a share there.
    """
    longest = max((loss.length for loss in losses if loss.is_sure), default=0)
    return max(_effects_with_share(effects, longest), key=_mean_share, default=None)


def _mean_share(effect: Effect) -> float:
    assert effect.share is not None
    return effect.share.mean


def _surely_restores_half(effect: Effect, n_changes: int) -> bool:
    """Return whether the share is surely above a half, corrected for `n_changes` changes (Bonferroni)."""
    assert effect.share is not None
    low, _ = effect.share.at(1 - (1 - CONFIDENCE) / n_changes)
    return low > HALF_OF_LOSS


def surely_restores_something(effect: Effect) -> bool:
    """Return whether the share is surely above zero."""
    return effect.share is not None and effect.share.low > 0


def _share_text(effect: Effect) -> str:
    """Return the share of an effect with its interval, such as `64 % (61 to 67 %)`."""
    assert effect.share is not None
    share = effect.share
    mean, low, high = map(percent, (share.mean, share.low, share.high))
    if math.isinf(share.low) or math.isinf(share.high):
        return f"{mean} %"
    return f"{mean} % ({low} to {high} %)"


def percent(share: float) -> str:
    """Return a share as a whole number of percent."""
    return f"{round(100 * share):,}" if math.isfinite(share) else str(share)
