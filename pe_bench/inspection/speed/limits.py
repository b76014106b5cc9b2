"""The limits of a machine, measured, and the arithmetic of a model, counted: how near to them it works.

Letters: N parameters in matrices, L layers, H query heads, K head width, T tokens of a window.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

# Sides of the square matrices whose products are timed: large enough to fill a machine of that kind.
MATRIX_SIDES = {"cpu": (512, 1_024, 2_048), "cuda": (4_096, 8_192, 16_384)}
# What is copied does not fit a cache of that kind of machine.
COPIED_BYTES = {"cpu": 2**28, "cuda": 2**32}
REPEATS = 5
SLOW = 0.1


def matmul_rate(device: torch.device, dtype: torch.dtype, sides: tuple[int, ...] | None = None) -> float:
    """Measure floating-point operations a second in products of square matrices, of the best size.

    A product of matrices with side n takes 2 n^3 operations. Each rate is from the median of several runs.
    Larger matrices than one whose product takes `SLOW` seconds are left out: some processors have no fast
    products in half precision.
    """
    rates: list[float] = []
    for side in sides or MATRIX_SIDES[device.type]:
        if rates and 2 * side**3 / rates[-1] > 8 * SLOW:
            break
        # Of random numbers: zeros take less power, and a GPU then runs faster than it does for a model.
        a, b = torch.randn(2, side, side, device=device).to(dtype)
        product = torch.empty_like(a)
        rates.append(
            2 * side**3 / _median_seconds(lambda a=a, b=b, out=product: torch.mm(a, b, out=out), device)
        )
    return max(rates)


def memory_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Measure the bytes a second that a copy of `size` bytes reads and writes: the median of runs."""
    size = size or COPIED_BYTES[device.type]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * size / _median_seconds(lambda: target.copy_(source), device)


def scoring_flops(matrix_parameters: int, layers: int, attention_width: int, length: int) -> float:
    """Count the floating-point operations of a token without gradients, on average over a window.

    2 N for the matrices, and 4 H K for each key that the token sees in each layer: a product with the keys
    and one with the values, each of a multiplication and an addition. `attention_width` is H K. A token of
    a window sees (T + 1) / 2 keys on average: what a causal mask hides is not counted, nor are biases,
    rotations, norms and the softmax. An encoding that hides or adds keys is counted as if it did not.
    """
    keys = (length + 1) / 2
    return 2 * matrix_parameters + 4 * layers * attention_width * keys


def training_flops(matrix_parameters: int, layers: int, attention_width: int, length: int) -> float:
    """Count the operations of a training step: three times as many, with two backward for each product.

    6 N + 12 L H K (T + 1) / 2. Logits that are computed again in the backward pass are not counted again.
    """
    return 3 * scoring_flops(matrix_parameters, layers, attention_width, length)


def matrix_parameters(model: nn.Module, output_weight: Tensor) -> int:
    """Count N: weights of linear layers and of the output, and no embedding that is only looked up."""
    weights = {id(layer.weight): layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)}
    weights[id(output_weight)] = output_weight
    return sum(weight.numel() for weight in weights.values())


def _median_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time several runs after two that warm up, each to its end on the device; return the median."""
    seconds = []
    for _ in range(2 + REPEATS):
        _finish(device)
        started = time.perf_counter()
        run()
        _finish(device)
        seconds.append(time.perf_counter() - started)
    return median(seconds[2:])


def _finish(device: torch.device) -> None:
    """Wait for a GPU, which works on after a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
