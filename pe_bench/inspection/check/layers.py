"""Checks of an encoding in the attention of one layer, for each kind of layer that it has.

The last checks are of arithmetic, and of sizes at which code often fails: far positions, wide heads, many
keys.

The function of a check, such as `norm`, returns what was measured, as text. It raises `FailureError` if the
property does not hold, and `UnclaimedError` if the encoding does not claim it or the check cannot judge it.

Letters: B batch, H query heads, T tokens, K head width.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import Stack, leaves_of
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.spec import PartSpec
from pe_bench.inspection.check.case import (
    EXACT_TOLERANCE,
    MODEL,
    TRAIN_LENGTH,
    Case,
    Inputs,
    UnclaimedError,
    as_type,
    at_most,
    expect,
    judge,
    largest,
    largest_difference,
    layer_inputs,
    one_token_repeated,
    tokens,
)
from pe_bench.model.attention import attention, reference_attention
from pe_bench.model.attention.reference import logits, make_sides, select_tokens

# Ids that differ in the first alone.
FIRST_AT_0 = torch.tensor([0, 5, 6, 7, 8, 9])
FIRST_AT_3 = torch.tensor([3, 5, 6, 7, 8, 9])
WINDOW = 5  # tokens
SEVERAL_CHUNKS = torch.arange(300)  # positions: fast paths take 256 queries at a time
FLOAT32_TOLERANCE = 1e-5  # float32 against float64
FLOAT32_GRADIENT_TOLERANCE = 1e-4  # for gradients in float32, in which more numbers are added up
ROUGH_TOLERANCE = 1e-3  # float32 over several chunks, and in products of many features
CLAMP_DISTANCE = 512  # the distance from which an encoding that clamps makes no difference
SIGHT = 3 * TRAIN_LENGTH + 5  # tokens, of a text in which the visible keys are counted
SCALE = MODEL.d_head**-0.5


@torch.no_grad()
def blocks(case: Case) -> str:
    """Queries in blocks, alone and with a window from outside, give what all queries at once give.

    Look at: queries.position and queries.index, where an arange was taken; visible, weights and mix, and a
    key's place among those given, where keys.index was meant.
    """
    length = TRAIN_LENGTH // 2
    inputs = case.inputs(length)
    counted = torch.arange(length)
    different = torch.stack([2 * counted, counted])
    errors = []
    for layer, position in product(case.layers, (counted, different)):
        at_once = reference_attention(layer, *inputs, position, block=length)
        for row in (0, 6, length - 1):
            rows = range(row, row + 1)
            alone = reference_attention(layer, *inputs, position, rows=rows)
            errors.append(largest_difference(alone, at_once[:, :, row : rows.stop]))
        if layer.overrides("attend"):
            continue
        windowed = Stack([layer, SlidingWindow(WINDOW)])
        masked = reference_attention(windowed, *inputs, position)
        for block in (4, 5):
            errors.append(
                largest_difference(reference_attention(layer, *inputs, position, block=block), at_once)
            )
            errors.append(
                largest_difference(reference_attention(layer, *inputs, position, WINDOW, block), masked)
            )
        errors.append(largest_difference(attention(layer, *inputs, position, WINDOW), masked))
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
        length = len(FIRST_AT_0)
        text = tokens(1, length)
        rows = [case.encoding.embed(x[:, :length], ids, text) for ids in (FIRST_AT_0, FIRST_AT_3)]
        error = largest_difference(rows[0][:, 3:], rows[1][:, 3:])
        at_most("where the first id is another, the input at one id differs by", error)
    errors = [0.0]
    one_position = torch.full((TRAIN_LENGTH,), 7)
    for layer in case.softmax_layers:
        queries, keys = make_sides(layer, x, q, k, one_position)
        if not (layer.overrides("prepare") and layer.overrides("transform")):
            for side in (queries, keys):
                first = side.x[..., :1, :]
                errors.append(largest_difference(side.x, first))
        if not layer.overrides("prepare", "visible"):
            scores = layer.scores(queries, keys, SCALE)
            bias = layer.bias(queries, keys)
            if bias is not None:
                scores = scores + bias
            first = scores[..., :1, :1].expand_as(scores)
            errors.append(largest_difference(scores.tril(), first.tril()))
    return at_most("equal tokens at one position differ by", *errors)


@torch.no_grad()
def score_scale(case: Case) -> str:
    """Scores are multiplied by the scale that they are given.

    Look at: scores: a term beside scale * (...), which is a bias.
    """
    errors = []
    for layer, queries, keys in case.sides(TRAIN_LENGTH):
        doubled = 2 * layer.scores(queries, keys, 1.0)
        errors.append(largest_difference(layer.scores(queries, keys, 2.0), doubled))
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
            products = queries.raw @ keys.raw.mT - lowered
            weights = layer.weights(products.float(), visible)
            hidden = weights.masked_fill(visible, 0.0)
            errors.append(largest_difference(hidden, torch.zeros_like(weights)))
    return at_most("a hidden key has a weight of", *errors, limit=0.0)


def fused(case: Case) -> str:
    """The fused path gives what the reference gives, in float64 and float32.

    Look at: ranges and first_keys, against visible; columns and distance_bias, against bias; the scale:
    1/sqrt(d_head) multiplies scores alone.
    """
    if not case.is_undefined_past_training:
        further_apart = 2 * SEVERAL_CHUNKS + 3
        _paths_agree(case, (SEVERAL_CHUNKS, further_apart), EXACT_TOLERANCE, ROUGH_TOLERANCE, ROUGH_TOLERANCE)
    short = map(torch.arange, (1, 2, TRAIN_LENGTH))
    return _paths_agree(case, short, EXACT_TOLERANCE, FLOAT32_TOLERANCE, FLOAT32_GRADIENT_TOLERANCE)


def _paths_agree(
    case: Case, positions: Iterable[Tensor], double: float, single: float, gradient: float
) -> str:
    """Compare the attention paths that are chosen for a layer with the reference path in float64.

    positions: the positions [T] of the tokens of each text to compare on. double: the largest error allowed
    for outputs and gradients in float64; single: for outputs in float32; gradient: for gradients in float32.
    Returns the measured error of outputs in float32, as text. Raises `FailureError` for a larger error.
    """
    doubles, singles, slopes = [], [], []
    for position, (exact, rounded) in product(positions, case.both_precisions()):
        batch = 2 if len(position) <= TRAIN_LENGTH else 1
        inputs = case.inputs(len(position), batch)
        in_single = as_type(inputs, torch.float32)
        truth, expected = _with_gradients(reference_attention, exact, inputs, position)
        output, gradients = _with_gradients(attention, exact, inputs, position)
        doubles += [largest_difference(output, truth), *map(_relative_error, gradients, expected)]
        output, gradients = _with_gradients(attention, rounded, in_single, position)
        singles.append(largest_difference(output, truth))
        slopes += map(_relative_error, gradients, expected)
        with torch.no_grad():  # which opens further paths
            doubles.append(largest_difference(attention(exact, *inputs, position), truth))
            for path in (attention, reference_attention):
                singles.append(largest_difference(path(rounded, *in_single, position), truth))
    at_most("fused and reference differ by", *doubles, limit=double)
    at_most("gradients in float32 and float64 differ by", *slopes, limit=gradient)
    return at_most("float32 and float64 differ by", *singles, limit=single)


def _with_gradients(
    path: Callable[..., Tensor], layer: LayerEncoding, inputs: Inputs, position: Tensor
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the output and the gradients of its sum of squares, with respect to inputs and parameters."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = path(layer, *leaves, position)
    sources = [*leaves, *layer.parameters()]
    return output, torch.autograd.grad(output.square().sum(), sources, materialize_grads=True)


def _relative_error(gradient: Tensor, truth: Tensor) -> float:
    """Return the error of a gradient, relative to its largest number where that is more than 1."""
    if not truth.numel():
        return 0.0
    size = float(truth.abs().max())
    return largest_difference(gradient, truth) / max(1.0, size)


@torch.no_grad()
def norm(case: Case) -> str:
    """Queries and keys keep their norms, where claimed.

    Look at: transform.
    """
    if not case.claims("norm_preserving"):
        raise UnclaimedError
    errors = []
    for _, *sides in case.sides(64, shift=5):
        for side in sides:
            before = side.raw.norm(dim=-1)
            errors.append(largest_difference(before, side.x.norm(dim=-1)))
    return at_most("a norm changes by", *errors)


@torch.no_grad()
def decay(case: Case) -> str:
    """The bias falls with distance, where claimed.

    Look at: distance_bias.
    """
    if not case.claims("decaying"):
        raise UnclaimedError
    rises = []
    distance = torch.arange(16 * TRAIN_LENGTH)
    encodings = (case.as_built().double(), case.encoding)
    for encoding, number in product(encodings, range(MODEL.n_layers)):
        bias = encoding.layer(number).distance_bias(distance)
        rise = 0.0
        if bias is not None:
            rise = float(bias.diff(dim=-1).max())
        rises.append(rise)
    measured = f"from one distance to the next the bias rises by {largest(rises):.1e} at most"
    expect(largest(rises) < 0, measured)
    return measured


def sight(case: Case) -> str:
    """A query sees as many of the latest keys as `window` says.

    Look at: visible and ranges: `distance < window`, because the query's own key is one of them.
    """
    length = TRAIN_LENGTH if case.is_undefined_past_training else SIGHT
    counts = set()
    for layer in case.softmax_layers:
        seen = _seen_keys(case, layer, length)
        latest = length
        text = "every key"
        if not seen.all():
            last_hidden = int((~seen).nonzero().max())
            latest = length - 1 - last_hidden
            text = f"{int(seen.sum()):,} keys"
        counts.add(text)
        hiding = [leaf for leaf in leaves_of(layer) if leaf.overrides("visible")] or leaves_of(layer)
        given = [getattr(leaf, "window", None) for leaf in hiding]
        windows = [window for window in given if isinstance(window, int)]
        if windows:
            narrowest = min(windows)
            # A part without a window, such as chunks, may hide more.
            hides_more = latest < narrowest and len(windows) < len(hiding)
            is_right = hides_more or latest in (narrowest, length)
            expect(is_right, f"window={narrowest}, and a query sees {latest:,} of the latest keys")
    listed = " or ".join(sorted(counts))
    return f"of {length} keys, the last query sees {listed}"


def _seen_keys(case: Case, layer: LayerEncoding, length: int) -> Tensor:
    """Return the keys whose values change the last query's output in some head, bool [T]."""
    x, q, k, v = case.inputs(length, batch=1)
    v.requires_grad_()
    position = torch.arange(length)
    last = range(length - 1, length)
    output = reference_attention(layer, x, q, k, v, position, rows=last)
    (gradient,) = torch.autograd.grad(output.sum(), v)
    return gradient[0].abs().sum((0, 2)) > 0


def far_errors(case: Case) -> list[float]:
    """Return the largest difference between far inputs, and between each layer's logits of far keys.

    All tokens of the text are equal. Inputs are compared at positions far past the training length, and the
    logits of the last query for keys that are further away than `CLAMP_DISTANCE`.
    """
    position = torch.arange(CLAMP_DISTANCE + 2 * AROUND)
    position[AROUND:] += 2**18  # after a gap
    length = len(position)
    x, q, k = one_token_repeated(length)
    text = torch.zeros(1, length, dtype=torch.long)
    embedded = case.encoding.embed(x, position, text)[:, AROUND:]
    errors = [largest_difference(embedded, embedded[:, :1])]
    for layer in case.layers:
        queries, keys = make_sides(layer, x, q, k, position)
        last = select_tokens(queries, range(length - 1, length))
        row, _ = logits(layer, last, keys, SCALE)
        far = row[..., : 2 * AROUND]
        errors.append(largest_difference(far, row[..., :1]))
    return errors


# Arithmetic

FAR = 4_096  # a position far beyond 256, to which bfloat16 counts exactly
LONG = 65_536  # tokens
# The largest error of logits in float32 at that length; an angle in float32 is off by 0.004.
LONG_ERROR = 3e-4
LONG_OUTPUT = 1e-2  # the largest error of outputs, which a softmax of large logits makes less exact


@torch.no_grad()
def half_precision(case: Case) -> str:
    """Half-precision queries and keys keep exact positions.

    Look at: positions, angles or sums that were cast to the type of q.
    """
    position = torch.arange(TRAIN_LENGTH)
    if not case.is_undefined_past_training:
        position = torch.arange(300) + FAR
    inputs = layer_inputs(len(position), torch.bfloat16)
    in_double = as_type(inputs, torch.float64)
    pairs = []
    for exact, rounded in case.both_precisions():
        truth = reference_attention(exact, *in_double, position)
        for path in (attention, reference_attention):
            pairs.append((path(rounded, *inputs, position), truth))
    text = tokens(2, len(position))
    truth = case.encoding.embed(in_double[0], position, text)
    output = case.with_random_parameters().embed(inputs[0], position, text)
    pairs.append((output, truth))
    differences = [output.double() - truth for output, truth in pairs]
    errors = [float(difference.abs().mean()) for difference in differences]
    # bfloat16 has eight bits: values near 1 are off by 0.002 on average, whatever the encoding.
    return at_most("on average bfloat16 is off by", *errors, limit=0.01)


@torch.no_grad()
def long_context(case: Case) -> str:
    """The last of 65,536 tokens are finite and exact.

    Look at: angles and cumulative sums in float32; exponents that overflow.
    """
    if case.is_undefined_past_training:
        raise UnclaimedError(f"undefined past {TRAIN_LENGTH} tokens")
    single = layer_inputs(LONG, torch.float32, batch=1)
    double = as_type(single, torch.float64)
    text = tokens(1, LONG)
    position = torch.arange(LONG)
    rows = range(LONG - 4, LONG)
    embedded = case.with_random_parameters().embed(single[0], position, text)
    expect(bool(embedded.isfinite().all()), "the input is not finite")
    errors = [largest_difference(embedded, case.encoding.embed(double[0], position, text))]
    outputs = []
    for exact, rounded in case.both_precisions():
        output = _attention_of_rows(rounded, single, position, rows)
        count = int((~output.isfinite()).sum())
        expect(count == 0, f"{count} outputs are not finite")
        outputs.append(largest_difference(output, _attention_of_rows(exact, double, position, rows)))
        if exact.overrides("attend"):
            continue
        truth, visible = _last_logits(exact, double)
        row, _ = _last_logits(rounded, single)
        # Relative where a logit is larger than 1.
        size = truth.abs().clamp(min=1)
        off = (row.double() - truth).abs() / size
        off = off.masked_fill((row == truth) | ~visible, 0.0)
        errors.append(float(off.nan_to_num(torch.inf).max()))
    at_most("float32 and float64 outputs differ by", *outputs, limit=LONG_OUTPUT)
    return at_most("finite; float32 and float64 differ by", *errors, limit=LONG_ERROR)


def _last_logits(layer: LayerEncoding, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return the logits of the last four queries, and the mask of their visible keys."""
    x, q, k, _ = inputs
    queries, keys = make_sides(layer, x, q, k, torch.arange(LONG))
    last = select_tokens(queries, range(LONG - 4, LONG))
    return logits(layer, last, keys, SCALE)


# Other sizes

WIDE = 136  # features of a head
LIMITS = (64, 128, 256, 512, 1_000, 1_024, 2_048, 4_096, 8_192, 32_768, 65_536)
MOST_KEYS = 8_192
AROUND = 8  # tokens on either side of a limit


def sizes(case: Case) -> str:
    """Heads wider than 64 work like others.

    Look at: a width that is written as a number; d_head in place of half of it.
    """
    options = {**dict.fromkeys(case.examples), "d_head": WIDE}

    def options_of_part(part: PartSpec) -> dict[str, Any]:
        return {key: value for key, value in options.items() if key in part.values}

    spec = case.spec.changed(options_of_part)
    wide = replace(case, spec=spec.with_examples(), sizes=replace(MODEL, d_head=WIDE))
    for check in (norm, score_scale, blocks, _paths_agree_roughly, sight):
        finding = judge(check, wide)
        if finding.state == "fails":
            is_old = judge(check, case).state == "fails"
            expect(is_old, f"with d_head={WIDE} {finding.measured}")
    return f"as with d_head={MODEL.d_head}"


def _paths_agree_roughly(case: Case) -> str:
    """Compare attention paths with the reference within `ROUGH_TOLERANCE`, without gradients."""
    return _paths_agree(case, [torch.arange(TRAIN_LENGTH)], ROUGH_TOLERANCE, ROUGH_TOLERANCE, math.inf)


@torch.no_grad()
def many_keys(case: Case) -> str:
    """No number of keys or position changes what an encoding does.

    Look at: a table or a cache that ends; an integer that overflows; a comparison with the number of keys.
    """
    if case.is_undefined_past_training:
        raise UnclaimedError(f"undefined past {TRAIN_LENGTH} tokens")
    inputs = case.inputs(MOST_KEYS + AROUND, batch=1)
    start = torch.arange(2 * AROUND)
    text = _first_tokens(inputs, 2 * AROUND)
    for layer, limit in product(case.layers, LIMITS):
        if case.claims("shift_invariant"):
            at_start = reference_attention(layer, *text, start)
            at_limit = reference_attention(layer, *text, start + limit - AROUND)
            off = largest_difference(at_start, at_limit)
            expect(off <= EXACT_TOLERANCE, f"across position {limit:,} an output is off by {off:.1e}")
        if limit <= MOST_KEYS:
            off = _difference_with_neighbours(layer, inputs, limit)
            expect(
                off <= EXACT_TOLERANCE, f"at {limit:,} keys a row alone and beside others differ by {off:.1e}"
            )
    return f"no change at {len(LIMITS)} round numbers up to {LIMITS[-1]:,}"


def _difference_with_neighbours(layer: LayerEncoding, inputs: Inputs, keys: int) -> float:
    """Return the largest difference of a query's output computed alone and computed with its neighbours.

    The query sees as many keys as the number `keys` says: its index is keys - 1.
    """
    longer = _first_tokens(inputs, keys + AROUND)
    position = torch.arange(keys + AROUND)
    neighbours = range(keys - AROUND, keys + AROUND)
    together = _attention_of_rows(layer, longer, position, neighbours)[:, :, AROUND - 1]
    alone = _attention_of_rows(layer, longer, position, range(keys - 1, keys))[:, :, 0]
    return largest_difference(together, alone)


def _attention_of_rows(layer: LayerEncoding, inputs: Inputs, position: Tensor, rows: range) -> Tensor:
    """Return the attention output of the queries in `rows`, [B, H, rows, K].

    A layer without softmax is computed in chunks: token by token, a text of this length takes minutes.
    """
    if layer.overrides("attend"):
        text = _first_tokens(inputs, rows.stop)
        output = attention(layer, *text, position[: rows.stop])
        return output[:, :, rows.start :]
    return reference_attention(layer, *inputs, position, rows=rows)


def _first_tokens(inputs: Inputs, length: int) -> Inputs:
    """Return the inputs of the first tokens. length: how many tokens."""
    x, *heads = inputs
    q, k, v = (each[:, :, :length] for each in heads)
    return x[:, :length], q, k, v
