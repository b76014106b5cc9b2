"""The commands: their options, help and examples. What each does is a function of another file."""

from pathlib import Path
from typing import Annotated

import typer

from pe_bench.cli.options import (
    TrainCommand,
    app,
    arguments,
    command,
    complete_file,
    complete_keys,
    complete_run,
    complete_speed,
    config_folder,
    count,
    first_of,
    flag,
    number,
    option,
    results_folder,
)

PROTOCOLS = ("paired", "nonoverlapping", "sliding", "task")
SLICES = ("all", "recall", "novel", "key")
SORTS = ("name", "parameters", "tokens_per_second", "peak_memory_mb")
LISTS = (
    *("encodings", "modifiers", "models", "data", "tasks", "tokenizers", "experiments", "keys", "runs"),
    "studies",
)
FAMILIES = (
    *("none", "input", "ids", "rotary", "bias", "relative"),
    *("content", "distance", "mask", "scale", "schedule"),
)
PRINTED = {
    "cfg": ("job", "hydra", "all"),
    "info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}
NAMES = "NAME | FILE.py:CLASS | KEY=VALUE"

RESULTS = {
    "results_dir": Annotated[
        Path,
        typer.Option(parser=results_folder, metavar="DIR", help="The folder of runs and results.csv."),
    ]
}
CONFIG_DIR = {
    "config_dir": option(
        "A folder with your encoding/NAME.yaml.", kind=Path, many=True, parser=config_folder, metavar="DIR"
    )
}
RUNS = {
    "runs": arguments("RUN", "Runs by encoding, name, the beginning of a name, or path.", complete_run),
    "where": option(
        "Only what meets the condition, such as encoding=rope,alibi or seed<3; repeatable.",
        many=True,
        metavar="CONDITION",
    ),
}
# Of `eval` and of `probe`, by the names that the arguments of the API's functions have.
SCORING = {
    "precision": option(
        "float32, or bfloat16 (bf16), which is coarser and has its own table.",
        metavar="NAME",
        complete=first_of("float32", "bfloat16"),
    ),
    "device": option("auto, cpu or cuda.", metavar="NAME", complete=first_of("auto", "cpu", "cuda")),
    "threads": count("Processor cores."),
    "with_": option(
        "Score the weights under other encodings too; 'NAME KEY=VALUE' sets options; repeatable.",
        "--with",
        many=True,
        metavar="NAME,NAME",
        complete=complete_file("encoding"),
    ),
    "force": flag("--force", "Score under incompatible encodings, or changed code, and label the rows."),
    "plain": flag("--plain", "Score a checkpoint with its own attention, without --with."),
    **CONFIG_DIR,
    "code": option(
        "Trust FILE as the code of a run's custom encoding.", kind=Path, many=True, metavar="FILE"
    ),
    "data_path": option("The data's new location, if it moved.", kind=Path, metavar="DIR"),
    "cache_dir": option("Where tokenized data is kept.", kind=Path, metavar="DIR"),
    **RESULTS,
}


command(
    "train",
    "pe_bench.cli.train:run_train",
    {
        "overrides": arguments("KEY=VALUE", "Keys to change, in any order.", complete_keys),
        "multirun": flag("--multirun -m", "A sweep: train each combination of listed values."),
        "cfg": option(
            "Print every key and its value instead of training.",
            "--cfg",
            "-c",
            metavar="job|hydra|all",
            complete=first_of(*PRINTED["cfg"]),
        ),
        "resolve": flag("--resolve", "With --cfg: print computed values."),
        "info": option(
            "Print how Hydra composes the configuration: all, config, defaults, defaults-tree, "
            "plugins or searchpath.",
            "--info",
            "-i",
            metavar="WHAT",
            complete=first_of(*PRINTED["info"]),
        ),
        "config_dir": option(
            "A folder with your own encoding/NAME.yaml and similar files.",
            kind=Path,
            parser=config_folder,
            metavar="FOLDER",
        ),
    },
    """Train a model, score it at longer lengths, print the table. Finished work is reused.""",
    """
    pe-bench train encoding=rope
    pe-bench train encoding=rope modifier=[logn] train.length=256
    pe-bench train -m encoding=rope,alibi seed=0,1,2     # a sweep of six runs
    pe-bench train --cfg job                             # every key and its value""",
    TrainCommand,
)
command(
    "eval",
    "pe_bench.cli.score:evaluate",
    {
        **RUNS,
        "everything": flag("--all", "Score every finished run, not only the last."),
        "lengths": option("Context lengths in tokens.", metavar="N,N"),
        "protocol": option(
            "paired, nonoverlapping or sliding.", metavar="NAME", complete=first_of(*PROTOCOLS)
        ),
        "max_length": count(
            "Score the same targets at every length up to this.  [default: 16 x training length]"
        ),
        "targets": count("Target blocks at each length (paired). Only new blocks are scored."),
        "stride": count("Tokens between windows (sliding)."),
        "controls": option(
            "auto (2 and 16 x training length), offset (auto, and moved positions), all or none (paired).",
            metavar="NAME",
            complete=first_of("auto", "offset", "all", "none"),
        ),
        "per_position": flag("--per-position", "Also score by position, at the longest length."),
        "key_tokens_of": option(
            "Choose key targets by another run's scores (report --slice key).",
            metavar="RUN",
            complete=complete_run,
        ),
        **SCORING,
    },
    """
    Score runs or checkpoints at other lengths or encodings.

    Without RUN, --where and --all, the run that finished last is scored. Options
    replace values of the run's configuration. hf:FOLDER and hf:OWNER/NAME are
    checkpoints of Hugging Face, with data and lengths as KEY=VALUE.""",
    """
    pe-bench eval --lengths 512,2048
    pe-bench eval rope-s0-1a2b3c4d --protocol sliding
    pe-bench eval rope alibi --where 'seed<3' --lengths 4096
    pe-bench eval --with yarn,rope_ntk --with 'yarn factor=4 beta_fast=16'
    pe-bench eval hf:FOLDER data=files data.path=texts --lengths 4096 --with yarn""",
)
command(
    "probe",
    "pe_bench.cli.score:probe",
    {
        **RUNS,
        "everything": flag("--all", "Probe every finished run, not only the last."),
        "lengths": option(
            "Window lengths in tokens, from 128.  [default: 1, 2, 4 and 16 x training length]", metavar="N,N"
        ),
        "depths": count("Number of evenly spaced places of the span, from start to end.  [default: 5]"),
        "windows": count("Windows at each length and depth; a larger number reuses scores.  [default: 64]"),
        "task": option(
            "Ask a checkpoint prompts of RULER instead: niah_multikey_3, vt or fwe.", metavar="NAME,NAME"
        ),
        "plot": option("Draw a heat map by length and depth to a PNG, SVG or PDF file.", kind=Path),
        **SCORING,
    },
    """
    Ask runs or checkpoints to find a span of the text.

    A window of validation text ends with the first half of a span that it has
    somewhere: does that make the second half likelier, and the likeliest of eight
    endings? No judge model is needed. Without RUN, --where and --all, the run that
    finished last is probed. Finished scores are reused; report --probe shows them.""",
    """
    pe-bench probe --lengths 512,2048
    pe-bench probe rope alibi --depths 3 --windows 32
    pe-bench probe rope --lengths 256 --with yarn,rope_ntk --plot probe.png
    pe-bench probe hf:FOLDER data=files data.path=texts --lengths 4096
    pe-bench probe hf:FOLDER --task niah_multikey_3,vt,fwe --lengths 4096""",
)
command(
    "report",
    "pe_bench.cli.report:report",
    {
        "runs": RUNS["runs"],
        "protocol": option("Only this protocol.", complete=first_of(*PROTOCOLS)),
        "where": RUNS["where"],
        "by": option("Show a line for each value of a key, such as seed or train.lr."),
        "best": option(
            "Only the best value of a key for each encoding, such as train.lr, by validation loss.",
            metavar="KEY",
        ),
        "sort": option(f"Sort by a length, or by {', '.join(SORTS)}.", complete=first_of(*SORTS)),
        "baseline": option("The encoding to compare the others with."),
        "margin": option(
            "A change of up to this many bits per byte counts as holding.",
            kind=float,
            parser=number,
            metavar="VALUE",
        ),
        "slice_": option(
            f"Only some of the targets: {', '.join(SLICES[1:])} (docs/measuring.md).",
            "--slice",
            complete=first_of(*SLICES),
        ),
        "lengths": option("Show these lengths beside the training length.", metavar="N,N"),
        "csv": option("Write the numbers to a file; - prints them.", kind=Path),
        "markdown": option("Write the table as Markdown; - prints it.", kind=Path),
        "latex": option("Write it as LaTeX (booktabs, graphicx); - prints it.", kind=Path),
        "html": option("Write one page with tables, curves and commands.", kind=Path),
        "plot": option("Draw the curves to a PNG, SVG or PDF file.", kind=Path),
        "plot_of": option("What --plot and --html draw: levels or change.", metavar="VALUES"),
        "details": flag("--details", "Add intervals, controls, speed and all notes."),
        "probe": flag("--probe", "Show what pe-bench probe found, instead of levels."),
        "everything": flag("--all", "Print every table, not only the newest run's."),
        **RESULTS,
    },
    """Compare runs in a table, and write it to files or draw it.""",
    """
    pe-bench report --baseline rope
    pe-bench report --where 'seed<3' --sort 512
    pe-bench report --by train.lr
    pe-bench report --plot curve.png --html report.html""",
)
command(
    "check",
    "pe_bench.cli.inspect:check_encodings",
    {
        "arguments": arguments(NAMES, "Encodings and their options.", complete_file("encoding")),
        "everything": flag("--all", "Every encoding."),
        "verbose": flag("--verbose -v", "Every property, with what was measured."),
        **CONFIG_DIR,
    },
    """
    Check that an encoding is correct: the shipped ones, or yours.

    It must be causal, exact in blocks and on fast paths, finite at 65,536 tokens, and true to its
    claims. Exit code 1 if a property fails.""",
    """
    pe-bench check rope
    pe-bench check yarn factor=4
    pe-bench check my.py:MyEncoding --verbose
    pe-bench check --all""",
)
command(
    "list",
    "pe_bench.cli.list:print_list",
    {
        "name": Annotated[
            str | None,
            typer.Argument(
                metavar="LIST",
                help=f"{', '.join(LISTS[:-1])} or {LISTS[-1]}.",
                autocompletion=first_of(*LISTS),
            ),
        ],
        "family": option("Only encodings of this family.", metavar="NAME", complete=first_of(*FAMILIES)),
        "papers": flag("--papers", "Show where encodings are from, and what they do with long texts."),
        "csv": option("Write the list to a file; - prints it as CSV.", kind=Path, metavar="FILE"),
        **RESULTS,
    },
    """List what you can choose from, and what was run.""",
    """
    pe-bench list encodings --family rotary
    pe-bench list encodings --csv -
    pe-bench list runs""",
)
command(
    "show",
    "pe_bench.cli.inspect:show_encodings",
    {
        "arguments": arguments(NAMES, "Encodings, and keys as in train.", complete_file("encoding")),
        "plot": option("Draw them to a PNG, SVG or PDF file.", kind=Path, metavar="FILE"),
        **CONFIG_DIR,
    },
    """Show an encoding's equation, options and claims; or a task.""",
    """
    pe-bench show yarn
    pe-bench show rope alibi t5 --plot compare.png
    pe-bench show rope base=500 train.length=256
    pe-bench show my.py:MyEncoding --plot mine.svg""",
)
command(
    "speed",
    "pe_bench.cli.inspect:time_encodings",
    {
        "arguments": arguments(
            NAMES, "Encodings, and keys as in train.  [default: all encodings]", complete_speed
        ),
        "lengths": option("Window lengths in tokens.  [default: 512,2048,8192]", metavar="N,N"),
        "train": flag("--train", "Time training steps instead of scoring."),
        "repeats": count("Timed passes per encoding.  [default: 5 to 25, fewer if slow]"),
        "output": option(
            "CSV file; the plot is saved next to it.  [default: RESULTS_DIR/speed.csv]",
            kind=Path,
            metavar="FILE",
        ),
        **CONFIG_DIR,
    },
    """
    Measure time and memory of encodings, relative to nope.

    Prints a table, draws results/speed.png, and adds rows to results/speed.csv.""",
    """
    pe-bench speed rope alibi --lengths 512,2048
    pe-bench speed t5 --train model=small
    pe-bench speed lm_infinite encoding.window=64 threads=1
    pe-bench speed my.py:MyEncoding""",
)
command(
    "export",
    "pe_bench.export:export_run",
    {
        "name": Annotated[
            str,
            typer.Argument(metavar="RUN", help="A run by encoding, name, the beginning of a name, or path."),
        ],
        "folder": Annotated[
            Path, typer.Option("--hf", metavar="FOLDER", help="A new folder, which transformers then loads.")
        ],
        **RESULTS,
    },
    """
    Write a trained run as a checkpoint of Hugging Face.

    It works for encodings that transformers has: rope and its scalings, p_rope, nope,
    sliding_window, smollm3, cohere2, and local_global of rope and nope.""",
    """
    pe-bench export rope --hf FOLDER
    pe-bench export results/runs/rope-s0-1a2b3c4d --hf FOLDER
    pe-bench export nope --hf FOLDER --results-dir results""",
)
command(
    "reproduce",
    "pe_bench.cli.reproduce:reproduce_study",
    {
        "arguments": arguments(
            "NAME | KEY=VALUE",
            "A study, then settings of this machine: threads, device, cache_dir, hydra/launcher.",
            complete_file("study"),
        ),
        "quick": flag("--quick", "Train toy models, in minutes, to see that everything works."),
        "gpu": flag("--gpu", "Run the study named gpu, which needs a GPU."),
        "text": option(
            "The text: Python's standard library, or a folder of files.  [default: stdlib]",
            metavar="stdlib|DIR",
        ),
        "write_table": flag("--write-table", "Make our levels the study's table (for maintainers)."),
        **CONFIG_DIR,
        **RESULTS,
    },
    """
    Repeat a paper's experiment at our scale, and test its claims.

    Trains and scores what is missing; after Ctrl-C, repeat the command to continue. Then compares
    our levels with the study's table (exit code 1 if they differ), and tests the paper's claims on our
    runs: each holds, is contradicted or stays unclear. Without NAME, lists the studies.""",
    """
    pe-bench reproduce                       # the studies, and what is finished
    pe-bench reproduce alibi --quick         # a toy of it: does everything work?
    pe-bench reproduce alibi
    pe-bench reproduce alibi --text books    # the same on texts in a folder
    pe-bench reproduce alibi threads=1 hydra/launcher=joblib""",
)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"pe-bench {version('pe-bench')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train short, test long: compare positional encodings by length extrapolation."""
