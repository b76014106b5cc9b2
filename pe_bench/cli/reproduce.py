"""The options of the `reproduce` command."""

from pathlib import Path
from typing import Annotated

import typer

from pe_bench.cli.options import ConfigDir, ResultsDir

EXAMPLES = """\
pe-bench reproduce                       # the studies, and what is finished
pe-bench reproduce alibi --quick         # a toy of it: does everything work?
pe-bench reproduce alibi
pe-bench reproduce alibi --text books    # the same on texts in a folder
pe-bench reproduce alibi threads=1 hydra/launcher=joblib"""


def _complete_studies(incomplete: str) -> list[str]:
    from pe_bench.config.groups import names_in

    return [name for name in names_in("study") if name.startswith(incomplete)]


def reproduce(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME | KEY=VALUE",
            help="A study, then settings of this machine: threads, device, cache_dir, hydra/launcher.",
            autocompletion=_complete_studies,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train toy models, in minutes, to see that everything works.")
    ] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Run the study named gpu, which needs a GPU.")] = False,
    text: Annotated[
        str,
        typer.Option(metavar="stdlib|DIR", help="The text: Python's standard library, or a folder of files."),
    ] = "stdlib",
    write_table: Annotated[
        bool, typer.Option("--write-table", help="Make our levels the study's table (for maintainers).")
    ] = False,
    config_dir: ConfigDir = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Repeat a paper's experiment at our scale, and test its claims.

    Trains and scores what is missing; after Ctrl-C, repeat the command to continue. Then compares
    our levels with the study's table (exit code 1 if they differ), and tests the paper's claims on our
    runs: each holds, is contradicted or stays unclear. Without NAME, lists the studies.
    """
    from pe_bench.cli.study import reproduce_study

    reproduce_study(
        arguments or [],
        is_quick=quick,
        is_gpu=gpu,
        text=text,
        writes_table=write_table,
        search=config_dir or [],
        results_dir=results_dir,
    )
