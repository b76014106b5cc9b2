"""Measure what larger and more target blocks buy: `python benchmarks/target_blocks.py RUN`.

Prints the standard error, over documents, of the change against the training length: with blocks of 16, 32,
64 and 128 tokens, and with 96, 192 and 384 of them. A smaller block is the beginning of a larger one. Then
the correlation between the changes of parts of 16 tokens that lie one, two, ... parts apart in a block. The
run is scored in a temporary copy.
"""

import argparse
import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from pe_bench.commands.evaluate import load_finished, score_finished
from pe_bench.commands.job import load, trusted
from pe_bench.config.schema import Config
from pe_bench.runs.folder import read_config
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.targets import TargetBlocks

SIZES, COUNTS, PART = (16, 32, 64, 128), (96, 192, 384), 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--lengths", default="192,256,2048", help="separated by commas (%(default)s)")
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    config = trusted(read_config(given.run), code=())
    evaluation = replace(
        config.eval,
        protocol="paired",
        lengths=lengths,
        max_length=max(lengths),
        target_tokens=max(SIZES),
        targets=max(COUNTS),
        controls="none",
        per_position=False,
    )
    blocks, changes = measured(given.run, replace(config, eval=evaluation))
    print(f"{given.run.name}: {len(blocks)} blocks in {len(np.unique(blocks.document))} documents")
    for length, change in changes.items():
        show(length, change, blocks)


def measured(run: Path, config: Config) -> tuple[TargetBlocks, dict[int, np.ndarray]]:
    """Return the blocks, and for each length the change of every target in bits [blocks, tokens]."""
    _, plans = load(config)
    blocks = plans[0].blocks
    assert blocks is not None and len({plan.target_hash for plan in plans}) == 1, "one set of targets"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / run.name
        shutil.copytree(run, copy)
        rows = score_finished(load_finished(copy, config), Path(folder))
        nll = {row.length: load_scores(score_file(copy, row)).nll for row in rows if row.status == "ok"}
    bits = {length: nats.reshape(len(blocks), -1) / math.log(2) for length, nats in nll.items()}
    trained = bits.pop(config.train.length)
    return blocks, {length: found - trained for length, found in bits.items()}


def show(length: int, change: np.ndarray, blocks: TargetBlocks) -> None:
    print(f"\n{length}: standard error of the change, in bits per token")
    print("blocks " + "".join(f"{f'of {size}':>10}" for size in SIZES))
    for count in COUNTS:
        kept = blocks.turn < count
        errors = [standard_error(change[kept, :size], blocks.document[kept]) for size in SIZES]
        print(f"{count:6} " + "".join(f"{error:10.4f}" for error in errors), flush=True)
    parts = change.reshape(len(blocks), -1, PART).mean(2)
    correlation = np.corrcoef(parts.T)
    apart = [float(np.diag(correlation, distance).mean()) for distance in range(1, len(correlation))]
    print(f"correlation of parts of {PART}, by distance: " + " ".join(f"{value:+.2f}" for value in apart))


def standard_error(change: np.ndarray, document: np.ndarray) -> float:
    """Return that of the mean over documents."""
    means = [change[document == index].mean() for index in np.unique(document)]
    return float(np.std(means, ddof=1)) / math.sqrt(len(means))


if __name__ == "__main__":
    main()
