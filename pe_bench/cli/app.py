"""The commands. What each does is a function of another file, which help does not wait for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_bench import api
from pe_bench.cli.options import app as app
from pe_bench.cli.options import command


@command("train")
def train(
    overrides: Sequence[str] = (),
    *,
    multirun: bool = False,
    cfg: str | None = None,
    resolve: bool = False,
    plan: Path | None = None,
    as_json: bool = False,
    config_dir: Path | None = None,
) -> None:
    """Train a model, score it at longer lengths, print the table. Finished work is reused.

    overrides KEY=VALUE: Keys to change, in any order. Those that are used most, with their defaults
        (`pe-bench list keys` has all): encoding=rope, model=tiny, data=stdlib, seed=0, threads=auto,
        train.length=128, train.steps=null, train.lr=0.005, eval.lengths=null, results_dir=results.
    multirun: A sweep: train each combination of listed values.
    cfg job|hydra|all: Print every key and its value instead of training.
    resolve: Print them with computed values.
    plan FILE: Train nothing: check all jobs, and write the command of each on a line of its own.
    config_dir DIR: A folder with your own encoding/NAME.yaml and similar files.

    Examples:
      pe-bench train encoding=rope
      pe-bench train encoding=rope modifier=[logn] train.length=256
      pe-bench train -m encoding=rope,alibi seed=0,1,2     # a sweep of six runs
      pe-bench train --cfg job                             # every key and its value
    """
    from pe_bench.cli.train import run_train

    run_train(overrides, cfg, config_dir, plan, as_json=as_json, multirun=multirun, resolve=resolve)


@command("eval", api.evaluate, without=("run", "overrides"))
def evaluate(
    runs: Sequence[str] = (),
    *,
    where: Sequence[str] = (),
    everything: bool = False,
    baseline: str | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Score runs or checkpoints at other lengths or encodings.

    Without RUN, --where and --all, the run that finished last is scored. Options
    replace values of the run's configuration. hf:FOLDER and hf:OWNER/NAME are
    checkpoints of Hugging Face, with data and lengths as KEY=VALUE.

    everything: Score every finished run, not only the last.
    baseline NAME: The encoding, or hf:FOLDER, to compare the others with.

    Examples:
      pe-bench eval --lengths 512,2048
      pe-bench eval rope-s0-1a2b3c4d --protocol sliding
      pe-bench eval rope alibi --where 'seed<3' --lengths 4096
      pe-bench eval --with yarn,rope_ntk --with 'yarn factor=4 beta_fast=16'
      pe-bench eval hf:FOLDER data=files data.path=texts --lengths 4096 --with yarn
      pe-bench eval hf:A hf:B data.path=texts --lengths 4096 --baseline hf:A
    """
    from pe_bench.cli.score import evaluate

    evaluate(runs, where, everything, baseline, as_json, options)


@command("extend", api.extend, without=("runs", "overrides"))
def extend(runs: Sequence[str] = (), *, to: str = "4x", plot: Path | None = None, **options: Any) -> None:
    """Stretch trained runs to longer texts, in one table.

    Scores the runs unchanged and, without more training, under each encoding; --tokens also trains them
    further with each. Prints one table and draws it: dashed lines without more training, solid ones with.

    runs RUN: Seeds of one encoding, or hf:FOLDER; then KEY=VALUE of the training or of this machine.
    plot FILE: The picture, a PNG, SVG or PDF file.  [default: extend.png in the folder of results]

    Examples:
      pe-bench extend rope --to 4x --with yarn,rope_pi --tokens 128000
      pe-bench extend rope --with 'rope base=80000' --tokens 128000 --long
      pe-bench extend hf:FOLDER data=files data.path=texts --with yarn
    """
    from pe_bench.cli.train import extend

    extend(runs, plot, {"to": to, **options})


@command("probe", api.probe, api.evaluate, without=("run", "overrides"))
def probe(
    runs: Sequence[str] = (),
    *,
    where: Sequence[str] = (),
    everything: bool = False,
    plot: Path | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Ask runs or checkpoints to find a span of the text.

    A window of validation text ends with the first half of a span that it has
    somewhere: does that make the second half likelier, and the likeliest of eight
    endings? No judge model is needed. Without RUN, --where and --all, the run that
    finished last is probed. Finished scores are reused; report --probe shows them.

    everything: Probe every finished run, not only the last.
    plot FILE: Draw a heat map by length and depth to a PNG, SVG or PDF file.

    Examples:
      pe-bench probe --lengths 512,2048
      pe-bench probe rope alibi --depths 3 --windows 32
      pe-bench probe rope --lengths 256 --with yarn,rope_ntk --plot probe.png
      pe-bench probe hf:FOLDER data=files data.path=texts --lengths 4096
      pe-bench probe hf:FOLDER --task niah_multikey_3,vt,fwe --lengths 4096
    """
    from pe_bench.cli.score import probe

    probe(runs, where, everything, plot, as_json, options)


@command("report", api.results)
def report(
    runs: Sequence[str] = (),
    *,
    sort: str | None = None,
    lengths: str | None = None,
    csv: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
    html: Path | None = None,
    plot: Path | None = None,
    plot_of: str | None = None,
    details: bool = False,
    probe: bool = False,
    everything: bool = False,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Compare runs in a table, and write it to files or draw it.

    sort KEY: Sort by a length, or by name, parameters, tokens_per_second, peak_memory_mb.
    lengths N,N: Show these lengths beside the training length.
    csv FILE: Write the numbers to a file; - prints them.
    markdown FILE: Write the table as Markdown; - prints it.
    latex FILE: Write it as LaTeX (booktabs, graphicx); - prints it.
    html FILE: Write one page with tables, curves and commands.
    plot FILE: Draw the curves to a PNG, SVG or PDF file.
    plot_of levels|change: What --plot and --html draw.
    details: Add intervals, controls, speed and all notes.
    probe: Show what pe-bench probe found, instead of levels.
    everything: Print every table, not only the newest run's.

    Examples:
      pe-bench report --baseline rope
      pe-bench report --where 'seed<3' --sort 512
      pe-bench report --by train.lr
      pe-bench report --plot curve.png --html report.html
    """
    from pe_bench.cli.report import Outputs, report

    files = {"csv": csv, "markdown": markdown, "latex": latex, "html": html, "plot": plot}
    outputs = Outputs(
        {f"--{name}": path for name, path in files.items() if path is not None}, plot_of, as_json
    )
    report(runs, outputs, lengths, details, probe, sort=sort, everything=everything, **options)


@command("check")
def check(
    arguments: Sequence[str] = (),
    *,
    everything: bool = False,
    verbose: bool = False,
    as_json: bool = False,
    config_dir: Sequence[Path] = (),
) -> None:
    """Check that an encoding is correct: the shipped ones, or yours.

    It must be causal, exact in blocks and on fast paths, finite at 65,536 tokens, and true to its
    claims. Exit code 1 if a property fails.

    arguments NAME|FILE.py:CLASS|KEY=VALUE: Encodings and their options.
    everything: Every encoding.
    verbose: Every property, with what was measured.

    Examples:
      pe-bench check rope
      pe-bench check yarn factor=4
      pe-bench check my.py:MyEncoding --verbose
      pe-bench check --all
    """
    from pe_bench.cli.inspect import check_encodings

    check_encodings(arguments, config_dir, everything=everything, verbose=verbose, as_json=as_json)


@command("list")
def list_(
    name: str | None = None,
    *,
    family: str | None = None,
    papers: bool = False,
    csv: Path | None = None,
    as_json: bool = False,
    results_dir: str = "results",
) -> None:
    """List what you can choose from, and what was run.

    name LIST: encodings, modifiers, models, data, tasks, tokenizers, experiments, keys, runs or studies.
    family NAME: Only encodings of this family.
    papers: Show where encodings are from, and what they do with long texts.
    csv FILE: Write the list to a file; - prints it as CSV.

    Examples:
      pe-bench list encodings --family rotary
      pe-bench list encodings --csv -
      pe-bench list runs
    """
    from pe_bench.cli.list import print_list

    print_list(name or "", Path(results_dir), family, csv, papers=papers, as_json=as_json)


@command("show")
def show(arguments: Sequence[str] = (), *, plot: Path | None = None, config_dir: Sequence[Path] = ()) -> None:
    """Show an encoding, a task, or the layers of a checkpoint.

    An encoding is shown by its equation, options and claims; hf:FOLDER by what each of its layers does:
    rotation and base, window, sinks.

    arguments NAME|FILE.py:CLASS|KEY=VALUE: Encodings, and keys as in train.
    plot FILE: Draw them to a PNG, SVG or PDF file.

    Examples:
      pe-bench show yarn
      pe-bench show rope alibi t5 --plot compare.png
      pe-bench show rope base=500 train.length=256
      pe-bench show my.py:MyEncoding --plot mine.svg
      pe-bench show hf:FOLDER
    """
    from pe_bench.cli.inspect import show_encodings

    show_encodings(arguments, plot, config_dir)


@command("speed")
def speed(
    arguments: Sequence[str] = (),
    *,
    lengths: str = "512,2048,8192",
    train: bool = False,
    repeats: int | None = None,
    output: Path | None = None,
    as_json: bool = False,
    config_dir: Sequence[Path] = (),
) -> None:
    """Measure time and memory of encodings, relative to nope.

    Prints a table, and adds rows to results/speed.csv.

    arguments NAME|FILE.py:CLASS|KEY=VALUE: Encodings, and keys as in train.  [default: all encodings]
    lengths N,N: Window lengths in tokens.
    train: Time training steps instead of scoring.
    repeats NUMBER: Timed passes per encoding.  [default: 5 to 25, fewer if slow]
    output FILE: CSV file to add rows to.  [default: RESULTS_DIR/speed.csv]

    Examples:
      pe-bench speed rope alibi --lengths 512,2048
      pe-bench speed t5 --train model=small
      pe-bench speed lm_infinite encoding.window=64 threads=1
      pe-bench speed my.py:MyEncoding
    """
    from pe_bench.cli.inspect import time_encodings

    time_encodings(arguments, lengths, repeats, output, config_dir, train=train, as_json=as_json)


@command("export")
def export(name: str, *, folder: Path, results_dir: str = "results") -> None:
    """Write a trained run as a checkpoint of Hugging Face.

    It works for encodings that transformers has: rope and its scalings, p_rope, nope,
    sliding_window, smollm3, cohere2, and local_global of rope and nope.

    name RUN: A run by encoding, name, the beginning of a name, or path.
    folder DIR: A new folder, which transformers then loads.

    Examples:
      pe-bench export rope --hf FOLDER
      pe-bench export results/runs/rope-s0-1a2b3c4d --hf FOLDER
      pe-bench export nope --hf FOLDER --results-dir results
    """
    from pe_bench.export import export_run

    export_run(name, folder, Path(results_dir))


@command("cite")
def cite(runs: Sequence[str] = (), *, results_dir: str = "results") -> None:
    """Print BibTeX of pe-bench, and of what a table compares.

    Without RUN, the table is that of the newest run. Entries are of encodings, scalings and data.

    runs RUN: Runs by encoding, name, the beginning of a name, or path.
    results_dir DIR: The folder of runs and results.csv.

    Examples:
      pe-bench cite
      pe-bench cite rope alibi > papers.bib
      pe-bench cite --results-dir results
    """
    from pe_bench.cli.cite import cite

    cite(runs, Path(results_dir))


@command("import", api.import_runs, without=("folders",))
def import_(folders: Sequence[Path], **options: Any) -> None:
    """Copy finished runs from elsewhere into the folder of results.

    Each run is checked as a stranger's, and copied whole or not at all. A run that is here already
    stays as it is.

    folders FOLDER: Runs, folders of runs, or folders of results.

    Examples:
      pe-bench import /mnt/other/results
      pe-bench import copies/runs other/results/runs
      pe-bench import rope-s0-1a2b3c4d --results-dir results
    """
    from pe_bench.cli.train import import_folders

    import_folders(folders, **options)


@command("reproduce")
def reproduce(
    arguments: Sequence[str] = (),
    *,
    quick: bool = False,
    text: str = "stdlib",
    write_table: bool = False,
    config_dir: Path | None = None,
    results_dir: str = "results",
) -> None:
    """Repeat a paper's experiment at our scale, and test its claims.

    Trains and scores what is missing; after Ctrl-C, repeat the command to continue. Then compares
    our levels with the study's table (exit code 1 if they differ), and tests the paper's claims on our
    runs: each holds, is contradicted or stays unclear. Without NAME, lists the studies.

    arguments NAME|KEY=VALUE: A study, then settings of this machine: threads, device, cache_dir,
        hydra/launcher.
    quick: Train toy models, in minutes, to see that everything works.
    text stdlib|DIR: The text: Python's standard library, or a folder of files.
    write_table: Make our levels the study's table (for maintainers).
    config_dir DIR: A folder with your study/NAME.yaml and encodings.

    Examples:
      pe-bench reproduce                       # the studies, and what is finished
      pe-bench reproduce alibi --quick         # a toy of it: does everything work?
      pe-bench reproduce alibi
      pe-bench reproduce alibi --text books    # the same on texts in a folder
      pe-bench reproduce alibi threads=1 hydra/launcher=joblib
    """
    from pe_bench.cli.reproduce import reproduce_study

    search = [config_dir] if config_dir else []
    reproduce_study(arguments, text, search, Path(results_dir), quick=quick, write_table=write_table)


@command("try", api.try_change, without=("change", "overrides"))
def try_(
    arguments: Sequence[str] = (), *, listed: bool = False, as_json: bool = False, **options: Any
) -> None:
    """Say whether a change is better than its baseline.

    Checks the change, trains it beside the baseline seed by seed, on 256,000 tokens each, and stops
    when the answer is sure or the time is over. Tries are counted: the more there were, the larger a gain
    has to be. Exit codes: 0 better, 3 not better, 4 unclear, 1 failed, 2 wrong command, 130 stopped.

    arguments CHANGE|KEY=VALUE: What to try, such as my.py:RootBias, 'rope base=500000' or rope+logn; then
        keys of both, such as model=small.
    listed: Show what was tried in this folder of results.

    Examples:
      pe-bench try my.py:RootBias
      pe-bench try 'rope base=500000' --against rope --minutes 10
      pe-bench try my.py:RootBias --confirm    # on other documents and seeds
      pe-bench try --list
    """
    from pe_bench.cli.train import list_tries, run_try

    if listed:
        list_tries(Path(options["results_dir"]), as_json)
    else:
        run_try(arguments, as_json, options)
