"""The numbers that show what an encoding does: scores by distance, wavelengths, masks, inputs.

Letters: S samples of content, H heads, T tokens, K head width, D model width. Everything is seen
from the last token, so that the last query's scores for the keys, read backwards, are by distance.
"""

import math
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import Composition, leaves_of
from pe_bench.encodings.recurrent.recurrence import Recurrent
from pe_bench.encodings.scalings.rope_scaling import RopeScaling
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.model.attention.reference import attention_weights, logits, project, select_tokens

MAX_ELEMENTS = 2**24  # numbers of one tensor
TEXT = "A query sees some keys. What it makes of them depends on where they are. "


@dataclass(frozen=True)
class Scores:
    """The expected scores by distance 0..T-1 [H, T], NaN where the mask hides the key, and weights [H, T].

    meaning: what the scores are, on an axis. Where an encoding replaces the softmax, they are logarithms of
    its weights; where it has a state instead, of the share of a token that is left in it.
    """

    scores: Tensor
    weights: Tensor
    meaning: str = "expected score"


def kinds(encoding: Composition, n_layers: int) -> list[tuple[int, ...]]:
    """Return the numbers of the layers of each kind, which share structure and tables, but not parameters."""
    groups: dict[str, list[int]] = {}
    for number in range(n_layers):
        traits = [_traits(module) for module in _modules_of(encoding.layer(number))]
        groups.setdefault(str(traits), []).append(number)
    return [tuple(group) for group in groups.values()]


def _modules_of(layer: LayerEncoding) -> list[nn.Module]:
    """Return the modules of all parts of a layer's encoding."""
    return list(chain.from_iterable(leaf.modules() for leaf in leaves_of(layer)))


def _traits(module: nn.Module) -> list[object]:
    """Return a module's class, options and sums of tables, but not the layer's number."""
    values = {name: value for name, value in vars(module).items() if isinstance(value, int | float | str)}
    tables = [float(table.double().sum()) for table in module.buffers(recurse=False)]
    return [type(module), sorted((values | {"number": 0}).items()), tables]


@torch.no_grad()
def scores_by_distance(subject: ResolvedEncoding, layer: LayerEncoding, length: int) -> Scores:
    """Return the mean over contents that the query and the key share, plus what is added to it."""
    recurrent = [leaf for leaf in leaves_of(layer) if isinstance(leaf, Recurrent)]
    if recurrent:
        return _decays(subject, recurrent[0], length)
    model = subject.config.model
    x, heads = contents(model.d_model, model.n_heads, model.d_head)
    samples = max(1, MAX_ELEMENTS // (length * max(model.n_heads * model.d_head, model.d_model)))
    sums = torch.zeros(2, model.n_heads, length)
    visible = torch.empty(0)
    for x_part, heads_part in zip(x.split(samples), heads.split(samples), strict=True):
        queries, keys = _sides(subject, layer, x_part, heads_part, length)
        last = select_tokens(queries, range(length - 1, length))
        scores, visible = logits(layer, last, keys, 1 / math.sqrt(model.d_head))
        weights = attention_weights(layer, scores, visible, last)
        # Scores of one sample or head hold for all.
        sizes = (len(x_part), model.n_heads, length)
        sums += torch.stack([part[..., 0, :].expand(sizes).sum(0) for part in (scores, weights)])
    scores, weights = sums / len(x)
    meaning = Scores.meaning
    if layer.overrides("weights"):
        scores = weights.log().clamp(min=-1e4)
        meaning = "log of expected weight"
    shown = scores.masked_fill(~visible[..., 0, :], math.nan)
    return Scores(shown.flip(-1), weights.flip(-1), meaning)


def _decays(subject: ResolvedEncoding, layer: Recurrent, length: int) -> Scores:
    """Return the share of a token that is left in the state, by its distance, as a mean over contents."""
    model = subject.config.model
    x, heads = contents(model.d_model, model.n_heads, model.d_head)
    samples = max(1, MAX_ELEMENTS // (length * max(model.n_heads * model.d_head, model.d_model)))
    total = torch.zeros(model.n_heads, length)
    for x_part, heads_part in zip(x.split(samples), heads.split(samples), strict=True):
        repeated = heads_part.expand(-1, -1, length, -1)
        tokens = layer.tokens(x_part.expand(-1, length, -1), repeated, repeated, repeated)
        # A token at a distance has been decayed by all later ones, but not by itself.
        later = functional.pad(tokens.log_decay.flip(-2), (0, 0, 1, 0))[..., :-1, :]
        total += later.cumsum(-2).exp().mean(-1).sum(0)
    left = total / len(x)
    return Scores(left.log(), left / left.sum(-1, keepdim=True), "log of what is left of a token")


@torch.no_grad()
def input_products(subject: ResolvedEncoding, length: int) -> tuple[Tensor, bool] | None:
    """Return dot products [T] by distance, and whether they are of contents; None if inputs stay as they are.

    They are products of what the encoding adds to a zero at the last place and at each place before. If it
    adds nothing to a zero, because it multiplies, they are of one content embedded at every place.
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
    """Return 2 pi / theta of the pairs [pairs], for each frequency table, in a window of `length` tokens."""
    rows: list[Tensor] = []
    for module in _modules_of(layer):
        scaled = module.scaled(length) if isinstance(module, RopeScaling) else module
        table = getattr(scaled, "frequencies", None)
        if isinstance(table, Tensor):
            rows += table.detach().double().reshape(-1, table.shape[-1])
    return [2 * math.pi / row.abs() for row in rows if row.any()]


@torch.no_grad()
def mask(subject: ResolvedEncoding, layer: LayerEncoding, length: int) -> Tensor:
    """Return the mask [length, length] of the keys that each query sees in some head."""
    model = subject.config.model
    x, heads = contents(model.d_model, model.n_heads, model.d_head)
    visible = layer.visible(*_sides(subject, layer, x[:1], heads[:1], length))
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


def _sides(
    subject: ResolvedEncoding, layer: LayerEncoding, x: Tensor, heads: Tensor, length: int
) -> tuple[Side, Side]:
    """Return queries and keys of texts in which every token has the same content."""
    repeated = heads.expand(-1, -1, length, -1)
    return project(layer, x.expand(-1, length, -1), repeated, repeated, _ids(subject, len(x), length))


def _embedded(subject: ResolvedEncoding, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    return subject.encoding.embed(x, _ids(subject, batch, length), _tokens(batch, length))


def _ids(subject: ResolvedEncoding, batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return subject.encoding.ids(_tokens(batch, length), train=False, generator=generator)


def _tokens(batch: int, length: int) -> Tensor:
    """Return bytes [B, T] of a text, for encodings that read it."""
    text = torch.tensor(list(TEXT.encode()))
    return text.repeat(length // len(text) + 1)[:length].expand(batch, -1)
