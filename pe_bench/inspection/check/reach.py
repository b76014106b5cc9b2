"""Checks of how far an encoding reads: distances that it tells apart, and keys that a query sees.

Letters: B batch, H query heads, T tokens, K head width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    SHOWS,
    TRAIN_LENGTH,
    Case,
    Finding,
    layer_inputs,
    layers_of,
    one_token_repeated,
)
from pe_bench.model.attention import logits, project, reference_attention, slice_tokens

FARTHEST = 2**18 + 1
# So dense that a bias which fades falls below every tolerance in more than one step.
DISTANCES = sorted({*range(40), *(int(40 * 1.05**power) for power in range(181)), FARTHEST - 1})
SIGHT = 3 * TRAIN_LENGTH + 5  # tokens
LONGER = 600

Values = Callable[[list[int]], Tensor]  # [n, H or D] at distances or positions [n], which rise


@torch.no_grad()
def farthest_that_is_told_apart(case: Case) -> Finding | None:
    """Return a failure where values level off at a number past the training length, which only `clamps` may.

    A window or a table of the training length is a design; of another length, it is a limit left in the code.
    """
    text = torch.zeros(1, 1, dtype=torch.long)

    def inputs(positions: list[int]) -> Tensor:
        x, ids = layer_inputs(1, batch=1)[0].expand(-1, len(positions), -1), torch.tensor(positions)
        return case.encoding.embed(x, ids, text.expand(1, len(positions)))[0]

    readers: list[tuple[str, Values]] = [
        ("distance", lambda distances, layer=layer: _scores(layer, distances))
        for layer in layers_of(case.encoding)
    ]
    if case.overrides("embed"):
        readers.append(("position", inputs))
    for what, values in readers:
        at = values(DISTANCES)
        differs = ((at - at[-1]).abs().amax(-1) > EXACT).nonzero()
        last = int(differs.max()) if len(differs) else 0
        level = DISTANCES[last + 1] if last + 1 < len(DISTANCES) else FARTHEST
        jump = float((at[last] - at[-1]).abs().max())
        if TRAIN_LENGTH < level < FARTHEST / 2 and jump > SHOWS:
            return Finding(
                "fails",
                f"defined, and from {what} {level:,} on all are alike: `clamps`, if that is meant",
            )
    return None


def _scores(layer: LayerEncoding, distances: list[int], query: int = FARTHEST + 1) -> Tensor:
    """Return a query's logits [n, H] of equal tokens at these distances, of which 0 is the first."""
    position = query - torch.tensor([*reversed(distances)])
    x, q, k = one_token_repeated(len(position))
    queries, keys = project(layer, x, q, k, position)
    row, _ = logits(layer, slice_tokens(queries, len(position) - 1, len(position)), keys, MODEL.d_head**-0.5)
    return row[0, :, 0].flip(-1).mT


def sees_its_window(case: Case) -> Finding:
    """A query sees as many of the latest keys as `window` says.

    Look at: visible and ranges: `distance < window`, because the query's own key is one of them.

    Count the keys that the last query sees; a layer with a `window` sees that many of the latest.
    """
    length = TRAIN_LENGTH if case.past_training == "undefined" else SIGHT
    counts = set()
    for layer in layers_of(case.encoding):
        for seen in [_seen(layer, tokens) for tokens in (length, LONGER if length == SIGHT else length)]:
            latest = len(seen) - 1 - int((~seen).nonzero().max()) if not seen.all() else len(seen)
            for window in _windows(layer):
                if not seen.all() and latest != window:
                    return Finding(
                        "fails", f"window={window}, and a query sees {latest:,} of the latest keys"
                    )
        seen = _seen(layer, length)
        counts.add(f"{int(seen.sum()):,} keys" if not seen.all() else "every key")
    sight = f"sees {' or '.join(sorted(counts))}"
    return Finding(
        "holds", f"of {length} keys, the last query {sight}", "" if counts == {"every key"} else sight
    )


def _seen(layer: LayerEncoding, length: int) -> Tensor:
    """Return for each key [T] whether the last query's output has a gradient at its value in some head."""
    x, q, k, v = layer_inputs(length, batch=1)
    last = range(length - 1, length)
    output = reference_attention(layer, x, q, k, v.requires_grad_(), torch.arange(length), rows=last)
    (gradient,) = torch.autograd.grad(output.sum(), v)
    return gradient[0].abs().sum((0, 2)) > 0


def _windows(layer: LayerEncoding) -> list[int]:
    windows = (getattr(part, "window", None) for part in getattr(layer, "parts", (layer,)))
    return [window for window in windows if isinstance(window, int)]
