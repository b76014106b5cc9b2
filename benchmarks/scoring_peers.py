"""Compare the cost of scoring one text with other libraries: `python benchmarks/scoring_peers.py`.

Models of the same widths, heads and layers score one text of each length: pe-bench as `pe-bench eval` scores
one window, x-transformers and transformers through the loss that they return. They alternate in one process.
Memory is the peak of a first pass above what was held before it, in a separate process for each model.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch
from interleaved import Seconds, add_usual_options, interleaved, machine, print_table, ratio
from peers import LIBRARIES, Size, bloom, how_to_get, llama, x_transformers

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.inspection.speed import ScoringPass
from pe_bench.system.machine import PeakMemory

CPU = torch.device("cpu")
WARM_UP = 1
VOCABULARY = 257
Scoring = Callable[[], object]


def ours(encoding: str, size: Size) -> Scoring:
    config = parse_config(compose([f"encoding={encoding}", *size.overrides]))
    return ScoringPass(config, EncodingSpec(config.encoding), size.length, CPU)


def of_x_transformers(encoding: str, size: Size) -> Scoring:
    model, windows = x_transformers(encoding, size).eval(), size.windows()
    return torch.no_grad()(lambda: model(windows))


def of_transformers(build: Callable[[Size], torch.nn.Module], size: Size) -> Scoring:
    model, windows = build(size).eval(), size.windows()
    return torch.no_grad()(lambda: model(windows[:, :-1], labels=windows[:, :-1]))


OURS = "pe-bench"
# The models by library and by the name that pe-bench has for their encoding.
MODELS: Mapping[tuple[str, str], Callable[[Size], Scoring]] = {
    **{(OURS, name): partial(ours, name) for name in ("nope", "rope", "alibi", "t5")},
    **{("x-transformers", name): partial(of_x_transformers, name) for name in ("rope", "alibi", "t5")},
    ("transformers", "rope"): partial(of_transformers, llama),
    ("transformers", "alibi"): partial(of_transformers, bloom),
}


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.memory_of:
        library, encoding, length = given.memory_of
        print(peak_mb(MODELS[library, encoding](size_of(given, int(length)))))
        return
    settings = (
        f"model={given.model}, vocabulary {VOCABULARY}, float32, {given.repeats} rounds, seed {given.seed}"
    )
    settings += ", processor time" if given.cpu_time else ""
    print(f"{machine(*LIBRARIES)}\nscoring one text: {settings}\n")
    rows = [row for length in map(int, given.lengths.split(",")) for row in rows_of(given, length)]
    print_table(["model", "tokens", "ms", "MB", "it / ours"], rows, left=1)
    print("".join(f"\n{line}" for line in how_to_get("x-transformers", "transformers")))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="2048,8192", help="default: 2048,8192")
    parser.add_argument(
        "--model", default="small", help="pe-bench's model whose sizes all models get (default: small)"
    )
    add_usual_options(parser, repeats=5)
    # The model that a child process measures the memory of.
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.repeats < 2:
        parser.error("--repeats must be at least 2")
    return given


def size_of(given: argparse.Namespace, length: int) -> Size:
    try:
        model = parse_config(compose([f"model={given.model}"])).model
    except UserError as error:
        sys.exit(str(error))
    return Size(model.d_model, model.n_layers, model.n_heads, length, length, VOCABULARY, given.seed)


def rows_of(given: argparse.Namespace, length: int) -> list[list[str]]:
    """Return a row for each model. A model whose first pass failed is not timed."""
    models = [model for model in MODELS if model[0] in (OURS, *LIBRARIES)]
    memory = {model: memory_of(*model, length, given) for model in models}
    size = size_of(given, length)
    calls = {" ".join(model): MODELS[model](size) for model in models if memory[model] is not None}
    seconds = interleaved(calls, given.repeats, WARM_UP, given.cpu_time)
    return [[" ".join(model), f"{length:,}", *cells(model, memory[model], seconds)] for model in models]


def cells(model: tuple[str, str], mb: float | None, seconds: Seconds) -> list[str]:
    if mb is None:
        return ["failed"]
    name, ours = " ".join(model), f"{OURS} {model[1]}"
    return [f"{median(seconds[name]) * 1e3:,.0f}", f"{mb:,.0f}", ratio(seconds, name, ours)]


def memory_of(library: str, encoding: str, length: int, given: argparse.Namespace) -> float | None:
    """Return the megabytes of one model, or None if its process failed."""
    overrides = ["--model", given.model, "--threads", str(given.threads), "--seed", str(given.seed)]
    command = [sys.executable, __file__, *overrides, "--memory-of", library, encoding, str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        error = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        print(f"{library} {encoding} at {length:,} tokens: {error[0]}", file=sys.stderr)
        return None
    return float(done.stdout)


def peak_mb(scoring: Scoring) -> float:
    """Return the peak while it runs, above what was held before."""
    with PeakMemory(CPU) as before:
        pass
    with PeakMemory(CPU) as peak:
        scoring()
    return (peak.mb or math.nan) - (before.mb or math.nan)


if __name__ == "__main__":
    main()
