"""The options of the `probe` command."""

from pathlib import Path
from typing import Annotated

import typer

from pe_bench.cli.options import (
    CacheDir,
    Code,
    ConfigDir,
    Count,
    DataPath,
    Device,
    Force,
    Plain,
    Precision,
    ResultsDir,
    Runs,
    Threads,
    Where,
    With,
)

EXAMPLES = """\
pe-bench probe --lengths 512,2048
pe-bench probe rope alibi --depths 3 --windows 32
pe-bench probe rope --lengths 256 --with yarn,rope_ntk --plot probe.png
pe-bench probe hf:FOLDER data=files data.path=texts --lengths 4096
pe-bench probe hf:FOLDER --task niah_multikey_3,vt,fwe --lengths 4096"""


Everything = Annotated[bool, typer.Option("--all", help="Probe every finished run, not only the last.")]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        help="Window lengths in tokens, from 128.  [default: 1, 2, 4 and 16 x training length]",
    ),
]
Depths = Annotated[
    int | None,
    typer.Option(
        help="Number of evenly spaced places of the span, from start to end.  [default: 5]", **Count
    ),
]
Windows = Annotated[
    int | None,
    typer.Option(
        help="Windows at each length and depth; a larger number reuses scores.  [default: 64]", **Count
    ),
]
Prompts = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME",
        help="Ask a checkpoint prompts of RULER instead: niah_multikey_3, vt or fwe.",
    ),
]
Plot = Annotated[
    Path | None, typer.Option(help="Draw a heat map by length and depth to a PNG, SVG or PDF file.")
]


def probe(
    runs: Runs = None,
    where: Where = None,
    everything: Everything = False,
    lengths: Lengths = None,
    depths: Depths = None,
    windows: Windows = None,
    task: Prompts = None,
    plot: Plot = None,
    precision: Precision = None,
    device: Device = None,
    threads: Threads = None,
    with_: With = None,
    force: Force = False,
    plain: Plain = False,
    config_dir: ConfigDir = None,
    code: Code = None,
    data_path: DataPath = None,
    cache_dir: CacheDir = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Ask runs or checkpoints to find a span of the text.

    A window of validation text ends with the first half of a span that it has
    somewhere: does that make the second half likelier, and the likeliest of eight
    endings? No judge model is needed. Without RUN, --where and --all, the run that
    finished last is probed. Finished scores are reused; report --probe shows them.
    """
    from pe_bench.cli.probe_runs import ProbeOptions, probe_prompts, probe_runs
    from pe_bench.errors import require
    from pe_bench.scoring.needles import DEFAULT_DEPTHS, DEFAULT_WINDOWS, Probe
    from pe_bench.scoring.other_encodings import read_with

    options = ProbeOptions(
        names=runs or [],
        where=where or [],
        everything=everything,
        precision=precision,
        machine={"device": device, "threads": threads, "cache_dir": str(cache_dir) if cache_dir else None},
        code=code or [],
        data_path=data_path,
        others=read_with(with_ or [], config_dir or [], force, has_code=bool(code)),
        plain=plain,
        plot=plot,
    )
    asked = Probe(None, depths or DEFAULT_DEPTHS, windows or DEFAULT_WINDOWS)
    if task is not None:
        require(depths is None, "--depths has no effect with --task: leave it out")
        probe_prompts(task, lengths, asked, options, results_dir)
        return
    probe_runs(lengths, asked, options, results_dir)
