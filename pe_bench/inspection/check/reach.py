"""Checks of how far an encoding reads: distances that it tells apart, and keys that a query sees.

Letters: B batch, H query heads, T tokens, K head width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    Case,
    layer_inputs,
    layers_of,
    one_token_repeated,
)
from pe_bench.inspection.check.finding import EXACT, SHOWS, Finding
from pe_bench.model.attention import logits, project, reference_attention, slice_tokens

FARTHEST = 2**18 + 1
DISTANCES = sorted({0, 1, 2, 3, *(2**power + more for power in range(2, 19) for more in (0, 1))})
POSITIONS = [*range(2**12 + 2)]
BETWEEN = 64  # distances looked at in one round of the search for where values level off
SIGHT = 3 * TRAIN_LENGTH + 5  # tokens

Values = Callable[[list[int]], Tensor]  # [n, H or D] at distances or positions [n], which rise


class Level(NamedTuple):
    """The first distance from which on all values are equal, and the last step down to them."""

    start: int
    jump: float


def farthest_that_is_told_apart(case: Case) -> Finding | None:
    """Return a failure where values level off at a number past the training length, which only `clamps` may.

    A window or a table of the training length is a design; of another length, it is a limit left in the code.
    """
    for layer in layers_of(case.encoding):
        near, far = (_spread(_scores(layer, [*range(TRAIN_LENGTH)], query)) for query in (40, FARTHEST))
        if near > SHOWS and far <= EXACT:
            return Finding("fails", f"defined, and near position {FARTHEST:,} all distances are alike")
    text = torch.zeros(1, 1, dtype=torch.long)

    def inputs(positions: list[int]) -> Tensor:
        x, ids = layer_inputs(1, batch=1)[0].expand(-1, len(positions), -1), torch.tensor(positions)
        return case.encoding.embed(x, ids, text.expand(1, len(positions)))[0]

    readers: list[tuple[str, Values, list[int]]] = [
        ("distance", lambda found, layer=layer: _scores(layer, found), DISTANCES)
        for layer in layers_of(case.encoding)
    ]
    if case.overrides("embed"):
        readers.append(("position", inputs, POSITIONS))
    for what, values, probes in readers:
        with torch.no_grad():
            level = _level(values, probes)
        if level.start > TRAIN_LENGTH and level.jump > SHOWS:
            return Finding(
                "fails",
                f"defined, and from {what} {level.start:,} on all are alike: `clamps`, if that is meant",
            )
    return None


def _scores(layer: LayerEncoding, distances: list[int], query: int = FARTHEST + 1) -> Tensor:
    """Return a query's logits [n, H] of equal tokens at these distances; its position is given."""
    position = query - torch.tensor([*reversed(distances)])
    if distances[0] > 0:  # the query itself
        position = torch.cat([position, torch.tensor([query])])
    x, q, k = one_token_repeated(len(position))
    queries, keys = project(layer, x, q, k, position)
    row, _ = logits(layer, slice_tokens(queries, len(position) - 1, len(position)), keys, MODEL.d_head**-0.5)
    return row[0, :, 0].flip(-1)[:, -len(distances) :].mT


def _spread(values: Tensor) -> float:
    return float((values.amax(0) - values.amin(0)).detach().max())


def _level(values: Values, probes: list[int]) -> Level:
    """Find where the values level off, by looking ever closer."""
    at, farthest = values(probes), probes[-1]
    last = at[-1]
    is_level = (at - last).abs().amax(-1) <= EXACT
    if is_level.all():
        return Level(0, 0.0)
    first = int((~is_level).nonzero().max()) + 1  # not level before it
    if first == len(probes) or 2 * probes[first] > farthest:  # too few are left to tell
        return Level(farthest, 0.0)
    below, above = probes[first - 1], probes[first]
    while above - below > 1:
        between = sorted({*torch.linspace(below, above, BETWEEN).long().tolist(), below, above, farthest})
        found = values(between)
        is_level = (found - found[-1]).abs().amax(-1) <= EXACT
        if is_level.all():  # which distance is read depends on the tokens between
            return Level(0, 0.0)
        first = int((~is_level).nonzero().max()) + 1
        below, above = between[first - 1], between[first]
    found = values([below, farthest])
    return Level(above, float((found[0] - found[-1]).abs().max()))


def sees_its_window(case: Case) -> Finding:
    """Count the keys that the last query sees; a layer with a `window` sees that many of the latest."""
    length = TRAIN_LENGTH if case.past_training == "undefined" else SIGHT
    counts = set()
    for layer in layers_of(case.encoding):
        seen = _seen(layer, length)
        latest = length - 1 - int((~seen).nonzero().max()) if not seen.all() else length
        for window in _windows(layer):
            if not seen.all() and latest != window:
                return Finding("fails", f"window={window}, and a query sees {latest:,} of the latest keys")
        counts.add(f"{int(seen.sum()):,} keys" if not seen.all() else "every key")
    sight = f"sees {' or '.join(sorted(counts))}"
    return Finding(
        "holds", f"of {length} keys, the last query {sight}", "" if counts == {"every key"} else sight
    )


def _seen(layer: LayerEncoding, length: int) -> Tensor:
    """Return for each key [T] whether the last query's output has a gradient at its value in some head."""
    x, q, k, v = layer_inputs(length, batch=1)
    output = reference_attention(layer, x, q, k, v.requires_grad_(), torch.arange(length))
    (gradient,) = torch.autograd.grad(output[:, :, -1].sum(), v)
    return gradient[0].abs().sum((0, 2)) > 0


def _windows(layer: LayerEncoding) -> list[int]:
    windows = (getattr(part, "window", None) for part in getattr(layer, "parts", (layer,)))
    return [window for window in windows if isinstance(window, int)]
