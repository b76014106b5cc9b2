"""Time Muon's iterations for the matrices of models: `python benchmarks/muon.py tiny small base`.

For each model: the iterations of one step in float32, in bfloat16 by PyTorch's products, and in bfloat16 as
training does them here, with the ratios of their times and the errors of the updates against float64. The
matrices are random.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from unittest.mock import patch

import torch
from interleaved import add_usual_options, interleaved, machine, print_table, ratio
from torch import Tensor

from pe_bench.config.compose import compose_config
from pe_bench.training import optimizer
from pe_bench.training.optimizer import orthogonalise, orthogonalise_in_bfloat16

TIMES = ("ms float32", "bfloat16", "compiled")
RATIOS = ("bfloat16/float32", "compiled/bfloat16")
ERRORS = ("error of bfloat16", "compiled")
WARM_UP = 2


def random_matrices(model: str) -> list[Tensor]:
    """Return matrices of the shapes that a decoder's blocks have, stacked by shape [B, M, N]."""
    sizes = compose_config([f"model={model}"]).model
    width, layers = sizes.d_model, sizes.n_layers
    shapes = [(4 * layers, width, width), (2 * layers, sizes.d_ff, width), (layers, width, sizes.d_ff)]
    return [torch.randn(shape) for shape in shapes]


def by_pytorch(matrices: Tensor) -> Tensor:
    """Return the result of `orthogonalise_in_bfloat16` without compiled code."""
    with patch.object(optimizer, "native_bfloat16_is_faster", lambda _: False):
        return orthogonalise_in_bfloat16(matrices)


def for_each(orthogonalised: Callable[[Tensor], Tensor], stacks: list[Tensor]) -> list[Tensor]:
    return [orthogonalised(matrices) for matrices in stacks]


def error(orthogonalised: Callable[[Tensor], Tensor], stacks: list[Tensor]) -> float:
    """Return the root mean square error of updates, relative to that of the updates in float64."""
    errors = []
    sizes = []
    for matrices in stacks:
        exact = orthogonalise(matrices.double())
        errors.append((orthogonalised(matrices).double() - exact).square().sum())
        sizes.append(exact.square().sum())
    return float((sum(errors) / sum(sizes)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names of configs/model")
    add_usual_options(parser, repeats=11)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    if not optimizer.native_bfloat16_is_faster(torch.device("cpu")):
        parser.error("this processor has no AVX512-BF16, or it has AMX, so the compiled code would not run")
    print(machine())
    table = []
    for model in options.models:
        stacks = random_matrices(model)
        kinds = {"float32": orthogonalise, "bfloat16": by_pytorch, "compiled": orthogonalise_in_bfloat16}
        calls = {name: partial(for_each, kind, stacks) for name, kind in kinds.items()}
        seconds = interleaved(calls, options.repeats, WARM_UP, options.cpu_time)
        row = [model]
        row += [f"{1000 * median(seconds[name]):.1f}" for name in kinds]
        row += [ratio(seconds, "bfloat16", "float32"), ratio(seconds, "compiled", "bfloat16")]
        row += [f"{error(kind, stacks):.2%}" for kind in (by_pytorch, orthogonalise_in_bfloat16)]
        table.append(row)
    print_table(["model", *TIMES, *RATIOS, *ERRORS], table, left=1)


if __name__ == "__main__":
    main()
