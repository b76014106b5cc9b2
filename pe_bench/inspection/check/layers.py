"""Checks of an encoding in the attention of one layer, for each kind of layer that it has."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    SHOWS,
    TRAIN_LENGTH,
    Case,
    Finding,
    Inputs,
    as_type,
    at_most,
    both_precisions,
    largest,
    layer_inputs,
    layers_of,
    one_token_repeated,
    tokens,
    worst,
)
from pe_bench.model.attention import attention, logits, project, reference_attention, slice_tokens

FIRST_AT_0, FIRST_AT_3 = torch.tensor([0, 5, 6, 7, 8, 9]), torch.tensor([3, 5, 6, 7, 8, 9])
SEVERAL_CHUNKS = 300  # tokens: fast paths take 256 queries at a time
SINGLE = 1e-5  # float32 against float64
SINGLE_GRADIENT = 1e-4  # gradients likewise: more is added up


def blocks_are_the_whole(case: Case) -> Finding:
    """Blocks of queries are the whole.

    Look at: queries.position and queries.index, where an arange was taken; hooks that read other rows.

    Compare rows computed in blocks, and alone, with all of them at once; positions jump.
    """
    length, errors = 13, []
    x, q, k, v = case.inputs(length)
    jumping = 2 * torch.arange(length)
    for layer in layers_of(case.encoding):
        for position in (jumping, torch.stack([jumping, jumping // 2])):
            whole = reference_attention(layer, x, q, k, v, position, block=length)
            for block in (4, 5):
                errors.append(worst(reference_attention(layer, x, q, k, v, position, block=block), whole))
            for row in (0, 6, length - 1):
                alone = reference_attention(layer, x, q, k, v, position, rows=range(row, row + 1))
                errors.append(worst(alone, whole[:, :, row : row + 1]))
    return at_most(largest(errors), EXACT, "blocks of queries and the whole differ by")


def fused_is_the_reference(case: Case) -> Finding:
    """The fused path is the reference, in float64 and float32.

    Look at: columns and distance_bias, against bias; the scale: 1/sqrt(d_head) multiplies scores alone.

    Compare the chosen paths, with and without gradients, with the reference in float64.
    """
    double, single, slopes = [], [], []
    for length in (1, 2, TRAIN_LENGTH):
        position, inputs = torch.arange(length), case.inputs(length)
        for exact, rounded in both_precisions(case):
            truth, expected = _with_gradients(reference_attention, exact, inputs)
            ours, gradients = _with_gradients(attention, exact, inputs)
            double += [worst(ours, truth), *map(worst, gradients, expected)]
            trained, rounded_gradients = _with_gradients(attention, rounded, as_type(inputs, torch.float32))
            single.append(worst(trained, truth))
            slopes += map(_relative, rounded_gradients, expected)
            with torch.no_grad():  # which opens further paths
                double.append(worst(attention(exact, *inputs, position), truth))
                for path in (attention, reference_attention):
                    single.append(worst(path(rounded, *as_type(inputs, torch.float32), position), truth))
    if case.past_training != "undefined":
        double += _longer_errors(case)
    in_double, in_single = largest(double), largest(single)
    in_slopes = largest(slopes)
    measured = (
        f"fused and reference differ by {in_double:.1e}, float32 and float64 by {in_single:.1e}, "
        f"their gradients by {in_slopes:.1e}"
    )
    holds = in_double <= EXACT and in_single <= SINGLE and in_slopes <= SINGLE_GRADIENT
    return Finding("holds" if holds else "fails", measured)


def _longer_errors(case: Case) -> list[float]:
    """Compare the paths of training and scoring with the reference over several chunks, and jumping ids."""
    inputs, index, errors = case.inputs(SEVERAL_CHUNKS, batch=1), torch.arange(SEVERAL_CHUNKS), []
    for layer in layers_of(case.encoding):
        for position in (index, index + 3, 2 * index):
            truth = reference_attention(layer, *inputs, position)
            for trains in (True, False):
                with torch.set_grad_enabled(trains):
                    errors.append(worst(attention(layer, *inputs, position), truth))
    return errors


def positions_are_read(case: Case) -> Finding:
    """Position ids are read, and no others counted.

    Look at: queries.position, where an arange or an index was taken.

    Check that equal tokens at equal positions stay equal: an encoding must not count tokens itself.

    It may do so where it reads `prepare`'s values, or hides keys.
    """
    x, q, k = one_token_repeated(TRAIN_LENGTH)
    same, errors = torch.full((TRAIN_LENGTH,), 7), [0.0]
    if case.claims("prefix_consistent"):
        later, text = 3, tokens(2, len(FIRST_AT_0))
        rows = [case.encoding.embed(x[:, : len(ids)], ids, text[:1]) for ids in (FIRST_AT_0, FIRST_AT_3)]
        error = worst(rows[0][:, later:], rows[1][:, later:])
        if not error <= EXACT:
            return Finding(
                "fails", f"the input at one id differs by {error:.1e} where the first id is another"
            )
    for layer in layers_of(case.encoding):
        queries, keys = project(layer, x, q, k, same)
        if not (layer.overrides("prepare") and layer.overrides("transform")):
            errors += [worst(turned, turned[..., :1, :]) for turned in (queries.x, keys.x)]
        if not layer.overrides("prepare", "visible"):
            bias, row = layer.bias(queries, keys), layer.scores(queries, keys, MODEL.d_head**-0.5)
            told = (row if bias is None else row + bias).tril()
            errors.append(worst(told, told[..., :1, :1].expand_as(told).tril()))
    return at_most(largest(errors), EXACT, "equal tokens at one position differ by")


def scores_are_scaled(case: Case) -> Finding:
    """Scores are multiplied by the scale that they are given.

    Look at: scores: a term beside scale * (...).

    Check that twice the scale doubles the scores; a term to add after the scale is a bias.
    """
    errors = []
    for layer in layers_of(case.encoding):
        x, q, k, _ = case.inputs(TRAIN_LENGTH)
        queries, keys = project(layer, x, q, k, torch.arange(TRAIN_LENGTH))
        errors.append(worst(layer.scores(queries, keys, 2.0), 2 * layer.scores(queries, keys, 1.0)))
    return at_most(largest(errors), EXACT, "twice the scale is off from twice the scores by")


def hidden_keys_weigh_nothing(case: Case) -> Finding:
    """Hidden keys have a weight of exactly 0.

    Look at: weights: masked logits are -inf, and no large number.

    Check that hidden keys weigh exactly zero, however low the logits of the others are.
    """
    weighed = []
    for layer in layers_of(case.encoding):
        x, q, k, _ = as_type(layer_inputs(TRAIN_LENGTH), torch.float32)
        queries, keys = project(layer, x, q, k, torch.arange(TRAIN_LENGTH))
        visible = layer.visible(queries, keys)
        for lowered in (0.0, 1e10):
            weights = layer.weights(q @ k.mT - lowered, visible)
            weighed.append(worst(weights.masked_fill(visible, 0.0), torch.zeros_like(weights)))
    return at_most(largest(weighed), 0.0, "a hidden key has a weight of")


def ranges_hold_what_is_seen(case: Case) -> Finding:
    """Ranges hold every key that is visible.

    Look at: ranges, against visible: the first query of a chunk sees the farthest key.

    Count visible keys that `ranges` leaves out, for every chunk of queries.
    """
    missed = [keys_outside_of_ranges(layer, TRAIN_LENGTH + 7) for layer in layers_of(case.encoding)]
    return at_most(max(missed), 0, "visible keys outside of ranges:")


def keys_outside_of_ranges(layer: LayerEncoding, tokens: int) -> int:
    """Return the largest number of keys that a chunk of queries sees, and that are in none of its ranges."""
    index, empty, missed = torch.arange(tokens), torch.empty(1, MODEL.n_heads, tokens, 0), []
    visible = layer.visible(*2 * [Side(empty, empty, index, index, {})]).view(-1, tokens, tokens).any(0)
    for start, stop in itertools.combinations(range(tokens + 1), 2):
        seen = visible[start:stop].any(0) & (index < stop)  # `causal` tells of those that follow
        for one in layer.ranges(start, stop):
            seen[one.start : one.stop] = False
        missed.append(int(seen.sum()))
    return max(missed)


def heads_that_share_a_key_differ(case: Case) -> Finding:
    """An encoding of each head tells heads apart that share a key.

    Look at: a parameter or constant that is n_kv_heads long and repeated.

    Compare heads that are given the same: those of one key must differ where those of two keys do.
    """
    options = {option for part in case.spec.parts for option in part.options}
    if "n_heads" not in options:
        return Finding("holds", "takes no n_heads")
    x, q, k, v = layer_inputs(TRAIN_LENGTH)
    q, k, v = (tensor[:, :1].expand_as(tensor) for tensor in (q, k, v))
    group = MODEL.n_heads // MODEL.n_kv_heads
    for layer in layers_of(case.encoding):
        output = reference_attention(layer, x, q, k, v, torch.arange(TRAIN_LENGTH)).unflatten(1, (-1, group))
        within, between = worst(output[:, :, 0], output[:, :, 1]), worst(output[:, 0], output[:, 1])
        if within <= EXACT and between > SHOWS:
            return Finding("fails", f"heads of two keys differ by {between:.1e}, and those of one key do not")
    return Finding("holds", "heads that share a key differ as others do")


def norm_preserving(case: Case) -> Finding:
    """Queries and keys keep their norms, where claimed.

    Look at: transform.
    """
    if not case.claims("norm_preserving"):
        return Finding("not claimed", "")
    x, q, k, _ = case.inputs(64)
    errors = []
    for layer in layers_of(case.encoding):
        for side in project(layer, x, q, k, torch.arange(64) + 5):
            errors.append(worst(side.raw.norm(dim=-1), side.x.norm(dim=-1)))
    return at_most(largest(errors), EXACT, "a norm changes by")


def decaying(case: Case) -> Finding:
    """The bias falls with distance, where claimed.

    Look at: distance_bias.

    Check the bias of growing distances, with the initial parameters and with others.
    """
    if not case.claims("decaying"):
        return Finding("not claimed", "")
    rises = []
    for encoding in (case.as_built().double(), case.encoding):
        for layer in layers_of(encoding):
            bias = layer.distance_bias(torch.arange(16 * TRAIN_LENGTH))
            if bias is None:
                return Finding("fails", "decay is claimed, and there is no distance_bias")
            rises.append(float(bias.detach().diff(dim=-1).max()))
    rise = largest(rises)
    measured = f"from one distance to the next the bias rises by {rise:.1e} at most"
    return Finding("holds" if rise < 0 else "fails", measured)


def obeys_a_window_from_outside(case: Case) -> Finding:
    """A window from outside limits attention.

    Look at: visible, weights, mix; a key's place among those given, where keys.index was meant.

    Check attention limited by its caller to 5 tokens, the `window` control, against a mask.
    """
    row, window, leaks, errors = 20, 5, [], []
    for layer in layers_of(case.encoding):
        x, q, k, v = layer_inputs(TRAIN_LENGTH)
        output = attention(layer, x, q, k, v.requires_grad_(), torch.arange(TRAIN_LENGTH), window=window)
        (gradient,) = torch.autograd.grad(output[:, :, row].sum(), v)
        leaks.append(float(gradient[:, :, : row - window + 1].abs().max()))
        masked = Stack([layer, SlidingWindow(window)])
        truth = reference_attention(masked, x, q, k, v, torch.arange(TRAIN_LENGTH))
        in_blocks = reference_attention(layer, x, q, k, v, torch.arange(TRAIN_LENGTH), window, block=3)
        errors += [worst(output, truth), worst(in_blocks, truth)]
    if largest(leaks) > 0:
        return Finding("fails", f"values beyond the window have gradients of {largest(leaks):.1e}")
    return at_most(largest(errors), EXACT, "no gradient beyond the window; from a mask it differs by")


def _with_gradients(
    path: Callable[..., Tensor], layer: LayerEncoding, inputs: Inputs
) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the gradients of its sum of squares, with respect to inputs and parameters."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    wanted = [*leaves, *layer.parameters()]
    output = path(layer, *leaves, torch.arange(leaves[0].shape[1]))
    found = torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return output, [torch.zeros_like(one) if gradient is None else gradient for gradient, one in pairs]


def _relative(found: Tensor, truth: Tensor) -> float:
    """Return the error of a gradient, relative to its largest number where that is more than 1."""
    return worst(found, truth) / max(1.0, float(truth.abs().max()) if truth.numel() else 0.0)


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
        for seen in [_seen(layer, keys) for keys in (length, LONGER if length == SIGHT else length)]:
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
