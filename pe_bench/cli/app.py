"""The commands: they parse and delegate, nothing else. Heavy imports happen inside functions."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="pe-bench",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train a transformer with a positional encoding on short sequences; score it at longer lengths.",
)


def _whole_number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"'{text}' is not a positive whole number")
    return int(text)


LISTS = ("encodings", "modifiers", "models", "data", "tokenizers", "experiments", "keys", "runs")
Count = {"parser": _whole_number, "metavar": "NUMBER"}


def _folder(path: str) -> Path:
    from pe_bench.config.checks import check_folder

    return check_folder(path, "--results-dir")


ResultsDir = Annotated[
    Path,
    typer.Option("--results-dir", parser=_folder, metavar="PATH", help="Where runs and results.csv are."),
]


def _complete(incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_typed

    return complete_typed(incomplete)


def _complete_encodings(incomplete: str) -> list[str]:
    from pe_bench.config.groups import names_in

    return [name for name in names_in("encoding") if name.startswith(incomplete)]


def _complete_lists(incomplete: str) -> list[str]:
    return [name for name in LISTS if name.startswith(incomplete)]


def _complete_speed(incomplete: str) -> list[str]:
    return [*_complete_encodings(incomplete), *(_complete(incomplete) if incomplete else [])]


def _complete_with(incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_with

    return complete_with(incomplete)


def _complete_runs(incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_run

    return complete_run(incomplete)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Examples: pe-bench train encoding=rope | pe-bench train -m encoding=rope,alibi seed=0,1,2 | "
    "pe-bench train encoding=rope modifier=[logn] train.length=256 | pe-bench train --cfg job",
)
def train(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Hydra's overrides, in any order.", autocompletion=_complete
        ),
    ] = None,
) -> None:
    """Train, score at eval.lengths, print the table; what is done already is not done again.

    Hydra's flags: -m for a sweep, --cfg job to see every key, --info, --config-dir DIR.
    """
    from pe_bench.cli.train import run_train

    run_train([*(arguments or []), *context.args])


@app.command(
    epilog="Examples: pe-bench eval --lengths 512,2048 | pe-bench eval rope-s0-1a2b3c4d --protocol sliding | "
    "pe-bench eval --with yarn,rope_ntk,sliding_window --with 'yarn factor=4 beta_fast=16'"
)
def eval(  # noqa: A001  (the command's name)
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs by name or path; the newest finished one.",
            autocompletion=_complete_runs,
        ),
    ] = None,
    lengths: Annotated[str | None, typer.Option(help="Context lengths in tokens, such as 512,2048.")] = None,
    protocol: Annotated[str | None, typer.Option(help="paired, nonoverlapping or sliding.")] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="Targets have this much context, so that lengths up to it share them.", **Count),
    ] = None,
    targets: Annotated[
        int | None, typer.Option(help="Target blocks at each length (paired).", **Count)
    ] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens between windows (sliding).", **Count)] = None,
    controls: Annotated[
        str | None, typer.Option(help="Of paired: auto (2 and 16 times the training length), all or none.")
    ] = None,
    per_position: Annotated[
        bool, typer.Option("--per-position", help="Also the NLL by position, at the longest length.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="float32, or bfloat16 (bf16), whose scores get a table of their own.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    threads: Annotated[int | None, typer.Option(help="Processor cores to use.", **Count)] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME[,NAME]... | 'NAME KEY=VALUE ...'",
            help="Score the weights under other encodings as well; repeatable.",
            autocompletion=_complete_with,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also under those that may not follow the trained one.")
    ] = False,
    config_dir: Annotated[
        list[Path] | None, typer.Option(help="A folder with encoding/NAME.yaml of your own, for --with.")
    ] = None,
    code: Annotated[
        list[Path] | None, typer.Option(help="The file of a run's own encoding, to trust it.")
    ] = None,
    data_path: Annotated[Path | None, typer.Option(help="Where a run's data lies now.")] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="Where tokenized data is kept.")] = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Score trained runs at other lengths, under another protocol, or under other encodings."""
    from pe_bench.cli.eval import score_runs
    from pe_bench.scoring.other_encodings import read_with

    changes = {"protocol": protocol, "max_length": max_length, "targets": targets, "stride": stride}
    changes |= {"controls": controls, "per_position": per_position or None, "precision": precision}
    machine = {"device": device, "threads": threads, "cache_dir": str(cache_dir) if cache_dir else None}
    asked = read_with(with_ or [], config_dir or [], force)
    score_runs(runs or [], lengths, changes, machine, code or [], results_dir, data_path, asked)


@app.command(
    epilog="Examples: pe-bench report --baseline rope | pe-bench report --where 'seed<3' --sort 512 | "
    "pe-bench report --by train.lr | pe-bench report --plot curve.png --html report.html"
)
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Only these runs.", autocompletion=_complete_runs),
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="Only this protocol.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Only rows that meet it, such as encoding=rope,alibi or seed<3; repeatable.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="A line for each value of a key, such as seed or train.lr.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help="A length, or name, parameters, tokens_per_second, peak_memory_mb.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="The encoding to compare the others with.")] = None,
    margin: Annotated[float | None, typer.Option(help="Bits per byte within which a change holds.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the numbers to a file; - prints them.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown; - prints it.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write it as LaTeX with booktabs; - prints it.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one page with tables, curves and commands.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves to a PNG, SVG or PDF file.")] = None,
    plot_of: Annotated[
        str | None,
        typer.Option(metavar="VALUES", help="What --plot and --html draw: levels, or change."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="With intervals, controls, speed and all notes.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Not only the newest run's table.")] = False,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """A table over all runs: levels, changes, verdicts, use of context, break points."""
    from pe_bench.cli.outputs import Outputs
    from pe_bench.cli.report import print_report, read_selection, read_view

    selection = read_selection(where or [], by, sort, baseline, margin)
    outputs = Outputs(csv, markdown, latex, html, plot, read_view(plot_of, plot or html))
    print_report(
        results_dir, runs or [], protocol, selection, outputs, details=details, everything=everything
    )


@app.command(
    epilog="Examples: pe-bench check rope | pe-bench check yarn factor=4 | pe-bench check my.py:MyEncoding | "
    "pe-bench check --all"
)
def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | FILE.py:CLASS]... [KEY=VALUE]...",
            help="Encodings, and options for them.",
            autocompletion=_complete_encodings,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every encoding.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every property, with what was measured.")
    ] = False,
    config_dir: Annotated[
        list[Path] | None, typer.Option(help="A folder with encoding/NAME.yaml of your own.")
    ] = None,
) -> None:
    """Check an encoding: causal, exact in blocks and fused, finite at 65,536 tokens, what it claims.

    Exit code 1 where a property fails, with by how much and where to look.
    """
    from pe_bench.cli.check import check_encodings

    check_encodings(arguments or [], everything, [str(path) for path in config_dir or []], verbose)


@app.command(
    name="list",
    epilog="Examples: pe-bench list encodings --family rotary | pe-bench list encodings --csv - | "
    "pe-bench list runs",
)
def list_(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="LIST", help=f"{', '.join(LISTS[:-1])} or {LISTS[-1]}.", autocompletion=_complete_lists
        ),
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only encodings of this family.", metavar="NAME")] = None,
    papers: Annotated[
        bool, typer.Option("--papers", help="Where encodings are from, and what becomes of long texts.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write the list to a file; - prints it as CSV.", metavar="FILE")
    ] = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """List what there is to choose from, and what was run."""
    from pe_bench.cli.list import print_list

    print_list(name, results_dir, family, csv, papers)


@app.command(
    epilog="Examples: pe-bench show yarn | pe-bench show rope alibi t5 --plot compare.png | "
    "pe-bench show rope base=500 train.length=256 | pe-bench show my.py:MyEncoding --plot mine.svg"
)
def show(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | FILE.py:CLASS]... [KEY=VALUE]...",
            help="Encodings, and Hydra's overrides for them as in train.",
            autocompletion=_complete_encodings,
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw them to a PNG, SVG or PDF file.")] = None,
    config_dir: Annotated[
        list[Path] | None, typer.Option(help="A folder with encoding/NAME.yaml of your own.")
    ] = None,
) -> None:
    """An encoding's equation, options and claims; with --plot what it does to attention, as a picture."""
    from pe_bench.cli.show import show_encodings

    show_encodings(arguments or [], plot, [str(path) for path in config_dir or []])


@app.command(
    epilog="Examples: pe-bench speed rope alibi --lengths 512,2048 | pe-bench speed t5 --train model=small | "
    "pe-bench speed lm_infinite encoding.window=64 threads=1 | pe-bench speed my.py:MyEncoding"
)
def speed(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | FILE.py:CLASS]... [KEY=VALUE]...",
            help="Encodings, all if none is named, and Hydra's overrides as in train.",
            autocompletion=_complete_speed,
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of a window, such as 512,2048.")] = "512,2048,8192",
    train: Annotated[bool, typer.Option("--train", help="Time training steps, not scoring.")] = False,
    repeats: Annotated[
        int | None, typer.Option(help="Timed passes of each; 5 or more, fewer of slow ones.", **Count)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The CSV file; the picture stands beside. RESULTS_DIR/speed.csv")
    ] = None,
    config_dir: Annotated[
        list[Path] | None, typer.Option(help="A folder with encoding/NAME.yaml of your own.")
    ] = None,
) -> None:
    """Time and memory of each encoding at each length, relative to nope; the path that attention took.

    A table; a picture, results/speed.png; and rows in results/speed.csv, behind those of other measurements.
    """
    from pe_bench.cli.speed import time_encodings

    directories = [str(path) for path in config_dir or []]
    time_encodings(arguments or [], lengths, train, repeats, output, directories)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"pe-bench {version('pe-bench')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train a transformer with a positional encoding on short sequences; score it at longer lengths."""
