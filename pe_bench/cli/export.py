"""The options of the `export` command."""

from pathlib import Path
from typing import Annotated

import typer

from pe_bench.cli.options import ResultsDir

EXAMPLES = """\
pe-bench export rope --hf FOLDER
pe-bench export results/runs/rope-s0-1a2b3c4d --hf FOLDER
pe-bench export nope --hf FOLDER --results-dir results"""


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run by encoding, name, the beginning of a name, or path.")
    ],
    hf: Annotated[
        Path, typer.Option("--hf", metavar="FOLDER", help="A new folder, which transformers then loads.")
    ],
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Write a trained run as a checkpoint of Hugging Face.

    It works for encodings that transformers has: rope and its scalings, p_rope, nope
    and sliding_window.
    """
    from pe_bench.experiment.export import export_run

    export_run(run, hf, results_dir)
