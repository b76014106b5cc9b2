"""A check that an encoding would run on a GPU: its hooks get tensors of PyTorch's meta device."""

from collections.abc import Sequence

import torch

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.errors import first_line
from pe_bench.inspection.check.case import (
    TRAIN_LENGTH,
    Case,
    as_type,
    layer_inputs,
    layers_of,
    tokens,
    where,
)
from pe_bench.inspection.check.finding import Finding
from pe_bench.model.attention import reference_attention
from pe_bench.system.signals import INTERRUPTIONS

ELSEWHERE = "meta"


@torch.no_grad()
def follows_the_device(case: Case) -> Finding:
    """Call every hook with tensors of the meta device, which cannot be mixed with those of the CPU.

    They hold no values, so code that reads one, as in `if position.max() > n`, cannot be followed.
    """
    encoding = case.as_built()
    layers = layers_of(encoding)  # which reads values, to tell kinds apart
    encoding.to(ELSEWHERE)
    try:
        _call(encoding, layers)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        if isinstance(error, RuntimeError) and " device" in str(error):
            return Finding("fails", f"{where(error)}: {first_line(error)}")
        return Finding("not claimed", f"{where(error)}: cannot be followed without values")
    return Finding("holds", "no tensor stayed on the CPU")


def _call(encoding: Composition, layers: Sequence[LayerEncoding]) -> None:
    x, q, k, v = (tensor.to(ELSEWHERE) for tensor in as_type(layer_inputs(TRAIN_LENGTH), torch.float32))
    ids = torch.arange(TRAIN_LENGTH, device=ELSEWHERE)
    for layer in layers:
        reference_attention(layer, x, q, k, v, ids)
    text = tokens(2, TRAIN_LENGTH).to(ELSEWHERE)
    encoding.embed(x, encoding.ids(text, train=False, generator=None), text)
