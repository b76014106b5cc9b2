"""The `try` command: is a change better than its baseline?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from pe_bench import api
from pe_bench.errors import require
from pe_bench.system.grid import Cell, Column, Grid, draw, show
from pe_bench.system.terminal import say, write_out

CODE = {"better": 0, "not better": 3, "unclear": 4}


def run_try(arguments: Sequence[str], options: dict[str, Any]) -> None:
    """Try a change, print what was found, and exit with its code. Raises `UserError`, `RunError`."""
    require(bool(arguments), "name what to try, such as my.py:RootBias or 'rope base=500000'")
    change, *overrides = arguments
    if ".py:" in change:
        from pe_bench.tries.trying import overrides_in

        _check(overrides_in(change), options["config_dir"])
    outcome = api.try_change(change, *overrides, **options)
    write_out(f"{outcome}\n")
    raise typer.Exit(CODE[outcome.answer])


def _check(overrides: Sequence[str], config_dir: str | Path | None) -> None:
    """Say that all properties of an encoding hold, or print which fail and raise `RunError`."""
    from pe_bench.cli.inspect import check_encodings
    from pe_bench.inspection.check import check_all
    from pe_bench.inspection.check.case import find_cases

    search = [] if config_dir is None else [Path(config_dir)]
    options = [text.removeprefix("encoding=").removeprefix("encoding.") for text in overrides]
    states = [result.state for case in find_cases(options, search) for _, result in check_all(case)]
    if {"fails", "not checked"} & {*states}:
        check_encodings(options, search)
    say(f"check: {states.count('holds')} properties hold, none fails")


def list_tries(results_dir: Path) -> None:
    """Print a table of all that was tried."""
    from pe_bench.tries.trying import read_tries

    tries = read_tries(results_dir)
    require(bool(tries), f"{results_dir} has no tries: pe-bench try my.py:RootBias makes one")
    columns = [Column(name, is_left=name in ("change", "baseline", "answer")) for name in HEADINGS]
    rows = [
        [
            *(Cell(f"{entry.kind} {entry.number}"), Cell(entry.change), Cell(entry.baseline)),
            *(Cell(_signed(entry.at_training)), Cell(_signed(entry.at_longest))),
            *(Cell(f"{entry.seeds}"), Cell(entry.answer)),
        ]
        for entry in tries
    ]
    notes = (
        "differences in bits per byte, negative is better; the baseline and the lengths have own numbers",
    )
    show(lambda width: draw(Grid(columns, rows, notes=notes), width))


HEADINGS = ("number", "change", "baseline", "at training", "at longest", "seeds", "answer")


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"
