"""Time training steps of encodings beside those of nope: `python benchmarks/steps.py rope alibi`.

A step is that of `pe-bench train`: forward, backward, clipping, optimizer. It has as many windows of each
length as `train.batch_tokens` holds, or one window where the length is larger, and the length is the training
length too. Rows are those of `pe-bench speed`; without names all encodings are timed.

With `--product N`, a product of two N x N matrices in the same type is timed too, and a last table has the
operations per second of each encoding's steps, as a share of that product's. A step's operations are those of
its products: 6 for each weight of a matrix and each token, and in causal attention 12 for each feature of a
head and each pair of a query and a key that it sees.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from interleaved import interleaved, print_table

from pe_bench.config.schema import Config
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.inspection.resolve import encodings_to_time
from pe_bench.inspection.speed import (
    BYTES,
    MACHINE_COLUMNS,
    Bench,
    SpeedRow,
    grid_of,
    path_of,
    random_data,
    texts_of,
    wait_for,
    write_rows,
)
from pe_bench.model.decoder import build_decoder
from pe_bench.render.grid import show
from pe_bench.system.machine import (
    environment,
    keep_freed_memory,
    resolve_device,
    resolve_precision,
    set_threads,
)
from pe_bench.training.trainer import Trainer
from pe_bench.values import parse_lengths

TEXT = 2**16  # tokens from which windows are drawn, or more where a window is longer
NEVER = 10**9  # steps
PRODUCTS = 20  # timed ones


class TrainingPass:
    """A step of the trainer, of `train.batch_tokens` tokens in windows of `train.length`."""

    def __init__(self, config: Config, encoding: EncodingSpec, length: int, device: torch.device):
        endless = replace(config.train, steps=NEVER, validate_every=NEVER)
        config = replace(config, train=endless)
        data = random_data(max(TEXT, length + 1))
        self.batch, dtype = endless.batch, resolve_precision(config.precision, device)
        model = build_decoder(config, data.vocabulary, encoding).to(device)
        self.trainer, self.steps = Trainer(config, model, data, device, dtype), 0
        self.path = path_of(model, config, endless.batch // endless.micro_batches, length, dtype)

    def __call__(self) -> None:
        self.trainer.step(self.steps, 0.0)
        self.steps += 1


def rows_of(words: list[str], lengths: list[int], repeats: int | None) -> Iterator[SpeedRow]:
    for length in lengths:
        _, [reference, *_] = encodings_to_time(["nope", *(word for word in words if "=" in word)])
        windows = max(1, reference.config.train.batch_tokens // length)
        size = [f"train.length={length}", f"train.batch_tokens={windows * length}"]
        setting, subjects = encodings_to_time([*words, *size])
        config = subjects[0].config
        threads, device = set_threads(config.threads), resolve_device(config.device)
        dtype = str(resolve_precision(config.precision, device)).removeprefix("torch.")
        facts, shared = environment(device, threads), {"setting": setting, "pass": "train", "dtype": dtype}
        facts = shared | {name: facts[name] for name in MACHINE_COLUMNS}
        yield from Bench(facts, device, repeats, TrainingPass).rows(subjects, [length])


def operations_of_a_token(config: Config) -> float:
    """Return the operations of a step's products, for each of its tokens."""
    model = config.model
    heads = model.d_head * (2 * model.n_heads + 2 * model.n_kv_heads)
    weights = model.n_layers * model.d_model * (heads + 3 * model.d_ff) + BYTES * model.d_model
    # Scores and values; a query sees half of the keys on average.
    attention = 2 * model.n_layers * model.n_heads * model.d_head * (config.train.length / 2)
    return 6 * (weights + attention)


def operations_per_second(device: torch.device, dtype: torch.dtype, side: int) -> float:
    """Return the rate of a product of two square matrices of random numbers."""
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))

    def product() -> None:
        torch.mm(a, b)
        wait_for(device)

    seconds = interleaved({"product": product}, repeats=PRODUCTS, warm_up=3)
    return 2 * side**3 / median(seconds["product"])


def print_shares(rows: list[SpeedRow], config: Config, side: int) -> None:
    """Print what share of a large product's rate the steps of each row reach."""
    device = resolve_device(config.device)
    dtype = resolve_precision(config.precision, device)
    rate = operations_per_second(device, dtype, side)
    name = str(dtype).removeprefix("torch.")
    print(f"a product of {side:,} x {side:,} matrices in {name}: {rate / 1e12:,.1f} TFLOP/s")
    cells = []
    for row in rows:
        if row["tokens_per_second"] is None:
            cells.append([row["encoding"], "", "", row["status"]])
            continue
        reached = operations_of_a_token(config) * row["tokens_per_second"]
        tokens = f"{row['tokens_per_second']:,.0f}"
        cells.append([row["encoding"], tokens, f"{reached / 1e12:,.1f}", f"{reached / rate:.0%}"])
    print_table(["encoding", "tokens/s", "TFLOP/s", "of the product's"], cells, left=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="NAME|KEY=VALUE")
    parser.add_argument("--lengths", default="128", help="training lengths (default: 128)")
    parser.add_argument("--repeats", type=int, help="timed steps of each encoding (default: 5 to 25)")
    parser.add_argument("--product", type=int, metavar="N", help="also time a product of N x N matrices")
    parser.add_argument("--output", type=Path, default=Path("steps.csv"), help="default: steps.csv")
    options = parser.parse_intermixed_args()
    rows: list[SpeedRow] = []
    keep_freed_memory()
    for row in rows_of(options.words, parse_lengths(options.lengths), options.repeats):
        rows.append(row)
        write_rows(options.output, rows)
        print("  ".join(filter(None, texts_of(row))), flush=True)
    show([grid_of(rows).draw])
    if options.product:
        longest = max(row["length"] for row in rows)
        settings = [word for word in options.words if "=" in word]
        _, [nope, *_] = encodings_to_time(["nope", *settings, f"train.length={longest}", "train.steps=1"])
        print_shares([row for row in rows if row["length"] == longest], nope.config, options.product)


if __name__ == "__main__":
    main()
