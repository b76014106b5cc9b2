"""Inputs of the kernel, and its results beside exact ones."""

import pytest
import torch
from torch import Tensor

from pe_bench.native import build

B, H, K = 2, 3, 20
here = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler is here")


def worst(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max())


def queries(**changes: bool) -> Tensor:
    return torch.zeros(1, H, 5, K).requires_grad_(changes.get("learns", True))
