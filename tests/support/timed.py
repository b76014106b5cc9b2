"""Timed passes of tiny models."""

import csv
from pathlib import Path
from typing import Any

from pe_bench.inspection.speed import COLUMNS

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


def row(encoding: str, length: int, relative: float | None, **values: Any) -> dict[str, Any]:
    """Return a row of `speed.csv`, without numbers where there is no ratio."""
    numbers = {"milliseconds": 10.0, "tokens_per_second": 1e5, "gflops_per_second": 2.0, "repeats": 5}
    facts = {"encoding": encoding, "setting": "", "model": "tiny", "length": length, "pass": "score"}
    measured = {} if relative is None else {"relative": relative, **numbers}
    return dict.fromkeys(COLUMNS) | facts | {"path": "fused", "status": "ok"} | measured | values
