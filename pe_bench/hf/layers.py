"""What was found of a checkpoint's layers, as `pe-bench show hf:FOLDER` prints it."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.hf.attention import Caught, PassMask
from pe_bench.hf.encoding import UNKNOWN, Rotation, name_of
from pe_bench.hf.opened import open_checkpoint, rotations_of, train_length_of
from pe_bench.hf.rotary import RotaryCall
from pe_bench.hf.source import load_config, read_source
from pe_bench.render.grid import Cell, Column, Grid

COLUMNS = [
    Column(name, is_left=name in ("layers", "rotation", "sees"))
    for name in ("layers", "rotation", "base", "turned", "sees", "sinks", "soft cap", "logits")
]
NO_ATTENTION = ("no attention", *[""] * (len(COLUMNS) - 2))
LONGEST = 2**20  # tokens, up to which a window is looked for
ASSUMED_LENGTH = 2_048  # where the configuration states none; only a scaling's name depends on it


def layers_of(text: str) -> Grid:
    """Return a row for each group of layers that do the same. Raise `UserError` for what is no checkpoint."""
    source = read_source(text)
    config = load_config(source)
    length, length_from = train_length_of(config) or (ASSUMED_LENGTH, "nothing: assumed")
    opened = open_checkpoint(source, config, length, (), torch.float32, plain=False)
    answer = opened.answer
    if answer is None:
        raise UserError(f"{source.name} does not let its attention be replaced: its layers are not known")
    numbers: dict[tuple[str, ...], list[int]] = {}
    for number, rotation, layer in zip(answer.numbers, answer.rotations, answer.layers, strict=True):
        known = _rotation(rotation, rotations_of(config), length, answer.calls)
        facts = (*known, *_facts(layer))
        numbers.setdefault(facts, []).append(number)
    others = [number for number in range(opened.size.n_layers) if number not in answer.numbers]
    if others:
        numbers[NO_ATTENTION] = others
    notes = ["turned: the features of a head that the rotation turns; found with random tokens"]
    if opened.model.max_positions is not None:
        notes.insert(0, f"it has a table of {opened.model.max_positions:,} positions")
    if opened.unused_scaling:
        notes.append(f"its config.json names the scaling {opened.unused_scaling}, and no layer turns so")
    title = f"{source.name}: {opened.architecture}, {opened.size.n_layers} layers"
    trained = f"training length {length:,}, by {length_from}"
    rows = [[Cell(_spans(alike)), *map(Cell, facts)] for facts, alike in numbers.items()]
    return Grid(COLUMNS, rows, (title, trained), notes=notes).without_empty()


def _spans(numbers: Sequence[int]) -> str:
    """Return the numbers of layers as text: `0-2, 4-6`."""
    spans = []
    for _, group in groupby(numbers, key=lambda number: number - numbers.index(number)):
        first, *others = group
        spans.append(f"{first}-{others[-1]}" if others else f"{first}")
    return ", ".join(spans)


def _facts(layer: Caught) -> tuple[str, ...]:
    """Return the tokens that a layer sees, its sinks, its soft cap and the factor of its logits, as texts."""
    sinks = "yes" if layer.has_sinks else ""
    softcap = "" if layer.softcap is None else f"{layer.softcap:g}"
    factor = "" if math.isclose(layer.factor, 1, rel_tol=1e-6) else f"x {layer.factor:.3g}"
    return _sees(layer.mask), sinks, softcap, factor


def _rotation(
    rotation: Rotation | None, parameters: Sequence[Any], length: int, calls: Sequence[RotaryCall]
) -> tuple[str, str, str]:
    """Return the name of a rotation with its options, its base, and how many features of a head it turns."""
    if rotation is None:
        return "none", "", ""
    if rotation == UNKNOWN or (values := name_of(rotation, parameters, length, calls)) is None:
        return "unknown", "", ""
    turned = 2 * sum(frequency != 0 for frequency in rotation.frequencies)
    return EncodingSpec(values).label, f"{values['base']:,.0f}", f"{turned} of {rotation.d_head}"


def _sees(mask: PassMask | None) -> str:
    """Return the tokens that a layer sees as text: all, a window, or a chunk of the text."""
    size = 1
    while mask is not None and not mask.is_causal and size <= LONGEST:
        hidden = size - mask.count(size)
        if hidden:
            slides = size + 1 - mask.count(size + 1) == hidden + 1
            return f"window of {size - hidden:,}" if slides else f"chunk of {hidden:,}"
        size *= 2
    return "all"
