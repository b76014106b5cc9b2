"""Functions that PyTorch's compiler (Inductor) turns into fused kernels for training on a GPU.

Each function is compiled by itself, with tensors alone as arguments: the compiler never reads an encoding,
which may be anybody's code. A function that all layers of a model call is compiled once.
"""

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

MAX_COMPILED_VARIANTS = 64  # combinations of types and shapes of one function, compiled in one process

P = ParamSpec("P")
R = TypeVar("R")


def fused_on_gpu(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, compiled for calls in training whose first tensor is on a GPU."""

    @wraps(function)
    def run_compiled_or_plain(*args: P.args, **options: P.kwargs) -> R:
        if not is_training_on_gpu(args[0]):
            return function(*args, **options)
        return compiled(function, "inductor")(*args, **options)

    return run_compiled_or_plain


def is_training_on_gpu(x: object) -> bool:
    """Return true for a tensor on a GPU while gradients are recorded, outside PyTorch's compiler.

    Scoring is not compiled, because its lengths differ from call to call.
    """
    is_on_gpu = isinstance(x, torch.Tensor) and x.device.type == "cuda"
    return is_on_gpu and torch.is_grad_enabled() and not torch.compiler.is_compiling()


@cache
def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Return a function that PyTorch compiles when it is called, for types and shapes as they come.

    `fullgraph` raises an error instead of running a part of the code uncompiled.
    """
    import torch._dynamo

    # Products in float32 must be exact, so the advice to use TensorFloat32 is ignored.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
    settings: Any = torch._dynamo.config
    settings.recompile_limit = max(MAX_COMPILED_VARIANTS, settings.recompile_limit)
    return torch.compile(function, backend=backend, fullgraph=True)
