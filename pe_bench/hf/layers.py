"""The table of a Hugging Face model's layers, as `pe-bench show hf:FOLDER` prints it."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.hf.attention import AttentionArguments, PassMask
from pe_bench.hf.encoding import UNKNOWN_ROTATION, Rotation, encoding_with_rotation
from pe_bench.hf.opened import open_hf_model, rotations_of, train_length_of
from pe_bench.hf.rotary import RotaryCall
from pe_bench.hf.source import load_config, read_source
from pe_bench.render.grid import Cell, Column, Grid
from pe_bench.system.cost import count

LAYER_COLUMNS = [
    Column(name, is_left=name in ("layers", "rotation", "sees"))
    for name in ("layers", "rotation", "base", "turned", "sees", "sinks", "soft cap", "logits")
]
NO_ATTENTION_CELLS = ("no attention", *[""] * (len(LAYER_COLUMNS) - 2))
LONGEST_WINDOW = 2**20  # tokens of the longest window that is found
ASSUMED_LENGTH = 2_048  # if the configuration states no length; only a scaling's name depends on it


def layer_table(text: str) -> Grid:
    """Return the table of a model's layers, with a row for each group of equal layers. Raises `UserError`.

    text: hf:FOLDER, hf:FILE or hf:OWNER/NAME.
    """
    source = read_source(text)
    config = load_config(source)
    length, length_from = train_length_of(config) or (ASSUMED_LENGTH, "nothing: assumed")
    opened = open_hf_model(source, config, length, (), torch.float32, plain=False)
    layer_facts = opened.layer_facts
    if layer_facts is None:
        raise UserError(f"{source.name} does not let its attention be replaced: its layers are not known")
    layers_by_texts: dict[tuple[str, ...], list[int]] = {}
    for number, rotation, layer in zip(
        layer_facts.numbers, layer_facts.rotations, layer_facts.layers, strict=True
    ):
        known = _rotation_texts(rotation, rotations_of(config), length, layer_facts.calls)
        facts = (*known, *_attention_texts(layer))
        layers_by_texts.setdefault(facts, []).append(number)
    others = {*range(opened.size.n_layers)} - {*layer_facts.numbers}
    if others:
        layers_by_texts[NO_ATTENTION_CELLS] = sorted(others)
    notes = ["turned: the features of a head that the rotation turns; found with random tokens"]
    if opened.model.max_positions is not None:
        notes.insert(0, f"it has a table of {opened.model.max_positions:,} positions")
    if opened.unused_scaling:
        notes.append(f"its config.json names the scaling {opened.unused_scaling}, and no layer turns so")
    title = f"{source.name}: {opened.architecture}, {count(opened.size.n_layers, 'layer')}"
    trained = f"training length {length:,}, by {length_from}"
    rows: list[list[Cell]] = []
    for facts, alike in layers_by_texts.items():
        rows.append([Cell(_spans(alike)), *map(Cell, facts)])
    return Grid(LAYER_COLUMNS, rows, (title, trained), notes=notes).without_empty()


def _spans(numbers: Sequence[int]) -> str:
    """Return the numbers of layers as text: `0-2, 4-6`."""
    spans = []
    for _, group in groupby(numbers, key=lambda number: number - numbers.index(number)):
        first, *others = group
        spans.append(f"{first}-{others[-1]}" if others else f"{first}")
    return ", ".join(spans)


def _attention_texts(layer: AttentionArguments) -> tuple[str, ...]:
    """Return the tokens that a layer sees, its sinks, its soft cap and the factor of its logits, as texts."""
    sinks = "yes" if layer.has_sinks else ""
    softcap = "" if layer.softcap is None else f"{layer.softcap:g}"
    factor = "" if math.isclose(layer.factor, 1, rel_tol=1e-6) else f"x {layer.factor:.3g}"
    return _visible_text(layer.mask), sinks, softcap, factor


def _rotation_texts(
    rotation: Rotation | None, parameters: Sequence[Any], length: int, calls: Sequence[RotaryCall]
) -> tuple[str, str, str]:
    """Return three texts: the name and options of a rotation, its base, the number of features it turns."""
    if rotation is None:
        return "none", "", ""
    values = None
    if rotation != UNKNOWN_ROTATION:
        values = encoding_with_rotation(rotation, parameters, length, calls)
    if values is None:
        return "unknown", "", ""
    pairs = sum(frequency != 0 for frequency in rotation.frequencies)
    label = EncodingSpec(values).label
    return label, f"{values['base']:,.0f}", f"{2 * pairs} of {rotation.d_head}"


def _visible_text(mask: PassMask | None) -> str:
    """Return the tokens that a layer sees as text: all, a window, or a chunk of the text."""
    size = 1
    while mask is not None and not mask.is_causal and size <= LONGEST_WINDOW:
        hidden = size - mask.count(size)
        if hidden:
            slides = size + 1 - mask.count(size + 1) == hidden + 1
            return f"window of {size - hidden:,}" if slides else f"chunk of {hidden:,}"
        size *= 2
    return "all"
