"""The numbers that show what an encoding does: scores by distance, wavelengths, masks, inputs.

Letters: S samples of content, H heads, T tokens, K head width, D model width. Everything is seen
from the last token, so that the last query's scores for the keys, read backwards, are by distance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, LengthError, Side
from pe_bench.encodings.compose import Composition, Stack
from pe_bench.encodings.scalings.rope_scaling import RopeScaling
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.model.attention import logits, project, slice_tokens, weigh

REACH = 8  # times the training length, for scores
MASK_REACH = 4
MAX_MASK_ROWS = 1_024  # rows of a picture; of longer texts every n-th token is shown
MAX_ELEMENTS = 2**24  # numbers of one tensor
TEXT = "A query sees some keys. What it makes of them depends on where they are. "


@dataclass(frozen=True)
class Kind:
    """The layers of a model that are alike."""

    numbers: tuple[int, ...]
    layer: LayerEncoding

    @property
    def is_neutral(self) -> bool:
        return type(self.layer) is LayerEncoding


@dataclass(frozen=True)
class Scores:
    """The expected scores by distance 0..T-1 [H, T], NaN where the mask hides the key, and weights [H, T]."""

    scores: Tensor
    weights: Tensor
    is_weight: bool  # the scores are logarithms of weights, because the encoding replaces the softmax


def kinds(subject: ResolvedEncoding) -> list[Kind]:
    """Return the layers of each kind, which share their structure but not the values of parameters."""
    layers = [subject.encoding.layer(number) for number in range(subject.config.model.n_layers)]
    traits = [_traits(layer) for layer in layers]
    # A layer that knows its own number is not of another kind for that.
    shared = set.intersection(*map(set, traits)) if len(layers) > 1 else set()
    numbers = {key for key in shared if all(found[key] == place for place, found in enumerate(traits))}
    found: dict[frozenset[Any], list[int]] = {}
    for number, of_layer in enumerate(traits):
        kind = frozenset((key, value) for key, value in of_layer.items() if key not in numbers)
        found.setdefault(kind, []).append(number)
    return [Kind(tuple(numbers), layers[numbers[0]]) for numbers in found.values()]


def length_within(subject: ResolvedEncoding, times: int) -> int:
    """Return `times` the training length, or that length where the encoding has no meaning past it."""
    length = subject.config.train.length
    try:
        _try_length(subject, times * length)
    except LengthError:
        return length
    return times * length


@torch.no_grad()
def scores_by_distance(subject: ResolvedEncoding, layer: LayerEncoding, length: int) -> Scores:
    """Return the mean over contents that the query and the key share, plus what is added to it."""
    model = subject.config.model
    x, heads = contents(model.d_model, model.n_heads, model.d_head)
    at_once = max(1, MAX_ELEMENTS // (length * max(model.n_heads * model.d_head, model.d_model)))
    parts = zip(x.split(at_once), heads.split(at_once), strict=True)
    rows = [_last_row(subject, layer, x_part, head_part, length) for x_part, head_part in parts]
    scores = torch.stack([row[0] for row in rows]).sum(0) / len(x)
    weights = torch.stack([row[1] for row in rows]).sum(0) / len(x)
    is_weight = layer.overrides("weights")
    shown = weights.log().clamp(min=-1e4) if is_weight else scores
    return Scores(shown.masked_fill(~rows[0][2], math.nan).flip(-1), weights.flip(-1), is_weight)


@torch.no_grad()
def input_products(subject: ResolvedEncoding, length: int) -> tuple[Tensor, bool] | None:
    """Return the dot products [T], by distance, of what is added to the last token and to those before it.

    True comes with them where nothing is added to a zero, and the products are of embedded contents, of
    one content in every place. None where the inputs are left as they are.
    """
    parts = [subject.encoding.base, *subject.encoding.modifiers.values()]
    if not any(part.overrides("embed") for part in parts):
        return None
    width = subject.config.model.d_model
    added = _embedded(subject, torch.zeros(1, length, width))
    if bool((added != 0).any()):
        return (added @ added[:, -1:].mT)[0, :, 0].flip(0), False
    x = contents(width, 1, 1)[0][:64]
    content = _embedded(subject, x.expand(-1, length, -1))
    return (content @ content[:, -1:].mT)[..., 0].mean(0).flip(0), True


def wavelengths(layer: LayerEncoding, length: int) -> list[Tensor]:
    """Return 2 pi / theta of the pairs [pairs] in a window of `length` tokens, of tables that turn some."""
    modules = [module for part in _parts(layer) for module in part.modules()]
    tables = [frequencies for module in modules if (frequencies := _frequencies(module, length)) is not None]
    rows = [
        row for table in tables if table.any() for row in table.detach().double().reshape(-1, table.shape[-1])
    ]
    return [2 * math.pi / row.abs() for row in rows if row.any()]


def _frequencies(module: nn.Module, length: int) -> Tensor | None:
    if isinstance(module, RopeScaling):
        return module.scaled(length).frequencies
    table = getattr(module, "frequencies", None)
    return table if isinstance(table, Tensor) else None


@torch.no_grad()
def mask(subject: ResolvedEncoding, layer: LayerEncoding, length: int) -> Tensor:
    """Return which keys [.., n] each query [n, ..] sees in some head, of `length` or every n-th of these."""
    model = subject.config.model
    x, heads = contents(model.d_model, model.n_heads, model.d_head)
    queries, keys = _sides(subject, layer, x[:1], heads[:1], length)
    step = max(1, length // MAX_MASK_ROWS)
    visible = layer.visible(_every(queries, step), _every(keys, step))
    return visible if visible.dim() == 2 else visible.any(0)


def contents(d_model: int, n_heads: int, d_head: int) -> tuple[Tensor, Tensor]:
    """Return a layer input [S, 1, D] and head content [S, H, 1, K] of S = 2K samples, as if from N(0, 1).

    Each head's are the rows of a random orthogonal matrix and their opposites, so that the mean of any
    two features' product over the samples is what it is over the distribution, and not near it.
    """
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(n_heads, d_head, d_head, generator=generator, dtype=torch.float64)
    rows = math.sqrt(d_head) * torch.linalg.qr(square).Q
    x = torch.randn(d_head, 1, d_model, generator=generator)
    head = rows.transpose(0, 1).unsqueeze(2).float()
    return torch.cat([x, -x]), torch.cat([head, -head])


def _last_row(
    subject: ResolvedEncoding, layer: LayerEncoding, x: Tensor, heads: Tensor, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums over samples of the last query's scores and weights [H, T], and what it sees, [.., T]."""
    queries, keys = _sides(subject, layer, x, heads, length)
    last = slice_tokens(queries, length - 1, length)
    scores, visible = logits(layer, last, keys, 1 / math.sqrt(heads.shape[-1]))
    weights = weigh(layer, scores, visible, last)
    spread = (heads.shape[0], heads.shape[1], length)  # scores of one sample or head hold for all
    return (
        scores[..., 0, :].expand(spread).sum(0),
        weights[..., 0, :].expand(spread).sum(0),
        visible[..., 0, :],
    )


def _sides(
    subject: ResolvedEncoding, layer: LayerEncoding, x: Tensor, heads: Tensor, length: int
) -> tuple[Side, Side]:
    """Return queries and keys of texts in which every token has the same content."""
    repeated = heads.expand(-1, -1, length, -1)
    position = _ids(subject.encoding, len(x), length)
    return project(layer, x.expand(-1, length, -1), repeated, repeated, position)


def _ids(encoding: Composition, batch: int, length: int) -> Tensor:
    return encoding.ids(tokens(batch, length), train=False, generator=torch.Generator().manual_seed(0))


def _embedded(subject: ResolvedEncoding, x: Tensor) -> Tensor:
    ids = _ids(subject.encoding, len(x), x.shape[1])
    return subject.encoding.embed(x, ids, tokens(len(x), x.shape[1]))


def tokens(batch: int, length: int) -> Tensor:
    """Return bytes [B, T] of a text, for encodings that read it."""
    text = torch.tensor(list(TEXT.encode()))
    return text.repeat(length // len(text) + 1)[:length].expand(batch, -1)


@torch.no_grad()
def _try_length(subject: ResolvedEncoding, length: int) -> None:
    _embedded(subject, torch.zeros(1, length, subject.config.model.d_model))
    for kind in kinds(subject):
        model = subject.config.model
        x, heads = contents(model.d_model, model.n_heads, model.d_head)
        _last_row(subject, kind.layer, x[:1], heads[:1], length)


def _every(side: Side, step: int) -> Side:
    values = {name: value[..., ::step] for name, value in side.values.items()}
    return Side(
        side.x[..., ::step, :],
        side.raw[..., ::step, :],
        side.position[..., ::step],
        side.index[::step],
        values,
    )


def _parts(layer: LayerEncoding) -> tuple[LayerEncoding, ...]:
    return layer.parts if isinstance(layer, Stack) else (layer,)


def _traits(layer: LayerEncoding) -> dict[Any, Any]:
    """Return types and plain values of all parts of a layer, by their places in it."""
    modules = [module for part in _parts(layer) for module in part.modules()]
    traits: dict[Any, Any] = {}
    for place, module in enumerate(modules):
        traits[place] = type(module)
        plain = {key: value for key, value in vars(module).items() if isinstance(value, (int, float, str))}
        traits |= {(place, key): value for key, value in plain.items()}
    return traits


def describe_end(values: np.ndarray, bottom: float) -> str:
    """Return what the panel does not show of a curve's end."""
    finite = np.flatnonzero(np.isfinite(values))
    end = values[finite[-1]]
    remarks = []
    if finite[-1] < len(values) - 1:
        remarks.append(f"masked from {finite[-1] + 1:,}")
    if end < bottom - 1e-6:
        remarks.append(f"to \N{MINUS SIGN}{-end:,.0f}" if end > -9_999 else "to no weight")
    return f" ({', '.join(remarks)})" if remarks else ""


def name_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return `head 3` or `heads 0-2, 5`."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}\N{EN DASH}{run[-1]}" for run in runs)
    return f"{noun} {shown}" if len(numbers) == 1 else f"{noun}s {shown}"
