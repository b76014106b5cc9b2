"""Products of float32 matrices, by the library in PyTorch that uses the whole processor.

PyTorch multiplies such matrices with MKL, which leaves AVX-512 unused on processors that are not Intel's.
oneDNN, the other library in PyTorch, uses it there. No gradient flows through these functions.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.system.machine import processor_facts


@cache
def is_onednn_faster() -> bool:
    facts = processor_facts()
    has_avx512 = "avx512f" in facts.get("flags", "").split()
    is_there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_avx512 and facts.get("vendor_id") != "GenuineIntel" and is_there


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weightᵀ, [.., N], from x [.., K] and weight [N, K]."""
    if not is_onednn_faster():
        return functional.linear(x, weight)
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, as `torch.mm` does."""
    return linear(a, b.t())


def addmm(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return c + a b, as `torch.addmm` does."""
    return linear(a, b.t()).add_(c) if is_onednn_faster() else torch.addmm(c, a, b)


def weight_gradients(rows_NK: Tensor, *slopes_NM: Tensor) -> list[Tensor]:
    """Return the gradient [M, K] of each weight that rows were multiplied by, from that of its product."""
    if not slopes_NM or not is_onednn_faster():
        return [torch.mm(slope_NM.t(), rows_NK) for slope_NM in slopes_NM]
    # oneDNN copies a first operand that is a transpose. One copy of the rows serves all products.
    turned_KN = rows_NK.t().contiguous()
    return [mm(turned_KN, slope_NM).t() for slope_NM in slopes_NM]
