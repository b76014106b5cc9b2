"""Hold every attention path of a device against float64: `python benchmarks/gpu_paths.py [NAMES]`.

One layer of each kind that an encoding has, with random parameters, runs on the path that `choose_path`
gives it: in training and in scoring, in float32 and bfloat16, alone and under a window. The truth is the
reference in float64 on the same device. Errors: the largest of an output, the largest of a gradient over its
largest number, and the mean of an output in bfloat16. Exit code 1 where one is too large, or a path fails.
NAMES are encodings, by default all, and their options.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from interleaved import machine, print_table
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.errors import first_line
from pe_bench.inspection.check.case import (
    TRAIN_LENGTH,
    Case,
    Inputs,
    as_type,
    distinct_layers,
    find_cases,
    largest_difference,
    layer_inputs,
)
from pe_bench.model.attention import attention, choose_path, reference_attention
from pe_bench.system.machine import device_name, resolve_device

WINDOW = 128
MAX_ERROR = 1e-4  # of an output in float32
MAX_GRADIENT_ERROR = 1e-3
MAX_HALF_ERROR = 1e-2  # on average: bfloat16 has eight bits


@dataclass
class Found:
    """The paths that an encoding took, its largest errors, and the exception that ended it."""

    paths: dict[str, None] = field(default_factory=dict)
    output: float = 0.0
    gradient: float = 0.0
    half: float = 0.0
    failure: str = ""

    @property
    def is_right(self) -> bool:
        within = self.output <= MAX_ERROR and self.gradient <= MAX_GRADIENT_ERROR
        return within and self.half <= MAX_HALF_ERROR and not self.failure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAMES", help="encodings and their options (default: all)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument("--lengths", default="300,2048", help="separated by commas (default: 300,2048)")
    given = parser.parse_args()
    device = resolve_device(given.device)
    print(f"{machine()}\n{device_name(device)}")
    lengths = [int(length) for length in given.lengths.split(",")]
    rows = []
    wrong = []
    for case in find_cases(given.names):
        found = measured(case, lengths, device)
        torch.compiler.reset()  # one process may compile so many kernels, and no other case has this one's
        rows.append(row(case.name, found))
        wrong += [] if found.is_right else [case.name]
        print(f"{case.name}: {'right' if found.is_right else 'WRONG'}", file=sys.stderr, flush=True)
    print_table(["", "paths", "output", "gradient", "bfloat16", ""], rows, left=2)
    if wrong:
        sys.exit(f"{len(wrong)} of {len(rows)} encodings are wrong: {', '.join(wrong)}")


def row(name: str, found: Found) -> list[str]:
    errors = [f"{error:.1e}" for error in (found.output, found.gradient, found.half)]
    return [name, ", ".join(found.paths), *errors, "" if found.is_right else found.failure or "WRONG"]


def measured(case: Case, lengths: list[int], device: torch.device) -> Found:
    """Return the largest errors of an encoding; of one that ends at its training length, there alone."""
    found = Found()
    lengths = [TRAIN_LENGTH] if case.is_undefined_past_training else lengths
    try:
        for length in lengths:
            for exact, rounded in layers(case, device):
                for window in (None, WINDOW):
                    compare(found, exact, rounded, length, window, device)
    except Exception as error:  # the next encoding is of interest too
        found.failure = f"{type(error).__name__}: {first_line(error)}"
    return found


def layers(case: Case, device: torch.device) -> Iterator[tuple[LayerEncoding, LayerEncoding]]:
    """Yield each kind of layer in float64 and in the types that it chose, with the same parameters."""
    exact, rounded = (
        case.with_random_parameters().double().to(device),
        case.with_random_parameters().to(device),
    )
    yield from zip(distinct_layers(exact), distinct_layers(rounded), strict=True)


def compare(
    found: Found,
    exact: LayerEncoding,
    rounded: LayerEncoding,
    length: int,
    window: int | None,
    device: torch.device,
) -> None:
    position = torch.arange(length, device=device)

    def inputs(dtype: torch.dtype) -> Inputs:
        x, q, k, v = (tensor.to(device) for tensor in as_type(layer_inputs(length), dtype))
        return x, q, k, v

    truth, slopes = with_gradients(reference_attention, exact, inputs(torch.float64), position, window)
    for dtype in (torch.float32, torch.bfloat16):
        output, gradients = with_gradients(attention, rounded, inputs(dtype), position, window)
        found.paths[choose_path(rounded, inputs(dtype)[1].requires_grad_(), position, window).name] = None
        with torch.no_grad():
            scored = attention(rounded, *inputs(dtype), position, window)
            found.paths[choose_path(rounded, inputs(dtype)[1], position, window).name] = None
        if dtype == torch.bfloat16:
            off = [
                float((own.double() - truth).abs().nan_to_num(torch.inf).mean()) for own in (output, scored)
            ]
            found.half = max(found.half, *off)
            continue
        found.output = max(found.output, largest_difference(output, truth), largest_difference(scored, truth))
        found.gradient = max([found.gradient, *map(relative, gradients, slopes)])


def with_gradients(
    path: Callable[..., Tensor], layer: LayerEncoding, inputs: Inputs, position: Tensor, window: int | None
) -> tuple[Tensor, list[Tensor]]:
    """Return the output, and the gradients of its sum of squares to inputs and parameters."""
    wanted = [*(tensor.requires_grad_() for tensor in inputs), *layer.parameters()]
    output = path(layer, *inputs, position, window)
    found = torch.autograd.grad(output.double().square().sum(), wanted, allow_unused=True)
    zeros = map(torch.zeros_like, wanted)
    return output.detach(), [zero if own is None else own for own, zero in zip(found, zeros, strict=True)]


def relative(found: Tensor, truth: Tensor) -> float:
    return largest_difference(found, truth) / max(1.0, float(truth.abs().max()) if truth.numel() else 0.0)


if __name__ == "__main__":
    main()
