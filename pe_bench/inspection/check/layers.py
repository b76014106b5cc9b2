"""Checks of an encoding in the attention of one layer, for each kind of layer that it has."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import Stack, leaves_of
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    SHOWS,
    TRAIN_LENGTH,
    Case,
    Finding,
    Inputs,
    UnclaimedError,
    as_type,
    at_most,
    changed_hooks,
    expect,
    largest,
    one_token_repeated,
    tokens,
    worst,
)
from pe_bench.model.attention import attention, reference_attention
from pe_bench.model.attention.reference import logits, project, slice_tokens

FIRST_AT_0, FIRST_AT_3 = torch.tensor([0, 5, 6, 7, 8, 9]), torch.tensor([3, 5, 6, 7, 8, 9])
WINDOW = 5  # tokens
SEVERAL_CHUNKS = 300  # tokens: fast paths take 256 queries at a time
SINGLE = 1e-5  # float32 against float64
SINGLE_GRADIENT = 1e-4  # gradients likewise: more is added up
ROUGH = 1e-3  # float32 over several chunks, and in products of many features
FARTHEST = 2**18 + 1
# So dense that a bias which fades falls below every tolerance in more than one step.
DISTANCES = sorted({*range(40), *(int(40 * 1.05**power) for power in range(181)), FARTHEST - 1})
SIGHTS = (3 * TRAIN_LENGTH + 5, 600)  # tokens


@torch.no_grad()
def blocks(case: Case) -> str:
    """Queries in blocks, alone and with a window from outside give what all queries at once give.

    Look at: queries.position and queries.index, where an arange was taken; visible, weights and mix, and a
    key's place among those given, where keys.index was meant.
    """
    length = TRAIN_LENGTH // 2
    inputs, counted, errors = case.inputs(length), torch.arange(length), []
    for layer, position in product(case.layers, (counted, torch.stack([2 * counted, counted]))):
        at_once = reference_attention(layer, *inputs, position, block=length)
        masked = reference_attention(Stack([layer, SlidingWindow(WINDOW)]), *inputs, position)
        for block in (4, 5):
            errors.append(worst(reference_attention(layer, *inputs, position, block=block), at_once))
            errors.append(worst(reference_attention(layer, *inputs, position, WINDOW, block), masked))
        errors.append(worst(attention(layer, *inputs, position, WINDOW), masked))
        for row in (0, 6, length - 1):
            alone = reference_attention(layer, *inputs, position, rows=range(row, row + 1))
            errors.append(worst(alone, at_once[:, :, row : row + 1]))
    return at_most("blocks of queries, or a window, and the whole differ by", *errors)


@torch.no_grad()
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
        at_most("where the first id is another, the input at one id differs by", worst(*rows))
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


@torch.no_grad()
def score_scale(case: Case) -> str:
    """Scores are multiplied by the scale that they are given.

    Look at: scores: a term beside scale * (...), which is a bias.
    """
    errors = [
        worst(layer.scores(queries, keys, 2.0), 2 * layer.scores(queries, keys, 1.0))
        for layer, queries, keys in case.sides(TRAIN_LENGTH)
    ]
    return at_most("twice the scale is off from twice the scores by", *errors)


@torch.no_grad()
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


def fused(case: Case) -> str:
    """The fused path gives what the reference gives, in float64 and float32.

    Look at: ranges, against visible; columns and distance_bias, against bias; the scale: 1/sqrt(d_head)
    multiplies scores alone.
    """
    measured = paths_agree(case, (1, 2, TRAIN_LENGTH), (EXACT, SINGLE, SINGLE_GRADIENT))
    if not case.ends:
        counted = torch.arange(SEVERAL_CHUNKS)
        paths_agree(case, (SEVERAL_CHUNKS,), (EXACT, ROUGH, ROUGH), (counted, 2 * counted + 3))
    return measured


def paths_agree(
    case: Case,
    lengths: Sequence[int],
    limits: tuple[float, float, float],
    jumping: Sequence[Tensor] = (),
) -> str:
    """Compare the chosen paths, with and without gradients, with the reference in float64.

    limits: of errors in float64, in float32, and of gradients in float32. jumping: positions, in place of
    those from 0 on.
    """
    double, single, slopes = [], [], []
    for length, (exact, rounded) in product(lengths, case.both_precisions()):
        inputs = case.inputs(length, batch=1 if jumping else 2)
        in_single = as_type(inputs, torch.float32)
        for position in jumping or [torch.arange(length)]:
            truth, expected = _with_gradients(reference_attention, exact, inputs, position)
            output, gradients = _with_gradients(attention, exact, inputs, position)
            double += [worst(output, truth), *map(_relative, gradients, expected)]
            output, gradients = _with_gradients(attention, rounded, in_single, position)
            single.append(worst(output, truth))
            slopes += map(_relative, gradients, expected)
            with torch.no_grad():  # which opens further paths
                double.append(worst(attention(exact, *inputs, position), truth))
                for path in (attention, reference_attention):
                    single.append(worst(path(rounded, *in_single, position), truth))
    errors = [largest(part) for part in (double, single, slopes)]
    measured = (
        f"fused and reference differ by {errors[0]:.1e}, float32 and float64 by {errors[1]:.1e}, "
        f"their gradients by {errors[2]:.1e}"
    )
    expect(all(error <= limit for error, limit in zip(errors, limits, strict=True)), measured)
    return measured


def _with_gradients(
    path: Callable[..., Tensor], layer: LayerEncoding, inputs: Inputs, position: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the gradients of its sum of squares, with respect to inputs and parameters."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = path(layer, *leaves, position)
    sources = [*leaves, *layer.parameters()]
    gradients = torch.autograd.grad(output.square().sum(), sources, materialize_grads=True)
    return output, list(gradients)


def _relative(gradient: Tensor, truth: Tensor) -> float:
    """Return the error of a gradient, relative to its largest number where that is more than 1."""
    return worst(gradient, truth) / max(1.0, float(truth.abs().max())) if truth.numel() else 0.0


@torch.no_grad()
def norm(case: Case) -> str:
    """Queries and keys keep their norms, where claimed.

    Look at: transform.
    """
    if not case.claims("norm_preserving"):
        raise UnclaimedError
    sides = [side for _, *both in case.sides(64, shift=5) for side in both]
    return at_most(
        "a norm changes by", *(worst(side.raw.norm(dim=-1), side.x.norm(dim=-1)) for side in sides)
    )


@torch.no_grad()
def decay(case: Case) -> str:
    """The bias falls with distance, where claimed.

    Look at: distance_bias.
    """
    if not case.claims("decaying"):
        raise UnclaimedError
    rises = []
    for encoding, number in product((case.as_built().double(), case.encoding), range(MODEL.n_layers)):
        bias = encoding.layer(number).distance_bias(torch.arange(16 * TRAIN_LENGTH))
        rises.append(0.0 if bias is None else float(bias.diff(dim=-1).max()))
    measured = f"from one distance to the next the bias rises by {largest(rises):.1e} at most"
    expect(largest(rises) < 0, measured)
    return measured


@torch.no_grad()
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
    lengths = [TRAIN_LENGTH] if case.ends else SIGHTS
    counts = set()
    for layer in case.layers:
        windows = [getattr(leaf, "window", None) for leaf in leaves_of(layer)]
        seen, *_ = every = [_seen_keys(case, layer, length) for length in lengths]
        for keys in every:
            latest = len(keys) - 1 - int((~keys).nonzero().max()) if not keys.all() else len(keys)
            for window in windows:
                is_wrong = isinstance(window, int) and latest not in (window, len(keys))
                expect(not is_wrong, f"window={window}, and a query sees {latest:,} of the latest keys")
        counts.add("every key" if seen.all() else f"{int(seen.sum()):,} keys")
    measured = f"sees {' or '.join(sorted(counts))}"
    note = "" if counts == {"every key"} else measured
    return Finding("holds", f"of {lengths[0]} keys, the last query {measured}", note)


def _seen_keys(case: Case, layer: LayerEncoding, length: int) -> Tensor:
    """Return for each key [T] whether the last query's output has a gradient at its value in some head."""
    x, q, k, v = case.inputs(length, batch=1)
    last = range(length - 1, length)
    output = reference_attention(layer, x, q, k, v.requires_grad_(), torch.arange(length), rows=last)
    (gradient,) = torch.autograd.grad(output.sum(), v)
    return gradient[0].abs().sum((0, 2)) > 0


def levels_of(case: Case) -> Iterator[tuple[str, int, bool]]:
    """Yield from which distance or position on equal tokens have the same logits or inputs.

    And whether there is a step right before it, for what fades ends too.
    """
    for what, values in _far_values(case):
        differs = (values - values[-1]).abs().amax(-1)
        last = max([-1, *(differs > EXACT).nonzero().flatten().tolist()])
        yield what, [*DISTANCES, FARTHEST][last + 1], last >= 0 and float(differs[last]) > SHOWS


def _far_values(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Yield logits [n, H] of equal tokens at `DISTANCES` from their query, and inputs [n, D] at such ids."""
    x, q, k = one_token_repeated(len(DISTANCES) + 1)
    position = FARTHEST + 1 - torch.tensor([*reversed(DISTANCES), 0])
    for layer in case.layers:
        queries, keys = project(layer, x, q, k, position)
        query = slice_tokens(queries, len(DISTANCES), len(DISTANCES) + 1)
        row, _ = logits(layer, query, keys, MODEL.d_head**-0.5)
        yield "distance", row[0, :, 0, :-1].flip(-1).mT
    if changed_hooks(case.encoding, ["embed"]):
        text = torch.zeros(1, len(DISTANCES), dtype=torch.long)
        yield "position", case.encoding.embed(x[:, 1:], torch.tensor(DISTANCES), text)[0]


def visible_keys(layer: LayerEncoding, length: int) -> int:
    """Return how many keys the mask, which reads indices alone, lets the last query see in some head."""
    empty, index = torch.empty(1, MODEL.n_heads, length, 0), torch.arange(length)
    keys = Side(empty, empty, index, index, {})
    return int(layer.visible(slice_tokens(keys, length - 1, length), keys).view(-1, length).any(0).sum())
