"""Time attention with each bias over a long text: `python benchmarks/attention_long.py [NAMES]`.

One layer's attention, as in scoring, alternates with plain causal fused attention of the same shape. A ratio
is that of the medians; brackets hold the middle half of the ratios of single rounds. The error is the
largest deviation of some rows from the reference in float64, for queries and keys from N(0, 1). NAMES are
encodings, by default all with a bias by distance, and overrides.
"""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median

import torch
from interleaved import add_usual_options, interleaved, machine, print_table, ratio
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.compose import Composition
from pe_bench.inspection.resolve import resolve
from pe_bench.model.attention import attention, choose_path, reference_attention
from pe_bench.model.attention.fused import fused
from pe_bench.scoring.scorer import flush_denormals

NAMES = ("alibi", "t5", "kerple_log", "kerple_power", "sandwich", "bam")
PLAIN, WHOLE = "plain causal", "alibi, L x L bias"
ROWS = 16

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    print(machine())
    with torch.no_grad(), nullcontext() if given.denormals else flush_denormals():
        for length in map(int, given.lengths.split(",")):
            rows = measured(given, length, whole=length <= given.whole)
            print(f"\n{length:,} tokens, batch {given.batch}, {given.heads} heads of width {given.width}")
            print_table(["", "path", "ms", f"over {PLAIN}", "error"], rows, left=2)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="NAMES", help="encodings and overrides (encoding.key=value)"
    )
    parser.add_argument("--lengths", default="8192,32768", help="separated by commas (default: 8192,32768)")
    parser.add_argument("--batch", type=int, default=1, help="texts in a batch (default: 1)")
    parser.add_argument("--heads", type=int, default=8, help="default: 8")
    parser.add_argument("--width", type=int, default=32, help="width of each head (default: 32)")
    parser.add_argument(
        "--whole", type=int, default=4096, help=f"also time {WHOLE}, up to this length (default: 4096)"
    )
    parser.add_argument("--bf16", action="store_true", help="queries, keys and values in bfloat16")
    parser.add_argument("--denormals", action="store_true", help="do not flush denormals to zero")
    add_usual_options(parser, repeats=5)
    return parser.parse_args()


def measured(given: argparse.Namespace, length: int, whole: bool) -> list[list[str]]:
    """Return a row for each encoding: name, path, milliseconds, ratio to plain attention, error."""
    inputs, position = drawn(given, length), torch.arange(length)
    encodings = encodings_of(given)
    _, q, k, v = inputs
    calls: dict[str, Callable[[], Tensor]] = {PLAIN: partial(fused, q, k, v, None, given.width**-0.5)}
    for name, encoding in encodings.items():
        calls[name] = partial(attention, encoding.layer(0), *inputs, position)
    if whole:
        calls[WHOLE] = partial(with_whole_bias, ALiBi(given.heads), inputs)
    seconds = interleaved(calls, given.repeats, warm_up=1, of_processor=given.cpu_time)
    rows = []
    for name, each in seconds.items():
        row = [name, "", f"{1000 * median(each):.0f}", ratio(seconds, name, PLAIN), ""]
        if name in encodings:
            row[1] = choose_path(encodings[name].layer(0), q, position).name
            row[-1] = f"{error(encodings[name], inputs, calls[name]()):.0e}"
        rows.append(row)
    return rows


def drawn(given: argparse.Namespace, length: int) -> Inputs:
    """Return the input of a layer, queries, keys and values, laid out as in a model."""
    generator = torch.Generator().manual_seed(given.seed)
    numbers = torch.randn(4, given.batch, length, given.heads * given.width, generator=generator)
    x, *rest = numbers.bfloat16() if given.bf16 else numbers
    q, k, v = (projected.unflatten(-1, (given.heads, given.width)).transpose(1, 2) for projected in rest)
    return x, q, k, v


def encodings_of(given: argparse.Namespace) -> dict[str, Composition]:
    """Return the encodings by label, with their initial parameters."""
    names = [] if any("=" not in override for override in given.overrides) else NAMES
    found = resolve(
        [
            *names,
            *given.overrides,
            f"model.d_model={given.heads * given.width}",
            f"model.n_heads={given.heads}",
            f"seed={given.seed}",
        ]
    )
    return {subject.label: subject.encoding for subject in found}


def with_whole_bias(layer: LayerEncoding, inputs: Inputs) -> Tensor:
    """Compute the bias of every pair and pass it to the fused kernel, as attention is commonly written."""
    _, q, k, v = inputs
    index = torch.arange(q.shape[-2])
    distance = index.unsqueeze(-1) - index
    bias = layer.distance_bias(distance.flatten())
    assert bias is not None
    mask = bias.unflatten(-1, distance.shape).masked_fill(distance < 0, float("-inf"))
    return fused(q, k, v, mask.unsqueeze(0), q.shape[-1] ** -0.5)


def error(encoding: Composition, inputs: Inputs, output: Tensor) -> float:
    """Return the largest error in some rows, including the first and the last."""
    layer, exact, length = (
        encoding.double().layer(0),
        [tensor.double() for tensor in inputs],
        output.shape[-2],
    )
    found = 0.0
    for row in torch.linspace(0, length - 1, ROWS).long().tolist():
        rows = range(row, row + 1)
        truth = reference_attention(layer, *exact, position=torch.arange(length), rows=rows)
        found = max(found, float((output[:, :, row : row + 1] - truth).abs().max()))
    return found


if __name__ == "__main__":
    main()
