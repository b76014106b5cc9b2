"""Compare the cost of a training step with other libraries: `python benchmarks/training.py`.

Steps with the same tokens, widths, heads and layers alternate in one process: pe-bench with each encoding as
in `pe-bench train`, nanoGPT's model with the loop of its train.py and its README's settings for a CPU, and
x-transformers with the encodings that it has. A ratio is that of the medians; brackets hold the middle half
of the ratios of single rounds. `--profile` adds where the time of each step goes, and the rate of its
products of matrices beside that of one large product.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, replace
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from interleaved import Seconds, add_usual_options, interleaved, machine, print_table, ratio
from peers import LIBRARIES, X_TRANSFORMERS, Size, how_to_get, nanogpt, parameters, x_transformers
from torch import Tensor, nn

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.data.packed import Data, Split
from pe_bench.errors import UserError
from pe_bench.inspection.speed import path_of
from pe_bench.model.decoder import build_decoder
from pe_bench.model.products import mm
from pe_bench.system.machine import keep_freed_memory
from pe_bench.training.trainer import Trainer

ENCODINGS = "nope,rope,alibi,t5,kerple_log,sandwich,bam,fox,shaw"
REFERENCE = "nope"
WARM_UP = 3
NEVER = 10**9  # steps
CPU = torch.device("cpu")
NANOGPT, TUNED, OTHER = "nanoGPT", "nanoGPT tuned", "x-transformers"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear_pointwise")
PROFILED = 10  # steps
OPERATIONS = 8  # with a row of their own
HOW_NANOGPT = "git clone https://github.com/karpathy/nanoGPT and add --nanogpt nanoGPT"


@dataclass(frozen=True)
class Step:
    """One training step, including drawing its windows."""

    run: Callable[[], object]
    parameters: int
    path: str = ""  # the path of attention, for pe-bench


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.kernel == "off":
        os.environ["PE_BENCH_KERNEL"] = "off"
    names = list(dict.fromkeys([REFERENCE, *given.encodings.split(",")]))
    size = Size(**{field.name: getattr(given, field.name) for field in fields(Size)})
    try:
        steps = {name: our_step(name, size, given.bf16, given.optimizer) for name in names}
    except UserError as error:
        sys.exit(str(error))
    steps |= steps_of_others(given, names, size)
    if given.keep_memory:
        keep_freed_memory()
    calls = {name: step.run for name, step in steps.items()}
    seconds = interleaved(calls, given.repeats, WARM_UP, given.cpu_time)
    print(headline(given, size))
    print_table(*table(steps, seconds, size), left=2)
    if given.profile:
        print(f"\none product of {size.batch_tokens} x 512 by 512 x 512, GFLOP/s: {product_rates(size)}")
        print_table(*profile(steps), left=2)
    missing = how_to_get(OTHER)
    if given.nanogpt is None:
        missing.append(f"nanoGPT was left out: {HOW_NANOGPT}")
    print("".join(f"\n{line}" for line in missing))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encodings", default=ENCODINGS, help=f"default: {ENCODINGS}")
    for name, default in {"d-model": 128, "layers": 4, "heads": 4, "length": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens in a step (default: 4096)")
    parser.add_argument("--vocabulary", type=int, default=257, help="default: 257, for bytes")
    parser.add_argument("--nanogpt", type=Path, metavar="CHECKOUT", help="a checkout of nanoGPT")
    parser.add_argument("--tuned", action="store_true", help="also time nanoGPT compiled, with fused AdamW")
    parser.add_argument(
        "--bf16", action="store_true", help="multiply matrices in bfloat16, except in stock nanoGPT"
    )
    parser.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        default="adamw",
        help="pe-bench's own (default: adamw, as others)",
    )
    parser.add_argument(
        "--kernel", choices=("auto", "off"), default="auto", help="off: without pe-bench's kernel"
    )
    parser.add_argument(
        "--keep-memory", action="store_true", help="keep freed memory for the next step, in all models"
    )
    parser.add_argument("--profile", action="store_true", help="also show where the time of a step goes")
    add_usual_options(parser, repeats=11)
    given = parser.parse_args()
    if given.repeats < 5:
        parser.error("--repeats must be at least 5")
    if given.nanogpt is not None and not (given.nanogpt / "model.py").exists():
        parser.error(f"--nanogpt {given.nanogpt} has no model.py: {HOW_NANOGPT}")
    return given


def our_step(encoding: str, size: Size, bf16: bool, optimizer: str = "adamw") -> Step:
    """Return a step of `Trainer`. Raises `UserError` for an unknown encoding."""
    config = parse_config(compose([f"encoding={encoding}", f"train.optimizer={optimizer}", *size.overrides]))
    config = replace(config, train=replace(config.train, steps=NEVER, validate_every=NEVER))
    dtype = torch.bfloat16 if bf16 else torch.float32
    vocabulary = tuple(map(str, range(size.vocabulary)))
    model = build_decoder(config, vocabulary)
    split = Split(size.text, np.array([0, len(size.text)]))
    data = Data("random", "", "numbers", vocabulary, 0, split, split)
    trainer = Trainer(config, model, data, CPU, dtype)
    numbers = iter(range(NEVER))
    with autocast(bf16):
        path = path_of(model, config, size.batch, size.length, dtype)
    return Step(lambda: trainer.step(next(numbers), 0.0), model.parameter_count, path)


def steps_of_others(given: argparse.Namespace, names: Sequence[str], size: Size) -> dict[str, Step]:
    """Return a step of each library that is installed."""
    steps: dict[str, Step] = {}
    if given.nanogpt is not None:
        steps[NANOGPT] = nanogpt_step(given.nanogpt, size)
        if given.tuned:
            steps[TUNED] = tuned_nanogpt_step(given.nanogpt, size, given.bf16)
    if OTHER in LIBRARIES:
        both = [name for name in names if name in X_TRANSFORMERS]
        steps |= {f"{OTHER} {name}": x_transformers_step(name, size, given.bf16) for name in both}
    return steps


def nanogpt_step(checkout: Path, size: Size) -> Step:
    """Return a step of nanoGPT in float32, not compiled, with the AdamW of its `configure_optimizers`."""
    model = nanogpt(checkout, size)
    loop = nanogpt_loop(model, model, size, fused=False, bf16=False)
    return Step(loop, parameters(model))


def tuned_nanogpt_step(checkout: Path, size: Size, bf16: bool) -> Step:
    """Return a step of nanoGPT, compiled and with fused AdamW."""
    model = nanogpt(checkout, size)
    loop = nanogpt_loop(torch.compile(model), model, size, fused=True, bf16=bf16)
    return Step(loop, parameters(model))


def nanogpt_loop(called: Callable, model: Any, size: Size, fused: bool, bf16: bool) -> Callable[[], None]:
    """Return one iteration of the loop in nanoGPT's train.py, with the numbers given there."""
    with redirect_stdout(StringIO()):
        # nanoGPT takes the fused AdamW for the device "cuda"; it runs on a CPU too.
        optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda" if fused else "cpu")

    def step() -> None:
        windows_BT = size.windows()
        with autocast(bf16):
            _, loss = called(windows_BT[:, :-1].contiguous(), windows_BT[:, 1:].contiguous())
        finish(loss, model, optimizer)

    return step


def x_transformers_step(encoding: str, size: Size, bf16: bool) -> Step:
    """Return a step with pe-bench's fused AdamW and clipping, so that only the model differs."""
    model = x_transformers(encoding, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)

    def step() -> None:
        with autocast(bf16):
            loss = model(size.windows())
        finish(loss, model, optimizer)

    return Step(step, parameters(model))


def finish(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def autocast(bf16: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=bf16)


def headline(given: argparse.Namespace, size: Size) -> str:
    overrides = [
        f"d={size.d_model}, {size.layers} layers, {size.heads} heads",
        f"{size.batch} windows of {size.length} tokens",
        f"vocabulary {size.vocabulary:,}",
        "bfloat16, except in stock nanoGPT" if given.bf16 else "float32",
        *(["large allocations kept"] if given.keep_memory else []),
        *(["processor time"] if given.cpu_time else []),
        f"{given.repeats} rounds, seed {size.seed}",
    ]
    return f"{machine(*LIBRARIES)}\na training step: {', '.join(overrides)}\n"


def table(steps: Mapping[str, Step], seconds: Seconds, size: Size) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows. Rows of other libraries are not compared with themselves."""
    columns = ["encoding", "attention", "parameters", "ms", "tokens/s", f"it / {REFERENCE}"]
    columns += [f"{other} / it" for other in (NANOGPT, TUNED, OTHER)]
    rows = []
    for name, step in steps.items():
        middle = median(seconds[name])
        row = [name, step.path, f"{step.parameters:,}", f"{middle * 1e3:.1f}"]
        row += [f"{size.batch_tokens / middle:,.0f}", ratio(seconds, name, REFERENCE)]
        if step.path:
            row += [ratio(seconds, other, name) for other in (NANOGPT, TUNED, f"{OTHER} {name}")]
        rows.append(row)
    return columns, rows


def product_rates(size: Size) -> str:
    """Return how fast PyTorch multiplies two matrices, and how fast pe-bench does."""
    x, weight = torch.randn(size.batch_tokens, 512), torch.randn(512, 512)
    calls = {"torch.mm": lambda: torch.mm(x, weight), "pe-bench": lambda: mm(x, weight)}
    seconds = interleaved(calls, repeats=50, warm_up=5)
    operations = 2 * size.batch_tokens * 512 * 512
    return ", ".join(f"{operations / median(seconds[name]) / 1e9:.0f} ({name})" for name in calls)


def profile(steps: Mapping[str, Step]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: of each step, all products of matrices, and the longest operations."""
    rows = []
    for name, step in steps.items():
        with torch.profiler.profile() as profiler:
            for _ in range(PROFILED):
                step.run()
        events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in events)
        products = [event for event in events if event.key in PRODUCTS]
        of_products = share(sum(event.self_cpu_time_total for event in products), total)
        rows.append([name, "all products of matrices", *of_products])
        rows += [[name, event.key, *share(event.self_cpu_time_total, total)] for event in events[:OPERATIONS]]
    return ["encoding", "operation", "ms", "share"], rows


def share(microseconds: float, total: float) -> list[str]:
    return [f"{microseconds / 1e3 / PROFILED:.1f}", f"{microseconds / total:.0%}"]


if __name__ == "__main__":
    main()
