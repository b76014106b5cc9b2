"""A program that calls pe-bench with types: pyright checks it in strict mode, as elsewhere."""

# pyright: strict
from pathlib import Path

import torch
from torch import Tensor

import pe_bench
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    """A penalty on the root of the distance."""

    def __init__(self, n_heads: int, strength: float = 0.5) -> None:
        super().__init__()
        self.strength = torch.nn.Parameter(torch.full((n_heads,), strength))

    def distance_bias(self, distance: Tensor) -> Tensor:
        return -self.strength[:, None] * distance.sqrt()


def compare(folder: Path) -> tuple[list[str], str, int]:
    """Return the names of the runs, the answer of a try, and how many rows were scored."""
    runs = [pe_bench.train(f"encoding={name}", results_dir=folder) for name in ("rope", "alibi")]
    scored = [pe_bench.evaluate(run, [256, 512], "yarn", results_dir=folder) for run in runs]
    pe_bench.probe(scored[0], 256)
    try:
        pe_bench.extend("rope", "4x", ["yarn"], tokens=128_000, results_dir=folder)
    except (pe_bench.UserError, pe_bench.RunError) as error:
        print(error)
    outcome = pe_bench.try_change("alibi", against="rope", results_dir=folder)
    return [run.name for run in scored], outcome.answer, len(pe_bench.results(folder))
