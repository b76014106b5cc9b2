"""Run directories of realistic size and shape, untrained, written by the functions that write real ones."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.runs.folder import write_config
from pe_bench.runs.job import identity, run_name, setting
from pe_bench.runs.rows import Row, write_rows
from pe_bench.runs.scores import Scores, compute_level, keep_slices, save_scores, score_file
from pe_bench.system.files import write_json
from pe_bench.system.machine import environment, git_commit, utc_now

DATA_HASH = "da7a0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab"
TARGET_HASH = "7a56e7be5c4ffe01"
DOCUMENTS = 64
CONTROLLED = (2, 16)  # times the training length


@dataclass(frozen=True)
class Shape:
    """The number of runs: each learning rate is a table, each base of RoPE a line with several seeds."""

    learning_rates: int
    bases: int
    seeds: int

    @property
    def description(self) -> str:
        return f"{self.learning_rates} learning rates x {self.bases} bases x {self.seeds} seeds"


def write_runs(results_dir: Path, shape: Shape) -> int:
    """Write the runs and return how many rows they have."""
    default = parse_config(compose(["encoding=rope"]))
    targets = default.eval.targets
    documents = np.repeat(
        np.sort(np.arange(targets) % DOCUMENTS), default.eval.resolved_target_tokens(default.train.length)
    )
    sizes = np.random.default_rng(0).integers(1, 4, len(documents))
    return sum(_write_run(results_dir, config, documents, sizes) for config in _configs(default, shape))


def _configs(default: Config, shape: Shape) -> Iterator[Config]:
    for rate in range(shape.learning_rates):
        train = replace(default.train, lr=round(1e-4 * 100 ** (rate / shape.learning_rates), 9))
        for base in range(shape.bases):
            encoding = {**default.encoding, "base": 10_000.0 + 100 * base}
            for seed in range(shape.seeds):
                yield replace(default, train=train, encoding=encoding, seed=seed)


def _write_run(results_dir: Path, config: Config, documents: np.ndarray, sizes: np.ndarray) -> int:
    options = {"class": config.encoding["class"], "base": config.encoding["base"]}
    content = identity(config, DATA_HASH, "float32", [options])
    run = results_dir / "runs" / run_name(config, content)
    run.mkdir(parents=True)
    write_config(run, config)
    write_json(run / "environment.json", environment(torch.device("cpu"), 2))
    overrides = [f"encoding.base={options['base']}", f"train.lr={config.train.lr}", f"seed={config.seed}"]
    write_json(run / "commands.json", [shlex.join(["pe-bench", "train", *overrides])])
    empty = _empty_row(run, config, setting(content), len(documents))
    rows = [_scored(run, row, documents, sizes) for row in _plans(empty, config)]
    write_rows(run / "eval.csv", rows)
    keep_slices(run, {})
    write_json(run / "result.json", {"steps": empty.steps, "loss": 2.5, "data_hash": DATA_HASH})
    return len(rows)


def _plans(empty: Row, config: Config) -> Iterator[Row]:
    """Yield a row for each length and control, and for each length under a second protocol: 20 by default."""
    for length in config.eval.resolved_lengths(config.train.length):
        yield replace(empty, length=length)
        yield replace(empty, length=length, protocol="nonoverlapping")
        if length in [times * config.train.length for times in CONTROLLED]:
            yield from (replace(empty, length=length, control=control) for control in ("window", "swap"))


def _scored(run: Path, row: Row, documents: np.ndarray, sizes: np.ndarray) -> Row:
    """Write random scores that depend on length and control. Return the row with their mean."""
    # The hash in the run's name makes the scores of each run different.
    random = np.random.default_rng([int(row.run[-8:], 16), row.length, len(row.control)])
    level = 2.0 + 8 / row.length + 0.001 * row.length**0.5 + (0.05 if row.control != "none" else 0.0)
    easier = np.random.default_rng(0).normal(0.0, 0.3, DOCUMENTS)[documents]
    nll = np.abs(level + easier + random.normal(0.0, 0.2, len(documents)))
    scores = Scores(nll.astype(np.float32), documents, sizes)
    save_scores(score_file(run, row), scores)
    return replace(row, **compute_level(scores, row.protocol))


def _empty_row(run: Path, config: Config, setting: str, targets: int) -> Row:
    label = f"rope base={config.encoding['base']}"
    return Row(
        run=run.name,
        encoding=label,
        scored_with=label,
        forced=False,
        knows_length=False,
        seed=config.seed,
        model=config.model.name,
        setting=setting,
        train_length=config.train.length,
        length=0,
        protocol="paired",
        control="none",
        stride=None,
        stride_rule="",
        status="ok",
        reason="",
        nll=None,
        perplexity=None,
        bits_per_byte=None,
        context_mean=120.5,
        targets=targets,
        target_tokens=config.eval.resolved_target_tokens(config.train.length),
        documents=DOCUMENTS,
        target_hash=TARGET_HASH,
        data=config.data.name,
        data_hash=DATA_HASH,
        tokenizer="bytes",
        parameters=820_000,
        steps=config.train.total_steps,
        train_tokens=config.train.total_steps * config.train.batch_tokens,
        tokens_per_second=20_000.0,
        peak_memory_mb=512.5,
        device="cpu",
        train_dtype="float32",
        score_dtype="float32",
        threads=2,
        torch=torch.__version__,
        pe_bench=version("pe-bench"),
        git=git_commit(),
        date=utc_now(),
    )
