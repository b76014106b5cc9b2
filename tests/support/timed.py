"""Timed passes of tiny models."""

import csv
from pathlib import Path

from pe_bench.inspection.speed import Row

TINY = (
    "threads=1",
    *("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24"),
    *("train.length=16", "train.batch_tokens=64"),
)
LENGTHS = ("--lengths", "16,32", "--repeats", "1")
TRAINED = [argument for argument in TINY if not argument.startswith("train.length")]


def written(path: Path = Path("results") / "speed.csv") -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row(encoding: str, length: int, relative: float | None, **values) -> Row:
    numbers = {"milliseconds": 10.0, "tokens_per_second": 1e5, "relative": relative, "repeats": 5}
    measured = {} if relative is None else numbers
    return Row(encoding, "", "tiny", length, "score", 1, "fused", **measured, **values)
