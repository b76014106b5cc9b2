"""The numbers that show what an encoding does: scores by distance, wavelengths, masks, inputs.

Letters: S samples of content, H heads, T tokens, K head width, D model width. Everything is seen
from the last token, so that the last query's scores for the keys, read backwards, are by distance.
"""

import math
from collections.abc import Iterator
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
from pe_bench.model.attention.reference import attention_weights, logits, make_sides, select_tokens

MAX_ELEMENTS = 2**24  # numbers of one tensor
SAMPLE_TEXT = "A query sees some keys. What it makes of them depends on where they are. "  # repeated as input


@dataclass(frozen=True)
class AttentionCurves:
    """The expected scores and weights of each head, by distance 0 to T - 1.

    Scores are logarithms of weights for an encoding that replaces the softmax, and logarithms of the share of
    a token that is left in the state for an encoding with a state.
    """

    scores: Tensor  # [H, T], NaN where the mask hides the key
    weights: Tensor  # [H, T]
    meaning: str = "expected score"  # the meaning of the scores, for the label of an axis


def layer_kinds(encoding: Composition, n_layers: int) -> list[tuple[int, ...]]:
    """Group the numbers of layers that have the same structure and tables; their parameters may differ."""
    numbers_by_traits: dict[str, list[int]] = {}
    for number in range(n_layers):
        traits = [_traits(module) for module in _modules_of(encoding.layer(number))]
        numbers_by_traits.setdefault(str(traits), []).append(number)
    return [tuple(group) for group in numbers_by_traits.values()]


def _modules_of(layer: LayerEncoding) -> list[nn.Module]:
    """Return the modules of all parts of a layer's encoding."""
    return list(chain.from_iterable(leaf.modules() for leaf in leaves_of(layer)))


def _traits(module: nn.Module) -> list[object]:
    """Return a module's class, options and sums of tables, but not the layer's number."""
    traits: dict[str, object] = {}
    for name, value in vars(module).items():
        if isinstance(value, int | float | str):
            traits[name] = value
    traits["number"] = 0
    tables = [float(table.double().sum()) for table in module.buffers(recurse=False)]
    return [type(module), sorted(traits.items()), tables]


@torch.no_grad()
def scores_by_distance(subject: ResolvedEncoding, layer: LayerEncoding, length: int) -> AttentionCurves:
    """Return scores and weights by distance, biases included, if all tokens have the same content.

    They are means over contents. length: the number of distances.
    """
    recurrent = [leaf for leaf in leaves_of(layer) if isinstance(leaf, Recurrent)]
    if recurrent:
        return _shares_left(subject, recurrent[0], length)
    model = subject.config.model
    scale = 1 / math.sqrt(model.d_head)
    sums = torch.zeros(2, model.n_heads, length)
    samples = 0
    visible = torch.empty(0)
    for x, heads in _content_samples(subject, length):
        queries, keys = _same_content_sides(subject, layer, x, heads, length)
        last = select_tokens(queries, range(length - 1, length))
        scores, visible = logits(layer, last, keys, scale)
        weights = attention_weights(layer, scores, visible, last)
        # Scores of one sample or head hold for all.
        sizes = (len(x), model.n_heads, length)
        for number, values in enumerate((scores, weights)):
            sums[number] += values[..., 0, :].expand(sizes).sum(0)
        samples += len(x)
    scores, weights = sums / samples
    meaning = AttentionCurves.meaning
    if layer.overrides("weights"):
        scores = weights.log().clamp(min=-1e4)
        meaning = "log of expected weight"
    shown = scores.masked_fill(~visible[..., 0, :], math.nan)
    return AttentionCurves(shown.flip(-1), weights.flip(-1), meaning)


def _shares_left(subject: ResolvedEncoding, layer: Recurrent, length: int) -> AttentionCurves:
    """Return the share of a token that is left in the state, by its distance, as a mean over contents."""
    total = torch.zeros(subject.config.model.n_heads, length)
    samples = 0
    for x, heads in _content_samples(subject, length):
        repeated = heads.expand(-1, -1, length, -1)
        inputs = layer.recurrence_inputs(x.expand(-1, length, -1), repeated, repeated, repeated)
        # A token at a distance has been decayed by all later tokens, but not by itself.
        backwards = inputs.log_decay.flip(-2)
        later = functional.pad(backwards, (0, 0, 1, 0))[..., :-1, :]
        total += later.cumsum(-2).exp().mean(-1).sum(0)
        samples += len(x)
    left = total / samples
    weights = left / left.sum(-1, keepdim=True)
    return AttentionCurves(left.log(), weights, "log of what is left of a token")


def _content_samples(subject: ResolvedEncoding, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the random contents of an encoding's layer, some samples at a time: [s, 1, D] and [s, H, 1, K].

    A tensor of `length` tokens for each of the s samples has at most `MAX_ELEMENTS` numbers, or s is 1.
    """
    model = subject.config.model
    x, heads = contents(model.d_model, model.n_heads, model.d_head)
    width = max(model.n_heads * model.d_head, model.d_model)
    samples = max(1, MAX_ELEMENTS // (length * width))
    yield from zip(x.split(samples), heads.split(samples), strict=True)


@torch.no_grad()
def input_products(subject: ResolvedEncoding, length: int) -> tuple[Tensor, bool] | None:
    """Return dot products [T] by distance of the last input with each input; None for unchanged inputs.

    The inputs are zeros after the encoding's `embed`. An encoding that multiplies inputs leaves zeros as they
    are: its inputs have one random content at every place instead. Also returns whether they do.
    """
    parts = [subject.encoding.base, *subject.encoding.modifiers.values()]
    if not any(part.overrides("embed") for part in parts):
        return None
    width = subject.config.model.d_model
    added = _embedded(subject, torch.zeros(1, length, width))
    if bool((added != 0).any()):
        return _products_with_last(added), False
    x, _ = contents(width, 1, 1)
    content = _embedded(subject, x[:64].expand(-1, length, -1))
    return _products_with_last(content), True


def _products_with_last(inputs: Tensor) -> Tensor:
    """Return the products [T] of the last of the inputs [S, T, D] with each, by distance: means over S."""
    products = inputs @ inputs[:, -1:].mT
    return products.squeeze(-1).mean(0).flip(0)


def wavelengths(layer: LayerEncoding, length: int) -> list[Tensor]:
    """Return 2 pi / theta of the pairs [pairs], for each frequency table, in a window of `length` tokens."""
    frequency_rows: list[Tensor] = []
    for module in _modules_of(layer):
        scaled = module.scaled(length) if isinstance(module, RopeScaling) else module
        table = getattr(scaled, "frequencies", None)
        if isinstance(table, Tensor):
            table = table.detach().double()
            frequency_rows += table.reshape(-1, table.shape[-1])
    used = [row for row in frequency_rows if row.any()]
    return [2 * math.pi / row.abs() for row in used]


@torch.no_grad()
def mask(subject: ResolvedEncoding, layer: LayerEncoding, length: int) -> Tensor:
    """Return the mask [length, length] of the keys that each query sees in some head."""
    model = subject.config.model
    x, heads = contents(model.d_model, model.n_heads, model.d_head)
    sides = _same_content_sides(subject, layer, x[:1], heads[:1], length)
    visible = layer.visible(*sides)
    return visible if visible.dim() == 2 else visible.any(0)


def contents(d_model: int, n_heads: int, d_head: int) -> tuple[Tensor, Tensor]:
    """Return a layer input [S, 1, D] and head content [S, H, 1, K] of S = 2K samples, as if from N(0, 1).

    A head's samples are the rows of a random orthogonal matrix and their opposites, so that the mean product
    of any two features over the samples is exactly the mean over the distribution.
    """
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(n_heads, d_head, d_head, generator=generator, dtype=torch.float64)
    rows = math.sqrt(d_head) * torch.linalg.qr(square).Q
    x = torch.randn(d_head, 1, d_model, generator=generator)
    head = rows.transpose(0, 1).unsqueeze(2).float()
    return torch.cat([x, -x]), torch.cat([head, -head])


def _same_content_sides(
    subject: ResolvedEncoding, layer: LayerEncoding, x: Tensor, heads: Tensor, length: int
) -> tuple[Side, Side]:
    """Return queries and keys of texts in which every token has the same content."""
    repeated = heads.expand(-1, -1, length, -1)
    ids = _position_ids(subject, len(x), length)
    return make_sides(layer, x.expand(-1, length, -1), repeated, repeated, ids)


def _embedded(subject: ResolvedEncoding, x: Tensor) -> Tensor:
    """Return inputs x [B, T, D] after the encoding's `embed`."""
    batch, length, _ = x.shape
    return subject.encoding.embed(x, _position_ids(subject, batch, length), _text_bytes(batch, length))


def _position_ids(subject: ResolvedEncoding, batch: int, length: int) -> Tensor:
    """Return the position ids of scoring, for the tokens of `_text_bytes`."""
    generator = torch.Generator().manual_seed(0)
    return subject.encoding.ids(_text_bytes(batch, length), train=False, generator=generator)


def _text_bytes(batch: int, length: int) -> Tensor:
    """Return bytes [B, T] of a text, for encodings that read tokens."""
    text = torch.tensor(list(SAMPLE_TEXT.encode()))
    copies = length // len(text) + 1
    return text.repeat(copies)[:length].expand(batch, -1)
