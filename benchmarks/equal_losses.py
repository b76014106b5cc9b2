"""Compare training on every attention path with the reference: `python benchmarks/equal_losses.py`.

A small model is trained three times from each seed, on the source of a Python module: with the path that
attention chooses, with the reference, and with the reference from weights that were changed by one part in
ten million. Rounding errors grow from step to step in any training; the third run measures how far. A path
is as exact as the reference if its losses move no farther. The exit code is 1 if one does.
"""

import argparse
import csv
import inspect
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from unittest.mock import patch

import numpy as np
import torch
from interleaved import machine, print_table

from pe_bench.cli import program
from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, Split
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.errors import UserError
from pe_bench.inspection.speed import path_of
from pe_bench.model import layers
from pe_bench.model.attention import reference_attention
from pe_bench.model.decoder import build_decoder
from pe_bench.training.trainer import Trainer

ROUNDING = 1e-7  # of every weight, relative: about one unit in the last place of float32
EARLY = 10  # these steps have a separate column: rounding errors have hardly grown there
# How many times farther than the third training a path may move: rounding alone varies that much.
FACTOR = 10
NEVER = 10**9  # steps
FLOOR = 1e-6  # nats: smaller differences between losses in float32 are ignored
CPU = torch.device("cpu")
OVERRIDES = (
    *("model.d_model=64", "model.n_layers=2", "model.n_heads=2", "model.d_ff=176"),
    *("train.length=64", "train.batch_tokens=1024"),
)


@dataclass(frozen=True)
class Difference:
    """The largest difference of losses over seeds, at each step, in nats."""

    path: np.ndarray
    changed: np.ndarray

    @property
    def is_rounding(self) -> bool:
        return bool(self.path.max() <= max(FACTOR * self.changed.max(), FLOOR))


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    try:
        families = family_of_each()
        names = given.encodings.split(",") if given.encodings else one_of_each(families)
        print(f"{machine()}\nsteps: {given.steps}, seeds: {given.seeds}, float32\n")
        rows, wrong = [], []
        for name in names:
            found = difference(name, given.steps, given.seeds)
            print(f"trained with {name}: {', '.join(cells(found))}", file=sys.stderr, flush=True)
            rows.append([name, families.get(name, ""), path(name), *cells(found)])
            wrong += [] if found.is_rounding else [name]
    except UserError as error:
        sys.exit(str(error))
    early = f"first {EARLY}" if given.steps > EARLY else "all"
    columns = ["encoding", "family", "attention", f"path, {early} steps", f"rounding, {early}"]
    print_table([*columns, "path, all steps", "rounding, all"], rows, left=3)
    print("\npath: largest difference of losses from the reference, in nats per token")
    print("rounding: the same for the reference from weights changed by one part in ten million")
    sys.exit(f"moved farther than rounding: {', '.join(wrong)}" if wrong else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encodings", help="names separated by commas (default: one of each family)")
    for name, default in {"steps": 200, "seeds": 5, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    given = parser.parse_args()
    if given.steps < 1 or given.seeds < 1:
        parser.error("--steps and --seeds must be whole numbers of at least 1")
    return given


def family_of_each() -> dict[str, str]:
    """Return the family of every encoding, from `pe-bench list encodings`."""
    with redirect_stdout(io.StringIO()) as listed:
        program.run(["list", "encodings", "--csv", "-"])
    return {row["encoding"]: row["family"] for row in csv.DictReader(io.StringIO(listed.getvalue()))}


def one_of_each(families: dict[str, str]) -> list[str]:
    """Return from each family the first encoding that does not take the reference, or else the first."""
    chosen: dict[str, str] = {}
    for name, family in families.items():
        if family not in chosen or (path(chosen[family]) == "reference" != path(name)):
            chosen[family] = name
    return list(chosen.values())


def difference(name: str, steps: int, seeds: int) -> Difference:
    of_path, of_changed = [], []
    for seed in range(seeds):
        chosen = losses(trainer(name, seed), steps)
        with reference_alone():
            exact = losses(trainer(name, seed), steps)
            changed = losses(with_changed_weights(trainer(name, seed), seed), steps)
        of_path.append(np.abs(chosen - exact))
        of_changed.append(np.abs(changed - exact))
    return Difference(np.max(of_path, 0), np.max(of_changed, 0))


def losses(trainer: Trainer, steps: int) -> np.ndarray:
    return np.array([trainer.step(number, 0.0).loss for number in range(steps)])


def trainer(name: str, seed: int) -> Trainer:
    config, data = configuration(name, seed), text()
    model = build_decoder(config, data.vocabulary)
    return Trainer(config, model, data, CPU, torch.float32)


def with_changed_weights(trainer: Trainer, seed: int) -> Trainer:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.mul_(1 + ROUNDING * torch.randn(weight.shape, generator=generator))
    return trainer


@contextmanager
def reference_alone() -> Iterator[None]:
    with patch.object(layers, "attention", reference_attention):
        yield


@cache
def path(name: str) -> str:
    """Return the path that attention takes in training."""
    config = configuration(name, seed=0)
    model = build_decoder(config, text().vocabulary)
    return path_of(model, config, config.train.batch, config.train.length, torch.float32)


def configuration(name: str, seed: int) -> Config:
    config = parse_config(compose([f"encoding={name}", *OVERRIDES, f"seed={seed}"]))
    return replace(config, train=replace(config.train, steps=NEVER, validate_every=NEVER))


def text() -> Data:
    """Return the source of argparse, as bytes."""
    tokens = np.frombuffer(inspect.getsource(argparse).encode(), np.uint8).astype(np.uint16)
    split = Split(tokens, np.array([0, len(tokens)]))
    tokenizer = ByteTokenizer()
    return Data(
        "argparse", "", tokenizer.label, tuple(tokenizer.vocabulary), tokenizer.end_of_text, split, split
    )


def cells(found: Difference) -> list[str]:
    pairs = (found.path[:EARLY], found.changed[:EARLY], found.path, found.changed)
    return [f"{values.max():.1e}" for values in pairs]


if __name__ == "__main__":
    main()
