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
            help="A study, and keys of the machine: threads, device, cache_dir, hydra/launcher.",
            autocompletion=_complete_studies,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Toy models, in minutes: does everything work?")
    ] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="The study named gpu, which needs a GPU.")] = False,
    text: Annotated[
        str,
        typer.Option(metavar="stdlib|DIR", help="The text: the standard library's, or a folder of files."),
    ] = "stdlib",
    write_table: Annotated[
        bool, typer.Option("--write-table", help="Make our levels the study's table (for maintainers).")
    ] = False,
    config_dir: ConfigDir = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Repeat a paper's experiment at our scale, and test its claims.

    Runs what is missing; Ctrl-C and the same command go on. Then our levels are held against the
    study's table (exit code 1 where they differ), and the paper's claims against our runs: each holds,
    is contradicted or stays unclear. Without NAME it lists the studies.
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
