"""Checks of an encoding in half precision, and far out."""

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    Case,
    Inputs,
    as_type,
    both_precisions,
    layer_inputs,
    tokens,
    worst,
)
from pe_bench.inspection.check.finding import Finding, at_most, largest
from pe_bench.model.attention import attention, logits, project, reference_attention, slice_tokens

FAR = 4_096  # bfloat16 counts to 256
LONG = 65_536  # tokens
LONG_ROWS = 16
LONG_ERROR = 3e-4  # float32 against float64 at that length; an angle in float32 is off by 0.004


def half_precision_keeps_positions(case: Case) -> Finding:
    """Compare bfloat16 inputs at positions from 4,096 on with float64 of the same numbers."""
    try:
        return _half_precision(case, torch.arange(300) + FAR)
    except LengthError:
        return _half_precision(case, torch.arange(TRAIN_LENGTH))


@torch.no_grad()
def _half_precision(case: Case, position: Tensor) -> Finding:
    inputs, errors = layer_inputs(len(position), torch.bfloat16), []
    for exact, rounded in both_precisions(case):
        truth = reference_attention(exact, *as_type(inputs, torch.float64), position)
        for path in (attention, reference_attention):
            errors.append(float((path(rounded, *inputs, position).double() - truth).abs().mean()))
    text, x = tokens(2, len(position)), inputs[0]
    truth = case.encoding.embed(x.double(), position, text)
    embedded = case.with_random_parameters().embed(x, position, text)
    errors.append(float((embedded.double() - truth).abs().mean()))
    # bfloat16 has eight bits: values near 1 are off by 0.002 on average, whatever the encoding.
    return at_most(largest(errors), 0.01, "on average bfloat16 is off by")


def finite_at_65536_tokens(case: Case) -> Finding:
    """Compare the input, logits and outputs of the last of 65,536 tokens in float32 with float64."""
    try:
        return _at_65536_tokens(case)
    except LengthError as error:
        return Finding("not claimed" if case.past_training == "undefined" else "fails", str(error))


@torch.no_grad()
def _at_65536_tokens(case: Case) -> Finding:
    single = layer_inputs(LONG, torch.float32, batch=1, drawn_as=torch.float32)
    double, text = as_type(single, torch.float64), tokens(1, LONG)
    position, rows = torch.arange(LONG), LONG - LONG_ROWS
    embedded = case.with_random_parameters().embed(single[0], position, text)
    if not embedded.isfinite().all():
        return Finding("fails", "the input is not finite")
    errors = [worst(embedded, case.encoding.embed(double[0], position, text))]
    for exact, rounded in both_precisions(case):
        ours = reference_attention(rounded, *single, position, rows=range(rows, LONG))
        if not ours.isfinite().all():
            return Finding("fails", f"{int((~ours.isfinite()).sum())} outputs are not finite")
        truth = reference_attention(exact, *double, position, rows=range(rows, LONG))
        off, rounding = _logit_error(exact, double, rounded, single)
        # In an output, a mean over so many values, errors of the logits average out.
        errors += [worst(ours, truth) / max(1.0, rounding / LONG_ERROR), off]
    return at_most(largest(errors), LONG_ERROR, "finite; float32 and float64 differ by")


def _logit_error(
    exact: LayerEncoding, double: Inputs, rounded: LayerEncoding, single: Inputs
) -> tuple[float, float]:
    """Return the largest error in the last four rows, and what rounding these logits does to an output.

    The error is relative where a logit is larger than 1. A softmax turns an absolute error of the logits that
    weigh most, the largest of a row, into about twice that in an output.
    """
    truth, visible = _last_logits(exact, double)
    ours, _ = _last_logits(rounded, single)
    off = (ours.double() - truth).abs() / truth.abs().clamp(min=1)
    largest_logit = float(truth.masked_fill(~visible, -torch.inf).amax(-1).abs().max())
    rounding = 2 * largest_logit * torch.finfo(torch.float32).eps
    return float(off.masked_fill((ours == truth) | ~visible, 0.0).nan_to_num(torch.inf).max()), rounding


def _last_logits(layer: LayerEncoding, inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, q, k, _ = inputs
    queries, keys = project(layer, x, q, k, torch.arange(LONG))
    return logits(layer, slice_tokens(queries, LONG - 4, LONG), keys, MODEL.d_head**-0.5)
