"""Checks of arithmetic, and at sizes at which code often has a limit: far out, wide heads, ends of options.

Letters: B batch, H query heads, T tokens, K head width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.signatures import SIZES
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.inspection.check import decoder, layers
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    TRAIN_LENGTH,
    Case,
    FailureError,
    Inputs,
    UnclaimedError,
    as_type,
    at_most,
    describe,
    expect,
    ids_of,
    layer_inputs,
    parts_of,
    tokens,
    worst,
)
from pe_bench.model.attention import attention, reference_attention
from pe_bench.model.attention.reference import logits, project, slice_tokens

FAR = 4_096  # bfloat16 counts to 256
LONG = 65_536  # tokens
LONG_ERROR = 3e-4  # of logits in float32 against float64 at that length; an angle in float32 is off by 0.004
LONG_OUTPUT = 1e-2  # of outputs, which a softmax of large logits makes less exact


@torch.no_grad()
def half_precision(case: Case) -> str:
    """Half-precision queries and keys keep exact positions.

    Look at: positions, angles or sums that were cast to the type of q.
    """
    try:
        errors = _half_precision_errors(case, torch.arange(300) + FAR)
    except LengthError:
        errors = _half_precision_errors(case, torch.arange(TRAIN_LENGTH))
    # bfloat16 has eight bits: values near 1 are off by 0.002 on average, whatever the encoding.
    return at_most("on average bfloat16 is off by", *errors, limit=0.01)


def _half_precision_errors(case: Case, position: Tensor) -> list[float]:
    inputs, pairs = layer_inputs(len(position), torch.bfloat16), []
    for exact, rounded in case.both_precisions():
        truth = reference_attention(exact, *as_type(inputs, torch.float64), position)
        pairs += [(path(rounded, *inputs, position), truth) for path in (attention, reference_attention)]
    text, x = tokens(2, len(position)), inputs[0]
    truth = case.encoding.embed(x.double(), position, text)
    pairs.append((case.with_random_parameters().embed(x, position, text), truth))
    return [float((output.double() - truth).abs().mean()) for output, truth in pairs]


@torch.no_grad()
def long_context(case: Case) -> str:
    """The last of 65,536 tokens are finite and exact.

    Look at: angles and cumulative sums in float32; exponents that overflow.
    """
    single = layer_inputs(LONG, torch.float32, batch=1)
    double, text = as_type(single, torch.float64), tokens(1, LONG)
    position, rows, errors, outputs = torch.arange(LONG), range(LONG - 4, LONG), [], []
    try:
        embedded = case.with_random_parameters().embed(single[0], position, text)
        expect(bool(embedded.isfinite().all()), "the input is not finite")
        errors.append(worst(embedded, case.encoding.embed(double[0], position, text)))
        for exact, rounded in case.both_precisions():
            output = reference_attention(rounded, *single, position, rows=rows)
            expect(bool(output.isfinite().all()), f"{int((~output.isfinite()).sum())} outputs are not finite")
            outputs.append(worst(output, reference_attention(exact, *double, position, rows=rows)))
            errors.append(_logit_error(_last_logits(exact, double), _last_logits(rounded, single)[0]))
    except LengthError as error:
        expect(case.ends, str(error))
        raise UnclaimedError(str(error)) from error
    at_most("float32 and float64 outputs differ by", *outputs, limit=LONG_OUTPUT)
    return at_most("finite; float32 and float64 differ by", *errors, limit=LONG_ERROR)


def _last_logits(layer: LayerEncoding, inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, q, k, _ = inputs
    queries, keys = project(layer, x, q, k, torch.arange(LONG))
    return logits(layer, slice_tokens(queries, LONG - 4, LONG), keys, MODEL.d_head**-0.5)


def _logit_error(exact: tuple[Tensor, Tensor], rounded: Tensor) -> float:
    """Return the largest error of visible logits, relative where a logit is larger than 1."""
    truth, visible = exact
    off = (rounded.double() - truth).abs() / truth.abs().clamp(min=1)
    return float(off.masked_fill((rounded == truth) | ~visible, 0.0).nan_to_num(torch.inf).max())


# Steps and tolerances with which slopes are measured; the second is for code in float32.
STEPS: Sequence[dict[str, Any]] = (
    {"eps": 1e-6, "rtol": 1e-3, "atol": 1e-6},
    {"eps": 1e-3, "rtol": 1e-2, "atol": 1e-3},
)
SMALL = 16  # elements of a parameter that are looked at one by one


def slopes(case: Case) -> str:
    """Gradients are finite, and are the slopes of the output; no parameter is inert.

    Look at: a part that is not used; a detach, a backward of its own; a phase or scale of queries and keys
    that cancels.
    """
    built, *moved = (_Outputs(_nudged(case, by)) for by in (0.0, 0.1, -0.1))
    named_inert = {
        id(tensor)
        for part in parts_of(built.encoding)
        for name, tensor in part.named_parameters()
        if name in getattr(part, "inert", ())
    }
    trained = [name for name, tensor in built.named_parameters() if tensor.requires_grad]
    for name, *gradients in zip(trained, *(one.gradients(trained) for one in (built, *moved)), strict=True):
        label, tensor = name.removeprefix("encoding."), built.get_parameter(name)
        expect(all(one.isfinite().all() for one in gradients), f"{label} gets a gradient that is not finite")
        still = torch.stack(gradients).abs().amax(0) <= EXACT
        says_so = id(tensor) in named_inert
        expect(says_so or not still.all(), f"{label} is inert: it changes no output, or gets no gradient")
        expect(not says_so or bool(still.all()), f"inert names {label}, and it changes an output")
        is_part = tensor.numel() <= SMALL and bool(still.any()) and not says_so
        expect(not is_part, f"of {label} as built, an element changes no output")
        # Beyond a bound a gradient may lead back.
        is_slope = any(one.has_right_slope(name) for one in moved)
        expect(is_slope, f"along {label} the gradient is not the slope of the output")
    return f"{len(trained)} gradients are the slopes of the output"


def _nudged(case: Case, by: float) -> Composition:
    """Build the encoding with parameters that are off their initial values, at which some cancel."""
    encoding, generator = case.as_built(), torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(by * (0.1 + torch.rand(parameter.shape, generator=generator)))
    return encoding


class _Outputs(torch.nn.Module):
    """What an encoding makes of a layer's inputs, in float64: a function of these and its parameters."""

    def __init__(self, encoding: Composition):
        super().__init__()
        self.encoding = encoding.double()
        x, q, k, v = layer_inputs(TRAIN_LENGTH)
        self.x, self.q, self.k, self.v = (torch.nn.Parameter(tensor) for tensor in (x, q, k, v))

    def forward(self) -> Tensor:
        """Return the input of the first layer and each layer's attention, added with fixed random weights."""
        text = tokens(2, TRAIN_LENGTH)
        ids = ids_of(self.encoding, text)
        each = (self.encoding.layer(number) for number in range(MODEL.n_layers))
        attended = [reference_attention(layer, self.x, self.q, self.k, self.v, ids) for layer in each]
        output = torch.cat([one.flatten() for one in (self.encoding.embed(self.x, ids, text), *attended)])
        generator = torch.Generator().manual_seed(7)
        return output @ torch.randn(output.shape, generator=generator, dtype=torch.float64)

    def gradients(self, names: Sequence[str]) -> Sequence[Tensor]:
        tensors = [self.get_parameter(name) for name in names]
        return torch.autograd.grad(self(), tensors, materialize_grads=True)

    def has_right_slope(self, name: str) -> bool:
        tensor = self.get_parameter(name).detach().clone().requires_grad_()

        def output(moved: Tensor) -> Tensor:
            return functional_call(self, {name: moved}, ())

        return any(gradcheck(output, tensor, fast_mode=True, raise_exception=False, **step) for step in STEPS)


# Other sizes

WIDE = 136  # features of a head
LIMITS = (64, 128, 256, 512, 1_000, 1_024, 2_048, 4_096, 8_192, 32_768, 65_536)
MOST_KEYS = 8_192
# Of texts of these lengths groups of tokens leave the same rest.
LENGTHS = [5 + TRAIN_LENGTH * groups for groups in (3, 19, 35, 67, 257)]
AROUND = 8  # tokens on either side of a limit
FACTORS = (1e-3, 0.1, 10.0, 1e3)
COUNTS = (0, 1, 2, 50, 300)


def _paths(case: Case) -> str:
    return layers.paths_agree(case, (TRAIN_LENGTH,), (layers.ROUGH, layers.ROUGH, math.inf))


def sizes(case: Case) -> str:
    """Heads wider than 64 and options at their ends are treated as others.

    Look at: a width that is written as a number; d_head, where half of it was meant; what the constructor
    should refuse with an error, or bounds silently.
    """
    count = 0
    for told, changed in _resized(case):
        if changed.sizes != MODEL:
            for share, narrow in zip(_changed_shares(changed), _changed_shares(case), strict=True):
                measured = f"{told} positions change {share:.0%} of all features, and with {MODEL.d_head} all"
                expect(narrow < 1 or share == 1, measured)
        for check in (layers.norm, layers.score_scale, layers.blocks, _paths, layers.sight):
            failure = _failure(changed, check)
            expect(not failure or bool(_failure(case, check)), f"{told} {failure}")
        count += 1
    return f"as in {count} other sizes"


def _resized(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case with wide heads, and with the least and the largest value that each option takes."""
    values = with_options(case.spec.values, {**dict.fromkeys(case.examples), "d_head": WIDE})
    wide = replace(case, spec=EncodingSpec(values, case.spec.search).with_examples())
    variants = [(f"with d_head={WIDE}", replace(wide, sizes=replace(MODEL, d_head=WIDE)))]
    for option, value in case.spec.base.options.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and option not in (*SIZES, "train_length"):
            others = COUNTS if isinstance(value, int) else [factor * (value or 1.0) for factor in FACTORS]
            specs = [EncodingSpec({**case.spec.values, option: other}, case.spec.search) for other in others]
            each = zip(others, specs, strict=True)
            made = [(f"with {option}={other:g}", replace(case, spec=spec)) for other, spec in each]
            taken = [variant for variant in made if _is_taken(variant[1])]
            variants += taken[:: max(1, len(taken) - 1)]
    yield from filter(lambda variant: _is_taken(variant[1]), variants)


def _is_taken(case: Case) -> bool:
    try:
        case.as_built()
    except ValueError:
        return False
    return True


@torch.no_grad()
def many_keys(case: Case) -> str:
    """No number of keys or position changes what an encoding does.

    Look at: a table, a cache or a type of whole numbers that ends; a number of keys that is compared.
    """
    if case.ends:
        raise UnclaimedError(f"undefined past {TRAIN_LENGTH} tokens")
    if any(_failure(case, check) for check in (decoder.prefix, decoder.shift, layers.blocks)):
        raise UnclaimedError("short texts come first")
    inputs, start = case.inputs(MOST_KEYS + AROUND, batch=1), torch.arange(2 * AROUND)
    text = _first(inputs, 2 * AROUND)
    for layer, limit in product(case.layers, LIMITS):
        if case.claims("shift_invariant"):
            off = worst(*(reference_attention(layer, *text, start + at) for at in (0, limit - AROUND)))
            expect(off <= EXACT, f"across position {limit:,} an output is off by {off:.1e}")
        if limit <= MOST_KEYS:
            off = _off_beside_later_rows(layer, inputs, limit)
            expect(off <= EXACT, f"at {limit:,} keys a row alone and beside others differ by {off:.1e}")
    for layer in case.layers:
        _expect_no_hidden_keys(case, layer)
    return f"no change at {len(LIMITS)} round numbers up to {LIMITS[-1]:,}"


def _off_beside_later_rows(layer: LayerEncoding, inputs: Inputs, keys: int) -> float:
    """Return by how much the last row of a text of `keys` tokens differs where it has neighbours."""
    longer, position = _first(inputs, keys + AROUND), torch.arange(keys + AROUND)
    together = reference_attention(layer, *longer, position, rows=range(keys - AROUND, keys + AROUND))
    alone = reference_attention(layer, *longer, position, rows=range(keys - 1, keys))
    return worst(together[:, :, AROUND - 1], alone[:, :, 0])


def _expect_no_hidden_keys(case: Case, layer: LayerEncoding) -> None:
    """Raise `FailureError` for keys that a longer text hides where no option says so."""
    counts = {length: layers.visible_keys(layer, length) for length in LENGTHS}
    shortest, longest, most = LENGTHS[0], LENGTHS[-1], 0
    for length, count in counts.items():
        expect(count >= most, f"of {length:,} keys a query sees {count:,}, and of {shortest:,} keys {most:,}")
        most = max(most, count)
    options = [value for part in case.spec.parts for value in part.options.values()]
    is_said = any(isinstance(value, int) and value > shortest for value in options)
    is_hidden = counts[shortest] == shortest and most < longest and not is_said
    expect(not is_hidden, f"of {longest:,} keys a query sees {most:,}, and no option is as large")


def _failure(case: Case, check: Callable[[Case], object]) -> str:
    """Return how a check fails; empty where it does not."""
    try:
        check(case)
    except (LengthError, UnclaimedError):
        return ""
    except FailureError as failure:
        return str(failure)
    except Exception as error:
        return describe(error)
    return ""


def with_options(values: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return an encoding's values with these options, also in the encodings that it holds."""
    return {
        option: with_options(value, options) if isinstance(value, dict) else options.get(option, value)
        for option, value in values.items()
    }


@torch.no_grad()
def _changed_shares(case: Case) -> list[float]:
    """Return for each kind of layer the share of features of queries and keys that depends on positions."""
    shares = []
    for (_, *here), (_, *there) in zip(case.sides(AROUND), case.sides(AROUND, shift=5), strict=True):
        pairs = zip(here, there, strict=True)
        shares.append(float(min((a.x != b.x).flatten(0, -2).any(0).float().mean() for a, b in pairs)))
    return shares


def _first(inputs: Inputs, length: int) -> Inputs:
    x, q, k, v = inputs
    return x[:, :length], q[:, :, :length], k[:, :, :length], v[:, :, :length]
