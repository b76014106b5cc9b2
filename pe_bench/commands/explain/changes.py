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
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, ScoreTerm, Side
from pe_bench.encodings.compose import Stack, leaves_of, stack
from pe_bench.encodings.rotary.rope import Layout, RoPE, rotate
from pe_bench.encodings.scalings.rope_scaling import rotation_at
from pe_bench.model.decoder import LanguageModel

NO_SOFTMAX = "no softmax"
NO_POSITIONS = "no positions in its attention"
SEES_NEAR = "it sees no further than the training length by itself"
NOT_TURNED = "no rotation of pairs"
NO_SUCH_PAIR = "no pair with such a wavelength"
NOT_SHIFTED = "its scores depend on more than distances"
NOT_FITTED = "its weights are no softmax of the logits"
NO_DOCUMENTS = "no other documents to fit on"
OF_POSITIONS = ("transform", "scores", "distance_bias", "bias", "adjust", "weights")
OF_DISTANCES = ("transform", "scores", "distance_bias", "bias")
BANDS = (1, 4, 16)  # training lengths, between which wavelengths lie


@dataclass(frozen=True)
class Subject:
    """A trained model at a length past its training length.

    first: the index of the first target's query. factors: by layer, the fitted factor of each head [H].
    """

    model: LanguageModel
    train_length: int
    length: int
    first: int = 0
    factors: Mapping[int, Tensor] = field(default_factory=dict)


class NewLayer(NamedTuple):
    """A changed layer: a new encoding, or a window in tokens on top of its own encoding."""

    encoding: LayerEncoding | None = None
    window: int | None = None


# Returns the changed layer, or why the change has no meaning in the layer.
Maker = Callable[[Subject, int], NewLayer | str]


@dataclass(frozen=True)
class Change:
    """A change of one layer, or of several.

    words: the change's name in a sentence, a noun. of_input: returns the encoding's parts with others for the
    parts that change the input; None for an encoding that leaves the input alone. of_each, of_all: whether
    the change is tried in single layers, and in all together. acts_within: whether the change also acts on
    texts of the training length.
    """

    name: str
    words: str
    make: Maker
    of_input: Callable[[Subject], list[PositionalEncoding] | None] | None = None
    of_each: bool = True
    of_all: bool = True
    acts_within: bool = False


def changes_of(train_length: int) -> list[Change]:
    """Return all changes, in the order of the table."""
    slow = (float(train_length), math.inf)
    edges = [0.0, *(float(times * train_length) for times in BANDS), math.inf]
    changes = [
        Change("window", f"a window of {train_length:,}", _window),
        Change("sharpen", "sharpening", _sharpened),
        Change("fitted", f"sharpening to the entropy at {train_length:,}", _fitted),
        Change("cut", "cutting distances and positions to trained ones", _cut, _cut_input),
        Change("no positions", "leaving out positions", _without_positions, _no_input, acts_within=True),
        Change("freeze slow", "freezing slow pairs", _freezing(slow), acts_within=True),
        Change("off", "switching attention off", _off, of_all=False, acts_within=True),
    ]
    for low, high in pairwise(edges):
        text = band_text(low / train_length, high / train_length)
        words = f"freezing pairs of wavelengths {text} training lengths"
        freeze = _freezing((low, high))
        changes.append(Change(f"freeze {text}", words, freeze, of_each=False, acts_within=True))
    return changes


def changes_of_head(train_length: int, head: int, n_heads: int) -> list[Change]:
    """Return the changes of one head of a layer."""

    def window(subject: Subject, number: int) -> NewLayer | str:
        layer = subject.model.layer(number)
        new = WindowOfHead(train_length, head, n_heads)
        return _reads_nothing_far(subject, number) or NewLayer(stack([layer, new]))

    def off(subject: Subject, number: int) -> NewLayer | str:
        return NewLayer(stack([subject.model.layer(number), HeadsOff(n_heads, [head])]))

    return [
        Change("window", f"a window of {train_length:,}", window),
        Change("off", "switching attention off", off, acts_within=True),
    ]


def band_text(low: float, high: float) -> str:
    """Return a band of wavelengths in training lengths."""
    if low == 0:
        return f"<{high:g}"
    return f">{low:g}" if high == math.inf else f"{low:g}-{high:g}"


def made(
    subject: Subject, change: Change, numbers: Sequence[int], *, is_all: bool = False
) -> LanguageModel | str:
    """Return the model with the change in each layer where it has a meaning, or why it has no meaning.

    numbers: the layers. is_all: these are all layers, so the positions added to the input change too.
    """
    layers: dict[int, LayerEncoding] = {}
    windows: dict[int, int] = {}
    reasons: list[str] = []
    for number in numbers:
        new = change.make(subject, number)
        if isinstance(new, str):
            reasons.append(new)
            continue
        if new.encoding is not None:
            layers[number] = new.encoding
        if new.window is not None:
            windows[number] = new.window
    parts = change.of_input(subject) if is_all and change.of_input is not None else None
    if layers or windows or parts is not None:
        return subject.model.changed(layers, windows, parts)
    return ", ".join(dict.fromkeys(reasons))


# Windows


def _window(subject: Subject, number: int) -> NewLayer | str:
    reason = _reads_nothing_far(subject, number)
    return reason or NewLayer(window=subject.train_length)


def _reads_nothing_far(subject: Subject, number: int) -> str:
    """Return why a layer reads nothing beyond the training length; empty where it does."""
    layer = subject.model.layer(number)
    if layer.overrides("attend"):
        return NO_SOFTMAX
    return "" if reach(layer, subject.length) > subject.train_length else SEES_NEAR


def reach(layer: LayerEncoding, length: int) -> int:
    """Return how many tokens back the last of `length` tokens sees, its own included."""
    index = torch.arange(length)
    nothing = torch.empty(1, 1, length, 0)
    keys = Side(nothing, nothing, index, index, {})
    query = Side(nothing[:, :, -1:], nothing[:, :, -1:], index[-1:], index[-1:], {})
    seen = layer.visible(query, keys).flatten(0, -2).any(0)
    return length - int(seen.long().argmax())


class WindowOfHead(LayerEncoding):
    """One head sees only the last `window` tokens."""

    def __init__(self, window: int, head: int, n_heads: int) -> None:
        super().__init__()
        self.window = window
        self.is_other = torch.arange(n_heads) != head

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        is_other = self.is_other.to(distance.device)[:, None, None]
        return (distance >= 0) & ((distance < self.window) | is_other)


class HeadsOff(LayerEncoding):
    """The heads with these numbers read nothing."""

    def __init__(self, n_heads: int, heads: Sequence[int]) -> None:
        super().__init__()
        self.factors = torch.ones(1, n_heads, 1, 1)
        self.factors[:, heads] = 0

    def gate(self, x: Tensor) -> Tensor:
        return self.factors.to(x.device)


def _off(subject: Subject, number: int) -> NewLayer:
    off = HeadsOff(1, [0])  # one factor for all heads
    return NewLayer(stack([subject.model.layer(number), off]))


# Sharper attention


class Sharper(LayerEncoding):
    """Logits times max(1, ln i / ln L) for the i-th query, or times c^t with the c of each head.

    factors: c [H], or None. first: the number of queries before the first that c was fitted to.
    """

    def __init__(self, train_length: int, first: int, factors: Tensor | None = None) -> None:
        super().__init__()
        self.train_length, self.factors = train_length, factors
        self.longest = max(first + 1, train_length + 1)

    def factor(self, queries: Side) -> Tensor:
        """Return the factor, float32 [H, Q, 1] or [Q, 1]."""
        count = (queries.index + 1).double()  # of the keys up to the query
        if self.factors is None:
            return (count.log() / math.log(self.train_length)).clamp(min=1).float().unsqueeze(-1)
        share = (count / self.train_length).log() / math.log(self.longest / self.train_length)
        return (self.factors[:, None, None] ** share.clamp(0, 1).unsqueeze(-1)).float()


class SharperScores(Sharper):
    """For a layer whose logits have no bias: the fast attention paths support a factor of the scores."""

    def logit_scale(self, queries: Side) -> Tensor:
        return self.factor(queries)


class SharperLogits(Sharper):
    """For a layer whose logits are more than scores, such as scores plus a bias."""

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        return scores * self.factor(queries)


def _sharpened(subject: Subject, number: int) -> NewLayer | str:
    return _reads_nothing_far(subject, number) or _sharper(subject, number, None)


def _fitted(subject: Subject, number: int) -> NewLayer | str:
    reason = _reads_nothing_far(subject, number)
    if reason:
        return reason
    if subject.model.layer(number).overrides("weights"):
        return NOT_FITTED
    factors = subject.factors.get(number)
    return NO_DOCUMENTS if factors is None else _sharper(subject, number, factors)


def _sharper(subject: Subject, number: int, factors: Tensor | None) -> NewLayer:
    layer = subject.model.layer(number)
    kind = SharperLogits if layer.overrides("bias", "distance_bias", "adjust") else SharperScores
    return NewLayer(stack([layer, kind(subject.train_length, subject.first, factors)]))


# Positions


def _without_positions(subject: Subject, number: int) -> NewLayer | str:
    layer = subject.model.layer(number)
    if layer.overrides("attend"):
        return NO_SOFTMAX
    leaves = leaves_of(layer)
    # What scales or sparsifies logits, such as entmax, reads no positions.
    kept = [leaf for leaf in leaves if leaf.family == "scale" or not leaf.overrides(*OF_POSITIONS)]
    return NO_POSITIONS if len(kept) == len(leaves) else NewLayer(stack(kept))


class CutDistances(Stack):
    """A layer in which positions are at most `near` apart: larger distances count as `near`."""

    def __init__(self, parts: Sequence[LayerEncoding], near: int) -> None:
        super().__init__(parts)
        self.near = near

    def _far(self, queries: Side, keys: Side) -> tuple[Side, Side]:
        """Return queries and keys at positions whose difference is `near`."""
        far_q = torch.full_like(queries.position, self.near)
        return queries._replace(position=far_q), keys._replace(position=torch.zeros_like(keys.position))

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Transform queries and keys at their own and at far positions; concatenate both, twice as wide."""
        near_q, near_k = super().transform(queries, keys)
        far_q, far_k = super().transform(*self._far(queries, keys))
        return torch.cat([near_q, far_q], -1), torch.cat([near_k, far_k], -1)

    def _sides(self, queries: Side, keys: Side) -> tuple[tuple[Side, Side], tuple[Side, Side]]:
        """Return queries and keys for near pairs, then for far pairs."""
        (near_q, far_q), (near_k, far_k) = queries.x.chunk(2, -1), keys.x.chunk(2, -1)
        near = queries._replace(x=near_q), keys._replace(x=near_k)
        return near, self._far(queries._replace(x=far_q), keys._replace(x=far_k))

    def _is_near(self, queries: Side, keys: Side) -> Tensor:
        return queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2) < self.near

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        near, far = self._sides(queries, keys)
        is_near = self._is_near(queries, keys)
        return torch.where(is_near, super().scores(*near, scale), super().scores(*far, scale))

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        (near_q, near_k), (far_q, far_k) = self._sides(queries, keys)
        is_near = self._is_near(queries, keys)
        return [ScoreTerm(near_q.x, near_k.x, is_near), ScoreTerm(far_q.x, far_k.x, ~is_near)]

    def bias(self, queries: Side, keys: Side) -> Tensor | None:
        near, far = self._sides(queries, keys)
        near_bias, far_bias = super().bias(*near), super().bias(*far)
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


def _cut(subject: Subject, number: int) -> NewLayer | str:
    reason = _reads_nothing_far(subject, number)
    if reason:
        return reason
    leaves = leaves_of(subject.model.layer(number))
    acting = [leaf for leaf in leaves if leaf.overrides(*OF_DISTANCES)]
    if not acting:
        return NO_POSITIONS
    if any(leaf.family == "content" or "shift_invariant" not in leaf.claims for leaf in acting):
        return NOT_SHIFTED
    return NewLayer(CutDistances(leaves, subject.train_length // 2))


class FrozenPairs(LayerEncoding):
    """Rotates the first features at the given frequencies [pairs], and multiplies them by a factor."""

    def __init__(self, frequencies: Tensor, factor: float, layout: Layout) -> None:
        super().__init__()
        self.frequencies, self.factor = frequencies, factor
        self.layout: Layout = layout

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return self._turned(queries), self._turned(keys)

    def _turned(self, side: Side) -> Tensor:
        turned = rotate(side.x, side.position, self.frequencies, self.layout)
        if self.factor == 1:
            return turned
        first, rest = turned.tensor_split([2 * len(self.frequencies)], -1)
        return torch.cat([self.factor * first, rest], -1).to(side.x.dtype)


def _with_frequencies(layer: RoPE, frequencies: Tensor) -> RoPE:
    """Return the layer with other frequencies; its other hooks, such as a bias, stay."""
    other = copy.copy(layer)
    other._buffers = {**layer._buffers, "frequencies": frequencies}
    return other


def _freezing(band: tuple[float, float]) -> Maker:
    """Return the change that freezes pairs whose wavelengths, in tokens, are in the band."""

    def freeze(subject: Subject, number: int) -> NewLayer | str:
        layer = subject.model.layer(number)
        if layer.overrides("attend"):
            return NO_SOFTMAX
        new: list[LayerEncoding] = []
        turns = False
        freezes = False
        for leaf in leaves_of(layer):
            rotation = rotation_at(leaf, subject.length)
            if rotation is None:
                new.append(leaf)
                continue
            lengths = 2 * math.pi / rotation.frequencies
            is_frozen = (lengths > band[0]) & (lengths <= band[1]) & (rotation.frequencies > 0)
            turns = True
            freezes |= bool(is_frozen.any())
            layout: Layout = getattr(leaf, "layout", "half")
            kept = rotation.frequencies.masked_fill(is_frozen, 0)
            if isinstance(leaf, RoPE):
                new.append(_with_frequencies(leaf, kept))
            else:
                new.append(FrozenPairs(kept, rotation.attention_factor, layout))
        if freezes:
            return NewLayer(stack(new))
        return NO_SUCH_PAIR if turns else NOT_TURNED

    return freeze


# Positions of the input


class CutInput(PositionalEncoding):
    """Adds positions to the input: those of training for the last tokens, and 0 for all earlier tokens."""

    def __init__(self, part: PositionalEncoding, train_length: int) -> None:
        super().__init__()
        self.part, self.train_length = part, train_length

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        first = ids.max() - (self.train_length - 1)
        return self.part.embed(x, (ids - first).clamp(min=0), tokens)


class NoInput(PositionalEncoding):
    """An encoding that adds nothing to the input."""


def _cut_input(subject: Subject) -> list[PositionalEncoding] | None:
    return _new_input(subject, lambda part: CutInput(part, subject.train_length))


def _no_input(subject: Subject) -> list[PositionalEncoding] | None:
    return _new_input(subject, lambda part: NoInput())


def _new_input(
    subject: Subject, make: Callable[[PositionalEncoding], PositionalEncoding]
) -> list[PositionalEncoding] | None:
    """Return the encoding's parts with others for those that change the input; None if no part does.

    A part that also makes the position ids is kept.
    """
    parts = subject.model.encoding.parts
    acting = [part for part in parts if part.overrides("embed") and not part.overrides("ids")]
    if not acting:
        return None
    return [make(part) if part in acting else part for part in parts]
