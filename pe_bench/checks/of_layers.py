"""What is checked of an encoding in the attention of one layer, for each kind of layer that it has."""

from collections.abc import Callable

import torch
from torch import Tensor

from pe_bench.attention import attention, reference_attention
from pe_bench.checks.finding import EXACT, Finding, at_most
from pe_bench.checks.specimen import TRAIN_LENGTH, Specimen, as_type, layer_inputs, layers_of, tokens, worst
from pe_bench.encodings.base import LayerEncoding, LengthError

SINGLE = 1e-5  # float32 against float64
LONG = 65_536  # tokens
LONG_ROWS = 64
LONG_ERROR = 1e-3  # float32 against float64 at that length
FAR = 4_096  # bfloat16 counts to 256


def blocks_are_the_whole(specimen: Specimen) -> Finding:
    """Rows computed in blocks, and alone, against all of them at once; positions that jump."""
    length, errors = 13, []
    x, q, k, v = layer_inputs(length)
    jumping = 2 * torch.arange(length)
    for layer in layers_of(specimen.encoding):
        for position in (jumping, torch.stack([jumping, jumping // 2])):
            whole = reference_attention(layer, x, q, k, v, position, block=length)
            errors.append(worst(reference_attention(layer, x, q, k, v, position, block=4), whole))
            for row in (0, 6, length - 1):
                alone = reference_attention(layer, x, q, k, v, position, rows=range(row, row + 1))
                errors.append(worst(alone, whole[:, :, row : row + 1]))
    return at_most(max(errors), EXACT, "blocks of queries and the whole differ by")


def fused_is_the_reference(specimen: Specimen) -> Finding:
    """The path that is chosen against the reference: outputs and gradients in float64, outputs in float32."""
    double, single = [], []
    for length in (1, 2, TRAIN_LENGTH):
        position, inputs = torch.arange(length), layer_inputs(length)
        for exact, rounded in both_precisions(specimen):
            truth, expected = _with_gradients(reference_attention, exact, length)
            ours, gradients = _with_gradients(attention, exact, length)
            double += [worst(ours, truth), *map(worst, gradients, expected)]
            with torch.no_grad():  # which opens further paths
                double.append(worst(attention(exact, *inputs, position), truth))
                for path in (attention, reference_attention):
                    single.append(worst(path(rounded, *as_type(inputs, torch.float32), position), truth))
    measured = f"fused and reference differ by {max(double):.1e}, float32 and float64 by {max(single):.1e}"
    right = max(double) <= EXACT and max(single) <= SINGLE
    return Finding("holds" if right else "fails", measured)


def half_precision_keeps_positions(specimen: Specimen) -> Finding:
    """bfloat16 inputs at positions from 4,096 on, against float64 of the same numbers."""
    try:
        return _half_precision(specimen, torch.arange(300) + FAR)
    except LengthError:
        return _half_precision(specimen, torch.arange(TRAIN_LENGTH))


@torch.no_grad()
def _half_precision(specimen: Specimen, position: Tensor) -> Finding:
    inputs, errors = layer_inputs(len(position), torch.bfloat16), []
    for exact, rounded in both_precisions(specimen):
        truth = reference_attention(exact, *as_type(inputs, torch.float64), position)
        for path in (attention, reference_attention):
            errors.append(float((path(rounded, *inputs, position).double() - truth).abs().mean()))
    text, x = tokens(2, len(position)), inputs[0]
    truth = specimen.encoding.embed(x.double(), position, text)
    embedded = specimen.drawn().float().embed(x, position, text)
    errors.append(float((embedded.double() - truth).abs().mean()))
    # bfloat16 has eight bits: values near 1 are off by 0.002 on average, whatever the encoding.
    return at_most(max(errors), 0.01, "on average bfloat16 is off by")


def finite_at_65536_tokens(specimen: Specimen) -> Finding:
    """The input and the last rows of attention over 65,536 tokens in float32, against float64."""
    try:
        return _at_65536_tokens(specimen)
    except LengthError as error:
        return Finding("not claimed" if specimen.past_training == "undefined" else "fails", str(error))


@torch.no_grad()
def _at_65536_tokens(specimen: Specimen) -> Finding:
    position, rows, errors = torch.arange(LONG), range(LONG - LONG_ROWS, LONG), []
    inputs = layer_inputs(LONG, torch.float32, batch=1)
    embedded = specimen.encoding.embed(inputs[0].double(), position, tokens(1, LONG))
    if not embedded.isfinite().all():
        return Finding("fails", "the input is not finite")
    for exact, rounded in both_precisions(specimen):
        truth = reference_attention(exact, *as_type(inputs, torch.float64), position, rows=rows)
        ours = reference_attention(rounded, *inputs, position, rows=rows)
        if not ours.isfinite().all():
            return Finding("fails", f"{int((~ours.isfinite()).sum())} outputs are not finite")
        errors.append(worst(ours, truth))
    return at_most(max(errors), LONG_ERROR, "finite; float32 and float64 differ by")


def norm_preserving(specimen: Specimen) -> Finding:
    if not specimen.claims("norm_preserving"):
        return Finding("not claimed", "")
    _, q, k, _ = layer_inputs(64)
    position, errors = torch.arange(64) + 5, []
    for layer in layers_of(specimen.encoding):
        for before, after in zip((q, k), layer.transform(q, k, position, position), strict=True):
            errors.append(worst(before.norm(dim=-1), after.norm(dim=-1)))
    return at_most(max(errors), EXACT, "a norm changes by")


def decaying(specimen: Specimen) -> Finding:
    """The bias of growing distances, with the initial parameters and with others."""
    if not specimen.claims("decaying"):
        return Finding("not claimed", "")
    rises = []
    for encoding in (specimen.fresh(), specimen.encoding):
        for layer in layers_of(encoding):
            bias = layer.distance_bias(torch.arange(16 * TRAIN_LENGTH))
            if bias is None:
                return Finding("fails", "decay is claimed, and there is no distance_bias")
            rises.append(float(bias.detach().diff(dim=-1).max()))
    state = "holds" if max(rises) < 0 else "fails"
    return Finding(state, f"from one distance to the next the bias rises by {max(rises):.1e} at most")


def obeys_a_window_from_outside(specimen: Specimen) -> Finding:
    """Attention limited by its caller to 5 tokens: the `window` control."""
    row, window, leaks = 20, 5, []
    for layer in layers_of(specimen.encoding):
        x, q, k, v = layer_inputs(TRAIN_LENGTH)
        output = attention(layer, x, q, k, v.requires_grad_(), torch.arange(TRAIN_LENGTH), window=window)
        (gradient,) = torch.autograd.grad(output[:, :, row].sum(), v)
        leaks.append(float(gradient[:, :, : row - window + 1].abs().max()))
    return at_most(max(leaks), 0.0, "values beyond the window have gradients of")


def _with_gradients(
    path: Callable[..., Tensor], layer: LayerEncoding, length: int
) -> tuple[Tensor, list[Tensor]]:
    """The output and the gradients of its sum of squares, with respect to inputs and parameters."""
    inputs = layer_inputs(length)
    wanted = [*(tensor.requires_grad_() for tensor in inputs), *layer.parameters()]
    output = path(layer, *inputs, torch.arange(length))
    found = torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return output, [torch.zeros_like(one) if gradient is None else gradient for gradient, one in pairs]


def both_precisions(specimen: Specimen) -> list[tuple[LayerEncoding, LayerEncoding]]:
    """Each kind of layer in float64 and in float32, with the same parameters."""
    return list(zip(layers_of(specimen.encoding), layers_of(specimen.drawn().float()), strict=True))
