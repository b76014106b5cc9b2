"""A trained model as one picture: its encoding by distance, and its attention in one window.

Letters: B batch, T tokens, D model width, H query heads.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from pe_bench.config.schema import Config
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.inspection import curves
from pe_bench.inspection.picture import (
    MAX_NOTE,
    REACH,
    SMALL,
    WIDTH,
    PanelRow,
    draw_curves,
    input_row,
    limits_of,
)
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.model.attention.reference import attention_weights, logits, make_sides
from pe_bench.model.decoder import Decoder
from pe_bench.model.layers import Block, SelfAttention
from pe_bench.render.paper import COLOURS, GREY, STROKES, wrapped

ROW_HEIGHT = 2.5  # inches, of a layer
NOTES = (
    "Left: the mean score over contents from N(0, 1) that the query and the key share, with biases, at the "
    "trained values of parameters.",
    "Right: the mean weight of the heads in one window of validation text; darker is more.",
)


def trained_encoding(config: Config, encoding: Composition) -> ResolvedEncoding:
    """Wrap a trained model's encoding like the encodings that `show` takes as arguments."""
    return ResolvedEncoding(config.encoding["name"], config, trained=encoding)


@torch.no_grad()
def attention_by_layer(model: Decoder, tokens_BT: Tensor, ids: Tensor) -> list[np.ndarray | None]:
    """Return the mean weight over heads [T, T] of the first text in each layer; None without softmax."""
    kept_weights: list[np.ndarray | None] = []

    def keep_weights(module: SelfAttention, arguments: tuple[Any, ...], output: Tensor) -> None:
        x_BTD, layer, ids = arguments[:3]
        if layer.overrides("attend"):
            kept_weights.append(None)
        else:
            weights = _attention_weights(module, x_BTD, layer, ids)
            kept_weights.append(weights[0].mean(0).cpu().numpy())

    blocks = [cast(Block, block) for block in model.blocks]
    hooks = [block.attention.register_forward_hook(keep_weights) for block in blocks]
    try:
        model.hidden(tokens_BT, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return kept_weights


def _attention_weights(module: SelfAttention, x_BTD: Tensor, layer: LayerEncoding, ids: Tensor) -> Tensor:
    """Return the attention weights [B, H, T, T] of a layer. x_BTD: its input after the norm."""
    projected = (module.query(x_BTD), module.key(x_BTD), module.value(x_BTD))
    q_BHTK, k_BHTK, _ = layer.convolve(*module.heads(*projected))
    queries, keys = make_sides(layer, x_BTD, q_BHTK, k_BHTK, ids)
    scale = 1 / math.sqrt(module.d_head)
    scores, visible = logits(layer, queries, keys, scale)
    weights = attention_weights(layer, scores, visible, queries)
    batch, heads = q_BHTK.shape[:2]
    return weights.expand(batch, heads, -1, -1)


def rows_by_layer(subject: ResolvedEncoding) -> list[PanelRow]:
    """Return a row for each layer; it ends at the training length if the encoding has no meaning past it."""
    length = subject.config.train.length
    reach = length if subject.encoding.past_training == "undefined" else REACH * length
    rows = []
    for number in range(subject.config.model.n_layers):
        scores = curves.scores_by_distance(subject, subject.encoding.layer(number), reach)
        weights = scores.weights.numpy().mean(0)
        drawn = (scores.scores.numpy(), scores.meaning, weights)
        row = PanelRow(f"layer {number}", COLOURS[3], STROKES[0], length, *drawn)
        rows.append(row)
    return rows


def draw_trained(title: str, subject: ResolvedEncoding, attention: Sequence[np.ndarray | None]) -> Figure:
    """Draw a row for each layer, below a row for the input if the encoding changes the input.

    attention: the weights [T, T] of each layer; None for a layer without softmax.
    """
    rows = rows_by_layer(subject)
    reach = rows[0].curves.shape[-1]
    first = input_row(subject, COLOURS[3], reach)
    height = len(rows) + (first is not None)
    size = (WIDTH, ROW_HEIGHT * height + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(height, 2, width_ratios=[3, 2])
    limits = limits_of(rows)
    if first is not None:
        draw_curves(figure.add_subplot(grid[0, 0]), first, limits)
    panels = zip(rows, attention, strict=True)
    for index, (row, weights) in enumerate(panels, height - len(rows)):
        draw_curves(figure.add_subplot(grid[index, 0]), row, limits)
        if weights is not None:
            _draw_attention(figure.add_subplot(grid[index, 1]), weights)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.supxlabel(wrapped(NOTES, MAX_NOTE), fontsize=7.5, color=GREY, x=0.01, ha="left")
    return figure


def _draw_attention(axes: Axes, weights: np.ndarray) -> None:
    """Draw the attention weights [T, T] of one window as shades of blue."""
    length = len(weights)
    is_later = np.triu(np.ones_like(weights, bool), 1)
    seen = np.ma.masked_where(is_later, weights)
    largest = float(weights.max()) or 1.0
    shades = PowerNorm(0.4, 0, largest)
    axes.imshow(seen, "Blues", shades, extent=(0, length, length, 0), interpolation="nearest")
    ticks = [0, length // 2, length]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_title("attention in one window", **SMALL)
    axes.set(xlabel="key", ylabel="query")
