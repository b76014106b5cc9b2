r"""The changes that `explain` tries in the attention of a layer; L is the training length.

Each changes one thing in a trained model and leaves the weights alone. In texts of at most L tokens,
`window`, `sharpen`, `fitted` and `cut` change nothing; the others act at every length.

- window: the layer sees only the last L tokens.
- sharpen: logits z, biases included, become z max(1, ln i / ln L) for the i-th query.
- fitted: logits become z c^t with t = ln(i / L) / ln(m / L) for L < i < m, and z c from the first target m
  on. Each head's c brings the mean entropy of the targets' queries at n tokens back to the value at L tokens.
  It is fitted on documents that are not scored.
- no positions: the layer's rotation, bias or other use of positions is left out.
- cut: no two tokens are more than L / 2 apart: distances become min(distance, L / 2), as in ReRoPE. Positions
  that are added to the input run from 0 to L - 1 over the last L tokens, as in training, and are 0 before.
- freeze: pairs of features in a band of wavelengths are not rotated, as in p-RoPE. A pair is slow if it makes
  no full turn in L tokens.
- off: the attention of the layer, or of one head, reads nothing.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, ScoreTerm, Side
from pe_bench.encodings.compose import Stack, leaves_of, stack
from pe_bench.encodings.rotary.rope import Layout, RoPE, rotate
from pe_bench.encodings.scalings.rope_scaling import ScaledRotation, rotation_at
from pe_bench.model.attention.reference import select_tokens
from pe_bench.model.decoder import LanguageModel

# Reasons why a change or a measure has no meaning in a layer.
NO_SOFTMAX = "no softmax"
NO_POSITIONS = "no positions in its attention"
SEES_NEAR = "it sees no further than the training length by itself"
NO_ROTATION = "no rotation of pairs"
NO_SUCH_PAIR = "no pair with such a wavelength"
NOT_BY_DISTANCE = "its scores depend on more than distances"
NOT_FITTED = "its weights are no softmax of the logits"
NO_DOCUMENTS = "no other documents to fit on"
# Hooks by which a layer can read positions, and by which it can read distances.
POSITION_HOOKS = ("transform", "scores", "distance_bias", "bias", "adjust", "weights")
DISTANCE_HOOKS = ("transform", "scores", "distance_bias", "bias")
# The ends of each band, in training lengths.
WAVELENGTH_BANDS = ((0.0, 1.0), (1.0, 4.0), (4.0, 16.0), (16.0, math.inf))


@dataclass(frozen=True)
class ModelAtLength:
    """A trained model, and the length of the texts for which it is changed: the training length or longer."""

    model: LanguageModel
    train_length: int
    length: int
    first: int = 0  # index of the first target's query
    # For each layer, the fitted factors of its heads' logits [H].
    factors: Mapping[int, Tensor] = field(default_factory=dict)


class ChangedLayer(NamedTuple):
    """A changed layer: it has a new encoding, or its own encoding within a window."""

    encoding: LayerEncoding | None = None
    window: int | None = None  # the window in tokens


# Makes the layer of a number new, or returns the reason why the change has no meaning in the layer.
LayerMaker = Callable[[ModelAtLength, int], ChangedLayer | str]
# Returns all parts of the encoding, with new parts where one changes the input; None if no part does.
InputMaker = Callable[[ModelAtLength], list[PositionalEncoding] | None]


@dataclass(frozen=True)
class Change:
    """An intervention on attention, such as a window, tried in single layers and in all layers together.

    The share of the loss at a longer length that a change restores shows whether the change removes a cause.
    """

    name: str  # the name in tables and claims, such as `window`
    words: str  # the change in a sentence, a noun
    make: LayerMaker  # makes the changed layer
    # Makes the input, for a change that also acts on positions added to the input.
    make_input: InputMaker | None = None
    in_single_layers: bool = True  # whether the change is tried in single layers
    in_all_layers: bool = True  # whether the change is tried in all layers together
    needs_softmax: bool = True  # whether the change has a meaning only in a layer with softmax
    acts_within: bool = False  # whether the change also acts on texts of the training length


def layer_changes(train_length: int) -> list[Change]:
    """Return all changes of whole layers, in the order of the table."""
    slow = (float(train_length), math.inf)
    trained_only = "cutting distances and positions to trained ones"
    changes = [
        Change("window", f"a window of {train_length:,}", _layer_with_window),
        Change("sharpen", "sharpening", _layer_with_sharpened_logits),
        Change("fitted", f"sharpening to the entropy at {train_length:,}", _layer_with_fitted_logits),
        Change("cut", trained_only, _layer_with_cut_distances, _parts_with_cut_input),
        Change(
            "no positions",
            "leaving out positions",
            _layer_without_positions,
            _parts_without_input,
            acts_within=True,
        ),
        Change("freeze slow", "freezing slow pairs", _maker_of_frozen_pairs(slow), acts_within=True),
    ]
    off = Change(
        "off", "switching attention off", _layer_that_reads_nothing, needs_softmax=False, acts_within=True
    )
    changes.append(replace(off, in_all_layers=False))
    for low, high in WAVELENGTH_BANDS:
        text = band_text(low, high)
        words = f"freezing pairs of wavelengths {text} training lengths"
        freeze = _maker_of_frozen_pairs((low * train_length, high * train_length))
        change = Change(f"freeze {text}", words, freeze, acts_within=True)
        changes.append(replace(change, in_single_layers=False))
    return changes


def head_changes(train_length: int, head: int, n_heads: int) -> list[Change]:
    """Return the changes that are tried in one head of a layer: a window, and no attention."""

    def window_of_head(subject: ModelAtLength, number: int) -> ChangedLayer:
        return _layer_with_part(subject, number, HeadWindow(train_length, head, n_heads))

    def head_off(subject: ModelAtLength, number: int) -> ChangedLayer:
        return _layer_with_part(subject, number, HeadsOff(n_heads, [head]))

    return [
        Change("window", f"a window of {train_length:,}", window_of_head),
        Change("off", "switching attention off", head_off, needs_softmax=False, acts_within=True),
    ]


def _layer_with_part(subject: ModelAtLength, number: int, part: LayerEncoding) -> ChangedLayer:
    """Return layer `number` with `part` added to its encoding."""
    return ChangedLayer(stack([subject.model.layer(number), part]))


def band_text(low: float, high: float) -> str:
    """Return a band of wavelengths as text, such as `1-4`.

    low, high: the ends of the band, in training lengths.
    """
    if low == 0:
        return f"<{high:g}"
    if high == math.inf:
        return f">{low:g}"
    return f"{low:g}-{high:g}"


def changed_model(
    subject: ModelAtLength, change: Change, numbers: Sequence[int], *, is_all: bool = False
) -> LanguageModel | str:
    """Return the model with the change in each layer where the change has a meaning.

    Returns the reasons why the change has no meaning, if it has none in any layer. numbers: the numbers of
    the layers. is_all: these are all layers, so the change also acts on positions added to the input.
    """
    layers: dict[int, LayerEncoding] = {}
    windows: dict[int, int] = {}
    reasons: list[str] = []
    for number in numbers:
        new = _changed_layer(subject, change, number)
        if isinstance(new, str):
            reasons.append(new)
            continue
        if new.encoding is not None:
            layers[number] = new.encoding
        if new.window is not None:
            windows[number] = new.window
    parts = None
    if is_all and change.make_input is not None:
        parts = change.make_input(subject)
    if layers or windows or parts is not None:
        return subject.model.changed(layers, windows, parts)
    return ", ".join(dict.fromkeys(reasons))


def _changed_layer(subject: ModelAtLength, change: Change, number: int) -> ChangedLayer | str:
    """Return the layer with the change, or the reason why the change has no meaning in the layer."""
    layer = subject.model.layer(number)
    if change.needs_softmax and layer.overrides("attend"):
        return NO_SOFTMAX
    if not change.acts_within and reach(layer, subject.length) <= subject.train_length:
        return SEES_NEAR
    return change.make(subject, number)


# Windows


def _layer_with_window(subject: ModelAtLength, number: int) -> ChangedLayer:
    return ChangedLayer(window=subject.train_length)


def reach(layer: LayerEncoding, length: int) -> int:
    """Return the distance in tokens to the earliest key that the last of `length` tokens sees, plus 1."""
    index = torch.arange(length)
    nothing = torch.empty(1, 1, length, 0)
    keys = Side(nothing, nothing, index, index, {})
    query = select_tokens(keys, range(length - 1, length))
    is_seen = layer.visible(query, keys).flatten(0, -2).any(0)
    return length - int(is_seen.long().argmax())


class HeadWindow(LayerEncoding):
    """A layer in which one head sees only the last `window` tokens."""

    def __init__(self, window: int, head: int, n_heads: int) -> None:
        super().__init__()
        self.window = window
        self.is_other = torch.arange(n_heads) != head

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        is_other = self.is_other.to(distance.device)[:, None, None]
        return (distance >= 0) & ((distance < self.window) | is_other)


class HeadsOff(LayerEncoding):
    """A layer in which the heads with these numbers read nothing; all other heads read as before."""

    def __init__(self, n_heads: int, heads: Sequence[int]) -> None:
        super().__init__()
        self.factors = torch.ones(1, n_heads, 1, 1)
        self.factors[:, heads] = 0

    def gate(self, x: Tensor) -> Tensor:
        return self.factors.to(x.device)


def _layer_that_reads_nothing(subject: ModelAtLength, number: int) -> ChangedLayer:
    every_head = HeadsOff(1, [0])  # one factor for all heads
    return _layer_with_part(subject, number, every_head)


# Sharper attention


class SharpenedLogits(LayerEncoding):
    """Multiplies logits by max(1, ln i / ln L) for the i-th query, or by c^t with a fitted c for each head.

    first: the index of the first query that c was fitted to. factors: c [H]; None without a fit.
    """

    def __init__(self, train_length: int, first: int, factors: Tensor | None = None) -> None:
        super().__init__()
        self.train_length, self.factors = train_length, factors
        self.longest = max(first + 1, train_length + 1)

    def factor(self, queries: Side) -> Tensor:
        """Return the factor, float32 [H, Q, 1] or [Q, 1]."""
        count = (queries.index + 1).double()  # the number of keys up to the query
        if self.factors is None:
            growth = count.log() / math.log(self.train_length)
            return growth.clamp(min=1).float().unsqueeze(-1)
        longest = math.log(self.longest / self.train_length)
        exponent = (count / self.train_length).log() / longest
        factors = self.factors[:, None, None] ** exponent.clamp(0, 1).unsqueeze(-1)
        return factors.float()


class SharpenedByScale(SharpenedLogits):
    """Sharpens logits that are plain scores, by `logit_scale`, which the fast attention paths support."""

    def logit_scale(self, queries: Side) -> Tensor:
        return self.factor(queries)


class SharpenedByAdjust(SharpenedLogits):
    """Sharpens logits with a bias or an adjustment in them: `adjust` multiplies their sum."""

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        return scores * self.factor(queries)


def _layer_with_sharpened_logits(subject: ModelAtLength, number: int) -> ChangedLayer:
    return _layer_with_multiplied_logits(subject, number, None)


def _layer_with_fitted_logits(subject: ModelAtLength, number: int) -> ChangedLayer | str:
    if subject.model.layer(number).overrides("weights"):
        return NOT_FITTED
    factors = subject.factors.get(number)
    if factors is None:
        return NO_DOCUMENTS
    return _layer_with_multiplied_logits(subject, number, factors)


def _layer_with_multiplied_logits(
    subject: ModelAtLength, number: int, factors: Tensor | None
) -> ChangedLayer:
    """Return the layer with logits multiplied as in `SharpenedLogits`. factors: [H]; None without a fit."""
    layer = subject.model.layer(number)
    kind = SharpenedByAdjust if layer.overrides("bias", "distance_bias", "adjust") else SharpenedByScale
    return _layer_with_part(subject, number, kind(subject.train_length, subject.first, factors))


# Positions


def _layer_without_positions(subject: ModelAtLength, number: int) -> ChangedLayer | str:
    leaves = leaves_of(subject.model.layer(number))
    kept = [leaf for leaf in leaves if not _reads_positions(leaf)]
    if len(kept) == len(leaves):
        return NO_POSITIONS
    return ChangedLayer(stack(kept))


def _reads_positions(leaf: LayerEncoding) -> bool:
    """Return whether an encoding of a layer reads positions."""
    # An encoding that scales or sparsifies logits, such as entmax, reads no positions.
    return leaf.family != "scale" and leaf.overrides(*POSITION_HOOKS)


class ClampedDistances(Stack):
    """A layer in which positions are at most `near` apart: larger distances count as `near`."""

    def __init__(self, parts: Sequence[LayerEncoding], near: int) -> None:
        super().__init__(parts)
        self.near = near

    def _far_sides(self, queries: Side, keys: Side) -> tuple[Side, Side]:
        """Return the queries moved to position `near`, and the keys moved to position 0."""
        far_q = torch.full_like(queries.position, self.near)
        start = torch.zeros_like(keys.position)
        return queries._replace(position=far_q), keys._replace(position=start)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Transform queries and keys at their own and at far positions; concatenate both, twice as wide."""
        near_q, near_k = super().transform(queries, keys)
        far_q, far_k = super().transform(*self._far_sides(queries, keys))
        both_q = torch.cat([near_q, far_q], -1)
        both_k = torch.cat([near_k, far_k], -1)
        return both_q, both_k

    def _near_and_far_sides(self, queries: Side, keys: Side) -> tuple[tuple[Side, Side], tuple[Side, Side]]:
        """Return queries and keys for near pairs, then for far pairs."""
        near_q, far_q = queries.x.chunk(2, -1)
        near_k, far_k = keys.x.chunk(2, -1)
        near = queries._replace(x=near_q), keys._replace(x=near_k)
        far = queries._replace(x=far_q), keys._replace(x=far_k)
        return near, self._far_sides(*far)

    def _is_near(self, queries: Side, keys: Side) -> Tensor:
        """Return the mask [.., Q, N] of the pairs that are less than `near` positions apart."""
        distance = queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2)
        return distance < self.near

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        near, far = self._near_and_far_sides(queries, keys)
        near_scores = super().scores(*near, scale)
        far_scores = super().scores(*far, scale)
        return torch.where(self._is_near(queries, keys), near_scores, far_scores)

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        (near_q, near_k), (far_q, far_k) = self._near_and_far_sides(queries, keys)
        is_near = self._is_near(queries, keys)
        return [ScoreTerm(near_q.x, near_k.x, is_near), ScoreTerm(far_q.x, far_k.x, ~is_near)]

    def bias(self, queries: Side, keys: Side) -> Tensor | None:
        near, far = self._near_and_far_sides(queries, keys)
        near_bias = super().bias(*near)
        far_bias = super().bias(*far)
        if near_bias is None or far_bias is None:
            return None
        return torch.where(self._is_near(queries, keys), near_bias, far_bias)

    def has_columns(self) -> bool:
        return False

    def overrides(self, *hooks: str) -> bool:
        if any(hook in ("transform", "scores") for hook in hooks):
            return True
        if "terms" in hooks:
            return not super().overrides("scores")  # terms are plain products
        return super().overrides(*(hook for hook in hooks if hook != "columns"))


def _layer_with_cut_distances(subject: ModelAtLength, number: int) -> ChangedLayer | str:
    layer = subject.model.layer(number)
    reason = why_not_by_distance(layer)
    return reason or ChangedLayer(ClampedDistances(leaves_of(layer), subject.train_length // 2))


def why_not_by_distance(layer: LayerEncoding) -> str:
    """Return the reason why a layer's logits do not depend on distances alone; empty where they do."""
    acting = [leaf for leaf in leaves_of(layer) if leaf.overrides(*DISTANCE_HOOKS)]
    if not acting:
        return NO_POSITIONS
    for leaf in acting:
        if leaf.family == "content" or "shift_invariant" not in leaf.claims:
            return NOT_BY_DISTANCE
    return ""


class FrozenPairs(LayerEncoding):
    """Rotates pairs at `frequencies` [pairs], 0 for frozen ones, and multiplies them by `factor`.

    The pairs are made of the first features; all other features stay as they are.
    """

    def __init__(self, frequencies: Tensor, factor: float, layout: Layout) -> None:
        super().__init__()
        self.frequencies, self.factor = frequencies, factor
        self.layout: Layout = layout

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return self._turned(queries), self._turned(keys)

    def _turned(self, side: Side) -> Tensor:
        """Return queries or keys with the features of their pairs rotated and multiplied."""
        turned = rotate(side.x, side.position, self.frequencies, self.layout)
        if self.factor == 1:
            return turned
        rotated = 2 * len(self.frequencies)
        first, rest = turned.tensor_split([rotated], -1)
        scaled = torch.cat([self.factor * first, rest], -1)
        return scaled.to(side.x.dtype)


def _with_frequencies(layer: RoPE, frequencies: Tensor) -> RoPE:
    """Return the layer with other frequencies; its other hooks, such as a bias, stay."""
    other = copy.copy(layer)
    other._buffers = {**layer._buffers, "frequencies": frequencies}
    return other


def _maker_of_frozen_pairs(band: tuple[float, float]) -> LayerMaker:
    """Return a function that makes a layer whose pairs with wavelengths in `band` are not rotated.

    band: its two ends, in tokens.
    """

    def layer_with_frozen_pairs(subject: ModelAtLength, number: int) -> ChangedLayer | str:
        leaves = leaves_of(subject.model.layer(number))
        rotations = [rotation_at(leaf, subject.length) for leaf in leaves]
        if all(rotation is None for rotation in rotations):
            return NO_ROTATION
        new = [*leaves]
        for place, rotation in enumerate(rotations):
            if rotation is not None:
                is_frozen = is_in_band(rotation.frequencies, *band)
                if is_frozen.any():
                    new[place] = _leaf_with_frozen_pairs(leaves[place], rotation, is_frozen)
        if new == [*leaves]:
            return NO_SUCH_PAIR
        return ChangedLayer(stack(new))

    return layer_with_frozen_pairs


def layout_of(leaf: LayerEncoding) -> Layout:
    """Return the order of the features of pairs in a rotary encoding: its `layout`, or `half` without one."""
    return getattr(leaf, "layout", "half")


def is_in_band(frequencies: Tensor, low: float, high: float) -> Tensor:
    """Return the mask of pairs with wavelengths above `low` and up to `high`, in tokens: bool [pairs]."""
    wavelengths = 2 * math.pi / frequencies
    return (wavelengths > low) & (wavelengths <= high) & (frequencies > 0)


def _leaf_with_frozen_pairs(
    leaf: LayerEncoding, rotation: ScaledRotation, is_frozen: Tensor
) -> LayerEncoding:
    """Return a rotary encoding whose pairs `is_frozen`, bool [pairs], are not rotated."""
    kept = rotation.frequencies.masked_fill(is_frozen, 0)
    if isinstance(leaf, RoPE):
        return _with_frequencies(leaf, kept)
    return FrozenPairs(kept, rotation.attention_factor, layout_of(leaf))


# Positions of the input


class CutInputPositions(PositionalEncoding):
    """Adds trained positions to the input for the last tokens, and position 0 for all earlier tokens."""

    def __init__(self, part: PositionalEncoding, train_length: int) -> None:
        super().__init__()
        self.part, self.train_length = part, train_length

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        first = ids.amax(-1, keepdim=True) - (self.train_length - 1)
        moved = ids - first.clamp(min=0)
        return self.part.embed(x, moved.clamp(min=0), tokens)


class NoInputPositions(PositionalEncoding):
    """An encoding that adds nothing to the input."""


def _parts_with_cut_input(subject: ModelAtLength) -> list[PositionalEncoding] | None:
    return _parts_with_new_input(subject, lambda part: CutInputPositions(part, subject.train_length))


def _parts_without_input(subject: ModelAtLength) -> list[PositionalEncoding] | None:
    return _parts_with_new_input(subject, lambda part: NoInputPositions())


def _parts_with_new_input(
    subject: ModelAtLength, make: Callable[[PositionalEncoding], PositionalEncoding]
) -> list[PositionalEncoding] | None:
    """Return the encoding's parts, with new parts in place of the parts that change the input.

    Returns None if no part changes the input. A part that also makes the position ids is kept.
    """
    new_parts: list[PositionalEncoding] = []
    for part in subject.model.encoding.parts:
        is_new = part.overrides("embed") and not part.overrides("ids")
        new_parts.append(make(part) if is_new else part)
    return None if new_parts == [*subject.model.encoding.parts] else new_parts
