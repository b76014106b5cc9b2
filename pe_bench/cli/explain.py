"""The `explain` command: why runs fail at longer texts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pe_bench import api
from pe_bench.cli.data import print_runs
from pe_bench.cli.options import command
from pe_bench.errors import require
from pe_bench.system.terminal import say, write_out
from pe_bench.values import parse_lengths, require_apart, require_writable


@command("explain", api.explain)
def explain(
    runs: Sequence[str] = (),
    *,
    by: Sequence[str] = (),
    plot: Path | None = None,
    csv: Path | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Explain why runs fail at longer texts.

    Changes one layer of the trained model at a time, and all layers together, and
    scores the same targets again: with a window, with sharper attention, without
    positions, and more. The table says how much of the loss each change restores; one
    sentence says what follows. Without RUN, explains the run that finished last; several
    runs must be seeds of one encoding. For hf:FOLDER, give the data as KEY=VALUE.

    plot FILE: Draw what changes restore and what is read, by layer: .png, .svg or .pdf.
    csv FILE: Write the numbers to FILE; - prints them instead of the table.

    Examples:
      pe-bench explain
      pe-bench explain rope --by head,layer
      pe-bench explain rope --lengths 256,1024 --csv why.csv --plot why.svg
      pe-bench explain hf:FOLDER data=files data.path=texts --lengths 12288
    """
    from pe_bench.commands.explain.explanation import csv_text
    from pe_bench.render.paper import picture_format
    from pe_bench.runs.find import is_hf_name, runs_to_score
    from pe_bench.system.files import write_text

    printed = csv is not None and str(csv) == "-"
    require(not (printed and as_json), "--csv - and --json both print instead of the table: choose one")
    written: dict[str, Path] = {}
    if csv is not None and not printed:
        require_writable("--csv", csv)
        written["--csv"] = csv
    if plot is not None:
        require_writable("--plot", plot)
        picture_format(plot)
        written["--plot"] = plot
    require_apart(written, options["results_dir"])
    lengths = options.pop("lengths")
    options["lengths"] = parse_lengths(",".join(lengths)) if lengths else None
    names = list(runs)
    if any(map(is_hf_name, names)):
        options["overrides"] = [name for name in names if not is_hf_name(name)]
        names = [name for name in names if is_hf_name(name)]
    if not names:
        newest = runs_to_score((), (), options["results_dir"], everything=False)
        say(f"the newest finished run: {newest[0]}")
        names = [str(newest[0])]
    by = [name for each in by for name in each.split(",")]
    asked = [*by, "layer"] if plot is not None else by
    found = api.explain(names, by=asked, **options)
    shown = found if "layer" in by else replace(found, measures=())
    if as_json:
        print_runs("explain", shown.runs, explanation=shown)
    elif printed:
        write_out(csv_text(shown))
    else:
        write_out(str(shown))
    if plot is not None:
        found.plot(plot)
        say(f"wrote {plot}")
    if csv is not None and not printed:
        write_text(csv, csv_text(shown))
        say(f"wrote {csv}")
