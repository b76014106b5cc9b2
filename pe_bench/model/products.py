"""Products of matrices of float32 or bfloat16, by the library in PyTorch that uses the whole processor.

PyTorch multiplies float32 matrices with MKL, which uses AVX-512 only on Intel's processors; oneDNN, the other
library in PyTorch, uses AVX-512 on all. Matrices of bfloat16 are left to PyTorch. No gradient flows through
these functions.
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
    has_onednn = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_avx512 and facts.get("vendor_id") != "GenuineIntel" and has_onednn


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weightᵀ, [.., N], from x [.., K] and weight [N, K]."""
    if x.dtype != torch.float32 or not is_onednn_faster():
        return functional.linear(x, weight)
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, as `torch.mm` does."""
    return linear(a, b.t())


def addmm(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return c + a b, as `torch.addmm` does.

    If a and b are bfloat16, their product is rounded, and c may be float32.
    """
    if a.dtype != torch.float32:
        return torch.mm(a, b) + c  # in this order the result has the contiguous layout of the product
    if is_onednn_faster():
        return linear(a, b.t()).add_(c)
    return torch.addmm(c, a, b)


def weight_gradients(rows_NK: Tensor, *grads_NM: Tensor) -> list[Tensor]:
    """Return the gradients [M, K] of weights W, from the rows and the gradients of the products rows Wᵀ.

    The gradients of weights are float32.
    """
    if rows_NK.dtype != torch.float32 or not grads_NM or not is_onednn_faster():
        return [torch.mm(grad_NM.t(), rows_NK).float() for grad_NM in grads_NM]
    # oneDNN copies a first operand that is a transpose. One copy of the rows is used for all products.
    transposed_KN = rows_NK.t().contiguous()
    return [mm(transposed_KN, grad_NM).t() for grad_NM in grads_NM]
