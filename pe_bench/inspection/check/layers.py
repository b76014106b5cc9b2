"""Checks of an encoding in the attention of one layer, for each kind of layer that it has."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import Stack, leaves_of
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    Case,
    Inputs,
    as_type,
    layer_inputs,
    one_token_repeated,
    tokens,
)
from pe_bench.inspection.check.result import (
    EXACT,
    SHOWS,
    Finding,
    UnclaimedError,
    at_most,
    expect,
    largest,
    worst,
)
from pe_bench.model.attention import attention, reference_attention
from pe_bench.model.attention.reference import logits, project, slice_tokens

FIRST_AT_0, FIRST_AT_3 = torch.tensor([0, 5, 6, 7, 8, 9]), torch.tensor([3, 5, 6, 7, 8, 9])
SEVERAL_CHUNKS = 300  # tokens: fast paths take 256 queries at a time
SINGLE = 1e-5  # float32 against float64
SINGLE_GRADIENT = 1e-4  # gradients likewise: more is added up
ROUGH = 1e-3  # float32 over several chunks, and in products of many features


def blocks(case: Case) -> str:
    """Queries in blocks give what all queries at once give.

    Look at: queries.position and queries.index, where an arange was taken; hooks that read other rows.
    """
    length, errors = 13, []
    inputs, jumping = case.inputs(length), 2 * torch.arange(length)
    for layer, position in itertools.product(case.layers, (jumping, torch.stack([jumping, jumping // 2]))):
        at_once = reference_attention(layer, *inputs, position, block=length)
        for block in (4, 5):
            errors.append(worst(reference_attention(layer, *inputs, position, block=block), at_once))
        for row in (0, 6, length - 1):
            alone = reference_attention(layer, *inputs, position, rows=range(row, row + 1))
            errors.append(worst(alone, at_once[:, :, row : row + 1]))
    return at_most("blocks of queries and the whole differ by", *errors)


def positions(case: Case) -> str:
    """Positions are those of the ids, and are not counted anew.

    Look at: queries.position, where an arange or an index was taken.

    Equal tokens at equal positions must stay equal, but where an encoding reads `prepare`'s values or hides
    keys.
    """
    x, q, k = one_token_repeated(TRAIN_LENGTH)
    if case.claims("prefix_consistent"):
        text = tokens(1, len(FIRST_AT_0))
        rows = [case.encoding.embed(x[:, : len(ids)], ids, text)[:, 3:] for ids in (FIRST_AT_0, FIRST_AT_3)]
        error = worst(*rows)
        expect(error <= EXACT, f"the input at one id differs by {error:.1e} where the first id is another")
    errors = [0.0]
    for layer in case.layers:
        queries, keys = project(layer, x, q, k, torch.full((TRAIN_LENGTH,), 7))
        if not (layer.overrides("prepare") and layer.overrides("transform")):
            errors += [worst(side.x, side.x[..., :1, :]) for side in (queries, keys)]
        if not layer.overrides("prepare", "visible"):
            bias, row = layer.bias(queries, keys), layer.scores(queries, keys, MODEL.d_head**-0.5)
            row = (row if bias is None else row + bias).tril()
            errors.append(worst(row, row[..., :1, :1].expand_as(row).tril()))
    return at_most("equal tokens at one position differ by", *errors)


def score_scale(case: Case) -> str:
    """Scores are multiplied by the scale that they are given.

    Look at: scores: a term beside scale * (...), which is a bias.
    """
    errors = [
        worst(layer.scores(queries, keys, 2.0), 2 * layer.scores(queries, keys, 1.0))
        for layer, queries, keys in case.sides(TRAIN_LENGTH)
    ]
    return at_most("twice the scale is off from twice the scores by", *errors)


def masked_weights(case: Case) -> str:
    """Hidden keys have a weight of exactly 0.

    Look at: weights: masked logits are -inf, and no large number.
    """
    errors = []
    for layer, queries, keys in case.sides(TRAIN_LENGTH):
        visible = layer.visible(queries, keys)
        for lowered in (0.0, 1e10):  # however low the logits of the others are
            weights = layer.weights((queries.raw @ keys.raw.mT - lowered).float(), visible)
            errors.append(worst(weights.masked_fill(visible, 0.0), torch.zeros_like(weights)))
    return at_most("a hidden key has a weight of", *errors, limit=0.0)


def ranges(case: Case) -> str:
    """Ranges hold every key that is visible.

    Look at: ranges, against visible: the first query of a chunk sees the farthest key.
    """
    missed = [keys_outside_of_ranges(layer, TRAIN_LENGTH + 7) for layer in case.layers]
    return at_most("visible keys outside of ranges:", *missed, limit=0)


def keys_outside_of_ranges(layer: LayerEncoding, tokens: int) -> int:
    """Return the largest number of keys that a chunk of queries sees, and that are in none of its ranges."""
    side, missed = _bare_side(tokens), []
    visible = layer.visible(side, side).view(-1, tokens, tokens).any(0)
    for start, stop in itertools.combinations(range(tokens + 1), 2):
        seen = visible[start:stop].any(0) & (side.index < stop)  # `causal` tells of those that follow
        for indices in layer.ranges(start, stop):
            seen[indices.start : indices.stop] = False
        missed.append(int(seen.sum()))
    return max(missed)


def fused(case: Case) -> str:
    """The fused path gives what the reference gives, in float64 and float32.

    Look at: columns and distance_bias, against bias; the scale: 1/sqrt(d_head) multiplies scores alone.
    """
    return paths_agree(
        case, (1, 2, TRAIN_LENGTH), (EXACT, SINGLE, SINGLE_GRADIENT), over_chunks=not case.ends
    )


def paths_agree(
    case: Case, lengths: Sequence[int], limits: tuple[float, float, float], over_chunks: bool = False
) -> str:
    """Compare the chosen paths, with and without gradients, with the reference in float64.

    limits: of errors in float64, in float32, and of gradients in float32.
    """
    double, single, slopes = [], [], []
    for length, (exact, rounded) in itertools.product(lengths, case.both_precisions()):
        inputs, position = case.inputs(length), torch.arange(length)
        in_single = as_type(inputs, torch.float32)
        truth, expected = _with_gradients(reference_attention, exact, inputs)
        output, gradients = _with_gradients(attention, exact, inputs)
        double += [worst(output, truth), *map(worst, gradients, expected)]
        output, gradients = _with_gradients(attention, rounded, in_single)
        single.append(worst(output, truth))
        slopes += map(_relative, gradients, expected)
        with torch.no_grad():  # which opens further paths
            double.append(worst(attention(exact, *inputs, position), truth))
            for path in (attention, reference_attention):
                single.append(worst(path(rounded, *in_single, position), truth))
    in_double, in_single = _errors_over_chunks(case) if over_chunks else ([], [])
    double += in_double
    errors = [largest(part) for part in (double, single, slopes)]
    measured = (
        f"fused and reference differ by {errors[0]:.1e}, float32 and float64 by {errors[1]:.1e}, "
        f"their gradients by {errors[2]:.1e}"
    )
    expect(all(error <= limit for error, limit in zip(errors, limits, strict=True)), measured)
    at_most("over several chunks fused and reference differ in float32 by", 0.0, *in_single, limit=ROUGH)
    return measured


def _errors_over_chunks(case: Case) -> tuple[list[float], list[float]]:
    """Return errors in float64 and float32 of the paths of training and scoring, also where ids jump."""
    inputs, index, double, single = case.inputs(SEVERAL_CHUNKS, 1), torch.arange(SEVERAL_CHUNKS), [], []
    in_single = as_type(inputs, torch.float32)
    for tensor in in_single:
        tensor.requires_grad_()
    for (exact, rounded), position in itertools.product(
        case.both_precisions(), (index, index + 3, 2 * index)
    ):
        truth = reference_attention(exact, *inputs, position)
        for trains in (True, False):
            with torch.set_grad_enabled(trains):
                double.append(worst(attention(exact, *inputs, position), truth))
                single.append(worst(attention(rounded, *in_single, position), truth))
    return double, single


def norm(case: Case) -> str:
    """Queries and keys keep their norms, where claimed.

    Look at: transform.
    """
    if not case.claims("norm_preserving"):
        raise UnclaimedError
    sides = [side for _, *both in case.sides(64, shift=5) for side in both]
    errors = [worst(side.raw.norm(dim=-1), side.x.norm(dim=-1)) for side in sides]
    return at_most("a norm changes by", *errors)


def decay(case: Case) -> str:
    """The bias falls with distance, where claimed.

    Look at: distance_bias.
    """
    if not case.claims("decaying"):
        raise UnclaimedError
    rises = []
    for encoding in (case.as_built().double(), case.encoding):
        for number in range(MODEL.n_layers):
            bias = encoding.layer(number).distance_bias(torch.arange(16 * TRAIN_LENGTH))
            expect(bias is not None, "decay is claimed, and there is no distance_bias")
            assert bias is not None
            rises.append(float(bias.detach().diff(dim=-1).max()))
    measured = f"from one distance to the next the bias rises by {largest(rises):.1e} at most"
    expect(largest(rises) < 0, measured)
    return measured


def heads(case: Case) -> str:
    """An encoding with values for each head tells heads apart that share a key.

    Look at: a parameter or constant that is n_kv_heads long and repeated.
    """
    if "n_heads" not in {option for part in case.spec.parts for option in part.options}:
        return "takes no n_heads"
    x, *rest = case.inputs(TRAIN_LENGTH)
    q, k, v = (tensor[:, :1].expand_as(tensor) for tensor in rest)  # all heads are given the same
    group = MODEL.n_heads // MODEL.n_kv_heads
    for layer in case.layers:
        output = reference_attention(layer, x, q, k, v, torch.arange(TRAIN_LENGTH)).unflatten(1, (-1, group))
        within, between = worst(output[:, :, 0], output[:, :, 1]), worst(output[:, 0], output[:, 1])
        measured = f"heads of two keys differ by {between:.1e}, and those of one key do not"
        expect(within > EXACT or between <= SHOWS, measured)
    return "heads that share a key differ as others do"


def sight(case: Case) -> Finding:
    """A query sees as many of the latest keys as `window` says.

    Look at: visible and ranges: `distance < window`, because the query's own key is one of them.
    """
    lengths = [TRAIN_LENGTH] if case.ends else [SIGHT, LONGER]
    counts = set()
    for layer in case.layers:
        windows = [getattr(leaf, "window", None) for leaf in leaves_of(layer)]
        seen, *_ = every = [_seen(layer, length) for length in lengths]
        for keys in every:
            latest = len(keys) - 1 - int((~keys).nonzero().max()) if not keys.all() else len(keys)
            for window in windows:
                is_wrong = isinstance(window, int) and latest not in (window, len(keys))
                expect(not is_wrong, f"window={window}, and a query sees {latest:,} of the latest keys")
        counts.add("every key" if seen.all() else f"{int(seen.sum()):,} keys")
    measured = f"sees {' or '.join(sorted(counts))}"
    note = "" if counts == {"every key"} else measured
    return Finding("holds", f"of {lengths[0]} keys, the last query {measured}", note)


def _seen(layer: LayerEncoding, length: int) -> Tensor:
    """Return for each key [T] whether the last query's output has a gradient at its value in some head."""
    x, q, k, v = layer_inputs(length, batch=1)
    last = range(length - 1, length)
    output = reference_attention(layer, x, q, k, v.requires_grad_(), torch.arange(length), rows=last)
    (gradient,) = torch.autograd.grad(output.sum(), v)
    return gradient[0].abs().sum((0, 2)) > 0


def window(case: Case) -> str:
    """A window from outside limits attention.

    Look at: visible, weights, mix; a key's place among those given, where keys.index was meant.
    """
    row, width, leaks, errors = 20, 5, [], []
    position = torch.arange(TRAIN_LENGTH)
    for layer in case.layers:
        x, q, k, v = case.inputs(TRAIN_LENGTH)
        output = attention(layer, x, q, k, v.requires_grad_(), position, window=width)
        (gradient,) = torch.autograd.grad(output[:, :, row].sum(), v)
        leaks.append(float(gradient[:, :, : row - width + 1].abs().max()))
        truth = reference_attention(Stack([layer, SlidingWindow(width)]), x, q, k, v, position)
        in_blocks = reference_attention(layer, x, q, k, v, position, width, block=3)
        errors += [worst(output, truth), worst(in_blocks, truth)]
    expect(largest(leaks) <= 0, f"values beyond the window have gradients of {largest(leaks):.1e}")
    return at_most("no gradient beyond the window; from a mask it differs by", *errors)


def _with_gradients(
    path: Callable[..., Tensor], layer: LayerEncoding, inputs: Inputs
) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the gradients of its sum of squares, with respect to inputs and parameters."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = path(layer, *leaves, torch.arange(leaves[0].shape[1]))
    sources = [*leaves, *layer.parameters()]
    gradients = torch.autograd.grad(output.square().sum(), sources, materialize_grads=True)
    return output, list(gradients)


def _relative(gradient: Tensor, truth: Tensor) -> float:
    """Return the error of a gradient, relative to its largest number where that is more than 1."""
    return worst(gradient, truth) / max(1.0, float(truth.abs().max()) if truth.numel() else 0.0)


FARTHEST = 2**18 + 1
# So dense that a bias which fades falls below every tolerance in more than one step.
DISTANCES = sorted({*range(40), *(int(40 * 1.05**power) for power in range(181)), FARTHEST - 1})
SIGHT = 3 * TRAIN_LENGTH + 5  # tokens
LONGER = 600


@torch.no_grad()
def levels_off_at(case: Case) -> str:
    """Return a number past the training length from which all values are alike; empty if there is none.

    A window or a table of the training length is a design; of another length, it is a limit left in the code.
    """
    for what, values in _values(case, DISTANCES):
        differs = ((values - values[-1]).abs().amax(-1) > EXACT).nonzero()
        last = int(differs.max()) if len(differs) else 0
        level = DISTANCES[last + 1] if last + 1 < len(DISTANCES) else FARTHEST
        jump = float((values[last] - values[-1]).abs().max())
        if TRAIN_LENGTH < level < FARTHEST / 2 and jump > SHOWS:
            return f"{what} {level:,}"
    return ""


@torch.no_grad()
def clamps(case: Case) -> str:
    """Check that, where all tokens are the same, all far enough have the same scores and inputs."""
    length, half = 1_024, 512  # all of them, because some encodings count what lies between
    x, q, k = one_token_repeated(length)
    position, spreads = torch.arange(length), []
    for layer in case.layers:
        queries, keys = project(layer, x, q, k, position)
        row, _ = logits(layer, slice_tokens(queries, length - 1, length), keys, MODEL.d_head**-0.5)
        spreads.append(float((row[..., :half].amax(-1) - row[..., :half].amin(-1)).max()))
    embedded = case.encoding.embed(x, position, torch.zeros(1, length, dtype=torch.long))
    spreads.append(worst(embedded[:, half:], embedded[:, -1:]))
    return at_most(f"clamps: beyond distance {half} equal tokens differ by", *spreads)


def _values(case: Case, distances: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield logits [n, H] of equal tokens at distances from their query, and inputs [n, D] at such ids."""
    x, q, k = one_token_repeated(len(distances) + 1)
    position = FARTHEST + 1 - torch.tensor([*reversed(distances), 0])
    for layer in case.layers:
        queries, keys = project(layer, x, q, k, position)
        query = slice_tokens(queries, len(distances), len(distances) + 1)
        row, _ = logits(layer, query, keys, MODEL.d_head**-0.5)
        yield "distance", row[0, :, 0, :-1].flip(-1).mT
    if case.overrides("embed"):
        text = torch.zeros(1, len(distances), dtype=torch.long)
        yield "position", case.encoding.embed(x[:, 1:], torch.tensor([*distances]), text)[0]


def visible_keys(layer: LayerEncoding, length: int) -> int:
    """Return how many keys the mask lets the last query see in some head."""
    side = _bare_side(length)
    return int(layer.visible(slice_tokens(side, length - 1, length), side).view(-1, length).any(0).sum())


def _bare_side(length: int) -> Side:
    """Return what a mask may read of tokens: their indices."""
    empty, index = torch.empty(1, MODEL.n_heads, length, 0), torch.arange(length)
    return Side(empty, empty, index, index, {})
