"""The commands: they parse and delegate, nothing else. Heavy imports happen inside functions."""

from pathlib import Path
from typing import Annotated

import typer

from pe_bench.cli.export import EXAMPLES as EXAMPLES_OF_EXPORT
from pe_bench.cli.export import export
from pe_bench.cli.help import Command, TrainCommand, first_of
from pe_bench.cli.options import (
    FAMILIES,
    LISTS,
    PROTOCOLS,
    SORTS,
    AllEncodingsAndKeys,
    CacheDir,
    Code,
    ConfigDir,
    Controls,
    DataPath,
    Device,
    Encodings,
    EncodingsAndKeys,
    Force,
    KeyTokensOf,
    Lengths,
    Margin,
    MaxLength,
    PerPosition,
    Plain,
    Precision,
    Protocol,
    Repeats,
    ResultsDir,
    Runs,
    Slice,
    SpeedFile,
    Stride,
    Targets,
    Threads,
    Version,
    Where,
    With,
    complete,
    complete_baseline,
    complete_by,
    config_folder,
)
from pe_bench.cli.probe import EXAMPLES as EXAMPLES_OF_PROBE
from pe_bench.cli.probe import probe
from pe_bench.cli.reproduce import EXAMPLES as EXAMPLES_OF_REPRODUCE
from pe_bench.cli.reproduce import reproduce

app = typer.Typer(
    name="pe-bench",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(
    cls=TrainCommand,
    epilog="""\
pe-bench train encoding=rope
pe-bench train encoding=rope modifier=[logn] train.length=256
pe-bench train -m encoding=rope,alibi seed=0,1,2     # a sweep of six runs
pe-bench train --cfg job                             # every key and its value""",
)
def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys to change, in any order.", autocompletion=complete),
    ] = None,
    multirun: Annotated[
        bool, typer.Option("--multirun", "-m", help="A sweep: train each combination of listed values.")
    ] = False,
    cfg: Annotated[
        str | None,
        typer.Option(
            "--cfg",
            "-c",
            metavar="job|hydra|all",
            help="Print every key and its value instead of training.",
            autocompletion=first_of("job", "hydra", "all"),
        ),
    ] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="With --cfg: print computed values.")] = False,
    info: Annotated[
        str | None,
        typer.Option(
            "--info",
            "-i",
            metavar="WHAT",
            help="Print how Hydra composes the configuration: all, config, defaults, defaults-tree, "
            "plugins or searchpath.",
            autocompletion=first_of("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
        ),
    ] = None,
    config_dir: Annotated[
        Path | None,
        typer.Option(
            parser=config_folder,
            metavar="FOLDER",
            help="A folder with your own encoding/NAME.yaml and similar files.",
        ),
    ] = None,
) -> None:
    """Train a model, score it at longer lengths, print the table. Finished work is reused."""
    from pe_bench.cli.train import read_command, run_train

    run_train(read_command(overrides or [], multirun, cfg, resolve, info, config_dir))


@app.command(
    cls=Command,
    epilog="""\
pe-bench eval --lengths 512,2048
pe-bench eval rope-s0-1a2b3c4d --protocol sliding
pe-bench eval rope alibi --where 'seed<3' --lengths 4096
pe-bench eval --with yarn,rope_ntk --with 'yarn factor=4 beta_fast=16'
pe-bench eval hf:FOLDER data=files data.path=texts --lengths 4096 --with yarn""",
)
def eval(  # noqa: A001  (the command's name)
    runs: Runs = None,
    where: Where = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Score every finished run, not only the last.")
    ] = False,
    lengths: Lengths = None,
    protocol: Protocol = None,
    max_length: MaxLength = None,
    targets: Targets = None,
    stride: Stride = None,
    controls: Controls = None,
    per_position: PerPosition = False,
    precision: Precision = None,
    device: Device = None,
    threads: Threads = None,
    with_: With = None,
    force: Force = False,
    plain: Plain = False,
    key_tokens_of: KeyTokensOf = None,
    config_dir: ConfigDir = None,
    code: Code = None,
    data_path: DataPath = None,
    cache_dir: CacheDir = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Score runs or checkpoints at other lengths or encodings.

    Without RUN, --where and --all, the run that finished last is scored. Options
    replace values of the run's configuration. hf:FOLDER and hf:OWNER/NAME are
    checkpoints of Hugging Face, with data and lengths as KEY=VALUE.
    """
    from pe_bench.cli.checkpoint import has_checkpoint, score_named_checkpoint
    from pe_bench.cli.eval import score_runs
    from pe_bench.errors import require
    from pe_bench.scoring.other_encodings import read_with

    changes = {"protocol": protocol, "max_length": max_length, "targets": targets, "stride": stride}
    changes |= {"controls": controls, "per_position": per_position or None, "precision": precision}
    machine = {"device": device, "threads": threads, "cache_dir": str(cache_dir) if cache_dir else None}
    request = read_with(with_ or [], config_dir or [], force, has_code=bool(code))
    if has_checkpoint(runs or []):
        of_runs = {"--where": where, "--all": everything, "--key-tokens-of": key_tokens_of, "--code": code}
        score_named_checkpoint(
            *(runs or [], lengths, changes, machine, results_dir, data_path, request),
            [option for option, given in of_runs.items() if given],
            plain=plain,
        )
        return
    require(not plain, "--plain is for a checkpoint: say pe-bench eval hf:FOLDER --plain")
    score_runs(
        runs or [],
        lengths,
        changes,
        machine,
        code or [],
        results_dir,
        data_path,
        request,
        where or [],
        key_tokens_of,
        everything=everything,
    )


app.command(cls=Command, epilog=EXAMPLES_OF_PROBE)(probe)


@app.command(
    cls=Command,
    epilog="""\
pe-bench report --baseline rope
pe-bench report --where 'seed<3' --sort 512
pe-bench report --by train.lr
pe-bench report --plot curve.png --html report.html""",
)
def report(
    runs: Runs = None,
    protocol: Annotated[
        str | None, typer.Option(help="Only this protocol.", autocompletion=first_of(*PROTOCOLS))
    ] = None,
    where: Where = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Show a line for each value of a key, such as seed or train.lr.", autocompletion=complete_by
        ),
    ] = None,
    best: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Only the best value of a key for each encoding, such as train.lr, by validation loss.",
            autocompletion=complete_by,
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(help=f"Sort by a length, or by {', '.join(SORTS)}.", autocompletion=first_of(*SORTS)),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="The encoding to compare the others with.", autocompletion=complete_baseline),
    ] = None,
    margin: Margin = None,
    slice_: Slice = None,
    csv: Annotated[Path | None, typer.Option(help="Write the numbers to a file; - prints them.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown; - prints it.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write it as LaTeX with booktabs; - prints it.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one page with tables, curves and commands.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves to a PNG, SVG or PDF file.")] = None,
    plot_of: Annotated[
        str | None,
        typer.Option(metavar="VALUES", help="What --plot and --html draw: levels or change."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Add intervals, controls, speed and all notes.")
    ] = False,
    probes: Annotated[
        bool, typer.Option("--probe", help="Show what pe-bench probe found, instead of levels.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every table, not only the newest run's.")
    ] = False,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Compare runs in a table, and write it to files or draw it."""
    from pe_bench.cli.outputs import Outputs
    from pe_bench.cli.report import print_probes, print_report, read_view
    from pe_bench.interface.results import read_selection

    selection = read_selection(where or [], by, sort, baseline, margin, best, slice_)
    outputs = Outputs(csv, markdown, latex, html, plot, read_view(plot_of, plot or html))
    if probes:
        print_probes(results_dir, runs or [], selection, outputs, everything=everything)
        return
    print_report(
        results_dir, runs or [], protocol, selection, outputs, details=details, everything=everything
    )


@app.command(
    cls=Command,
    epilog="""\
pe-bench check rope
pe-bench check yarn factor=4
pe-bench check my.py:MyEncoding --verbose
pe-bench check --all""",
)
def check(
    arguments: Encodings = None,
    everything: Annotated[bool, typer.Option("--all", help="Every encoding.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every property, with what was measured.")
    ] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Check that an encoding is correct: the shipped ones, or yours.

    It must be causal, exact in blocks and on fast paths, finite at 65,536 tokens, and true to its
    claims. Exit code 1 if a property fails.
    """
    from pe_bench.cli.check import check_encodings

    check_encodings(arguments or [], everything, config_dir or [], verbose)


@app.command(
    name="list",
    cls=Command,
    epilog="""\
pe-bench list encodings --family rotary
pe-bench list encodings --csv -
pe-bench list runs""",
)
def list_(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="LIST", help=f"{', '.join(LISTS[:-1])} or {LISTS[-1]}.", autocompletion=first_of(*LISTS)
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="Only encodings of this family.", metavar="NAME", autocompletion=first_of(*FAMILIES)
        ),
    ] = None,
    papers: Annotated[
        bool,
        typer.Option("--papers", help="Show where encodings are from, and what they do with long texts."),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write the list to a file; - prints it as CSV.", metavar="FILE")
    ] = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """List what you can choose from, and what was run."""
    from pe_bench.cli.list import print_list

    print_list(name, results_dir, family, csv, papers)


@app.command(
    cls=Command,
    epilog="""\
pe-bench show yarn
pe-bench show rope alibi t5 --plot compare.png
pe-bench show rope base=500 train.length=256
pe-bench show my.py:MyEncoding --plot mine.svg""",
)
def show(
    arguments: EncodingsAndKeys = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw them to a PNG, SVG or PDF file.")
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Show an encoding's equation, options and claims; or a task."""
    from pe_bench.cli.show import show_encodings

    show_encodings(arguments or [], plot, config_dir or [])


@app.command(
    cls=Command,
    epilog="""\
pe-bench speed rope alibi --lengths 512,2048
pe-bench speed t5 --train model=small
pe-bench speed lm_infinite encoding.window=64 threads=1
pe-bench speed my.py:MyEncoding""",
)
def speed(
    arguments: AllEncodingsAndKeys = None,
    lengths: Annotated[str, typer.Option(metavar="N,N", help="Window lengths in tokens.")] = "512,2048,8192",
    train: Annotated[bool, typer.Option("--train", help="Time training steps instead of scoring.")] = False,
    repeats: Repeats = None,
    output: SpeedFile = None,
    config_dir: ConfigDir = None,
) -> None:
    """Measure time and memory of encodings, relative to nope.

    Prints a table, draws results/speed.png, and adds rows to results/speed.csv.
    """
    from pe_bench.cli.speed import time_encodings

    time_encodings(arguments or [], lengths, train, repeats, output, config_dir or [])


app.command(cls=Command, epilog=EXAMPLES_OF_EXPORT)(export)


app.command(cls=Command, epilog=EXAMPLES_OF_REPRODUCE)(reproduce)


@app.callback()
def options(
    version: Version = False,
) -> None:
    """Train short, test long: compare positional encodings by length extrapolation."""
