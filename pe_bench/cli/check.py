"""The `check` command: the conformance suite on some encodings, as a table."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from pe_bench.config.groups import names_in
from pe_bench.errors import RunError, require
from pe_bench.inspection.check.case import Specimen, specimens
from pe_bench.inspection.check.finding import Finding
from pe_bench.inspection.check.suite import Property, check_all
from pe_bench.system.terminal import say, write_out

# In colour too, and not by colour alone.
SIGNS = {"holds": "ok", "fails": "FAILS", "not claimed": "-", "not checked": "not checked"}
STYLES = {"holds": "green", "fails": "bold red", "not claimed": "dim", "not checked": "red"}

Results = dict[Property, Finding]


def check_encodings(arguments: Sequence[str], everything: bool, directories: Sequence[str]) -> None:
    """Check the encodings among `arguments` with the options among them; print what came out.

    Raises `UserError` for what cannot be built, `RunError` where a property fails.
    """
    names = [argument for argument in arguments if "=" not in argument or argument.startswith("encoding=")]
    require(not (names and everything), f"--all checks every encoding, and {' '.join(names)} names some")
    require(bool(names) or everything, "name an encoding, a file.py:Class, or say --all")
    for argument in (argument for argument in arguments if argument not in names):
        key = argument.partition("=")[0]
        of_encoding = "." not in key or key.startswith("encoding.")
        require(of_encoding, f"check has a model of its own, and {argument} is no option of an encoding")
    found = specimens([*(all_names(directories) if everything else []), *arguments], directories)
    for one in found:
        for option, value in one.examples.items():
            say(f"{one.name} has no default for {option}: checked with {option}={value}, an example")
    results = {one.name: check_all(one) for one in _with_progress(found)}
    write_out(_render(_one(results[found[0].name]) if len(found) == 1 else _each(results)))
    lines = [
        line
        for name, result in results.items()
        for line in (*_errors(name, result), *_failures(name, result))
    ]
    if lines:
        write_out("\n" + "".join(f"{line}\n" for line in lines))
        raise RunError(
            _summary([finding.state for result in results.values() for finding in result.values()])
        )


def _failures(name: str, result: Results) -> list[str]:
    """Of each property that fails, by how much and where to look."""
    return [
        f"{name}: {wanted.name} fails: {wanted.means}; {finding.measured}. Look at {wanted.look}."
        for wanted, finding in result.items()
        if finding.state == "fails"
    ]


def _errors(name: str, result: Results) -> list[str]:
    """Of each error that several properties met, how many it kept from being checked."""
    errors = Counter(finding.measured for finding in result.values() if finding.state == "not checked")
    return [f"{name}: {error}; {count} properties could not be checked" for error, count in errors.items()]


def _summary(states: Sequence[str]) -> str:
    """`2 of 23 checks failed, 14 could not be made`."""
    failed, unknown, total = states.count("fails"), states.count("not checked"), len(states)
    if failed and unknown:
        return f"{failed} of {total} checks failed, {unknown} could not be made"
    return (
        f"{failed} of {total} checks failed" if failed else f"{unknown} of {total} checks could not be made"
    )


def all_names(directories: Sequence[str] = ()) -> list[str]:
    """Every encoding, and those in a person's own folders."""
    names = names_in("encoding")
    own = sorted(path.stem for folder in directories for path in Path(folder).glob("encoding/*.yaml"))
    return [*(name for name in names if name not in own), *own]


def _with_progress(found: list[Specimen]) -> Sequence[Specimen]:
    console = Console(stderr=True)
    if len(found) == 1 or not console.is_terminal:
        return found
    return track(found, "checking", console=console, transient=True)  # type: ignore[return-value]


def _one(results: Results) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("property", "result", "measured", "what it means"):
        table.add_column(column, overflow="fold")
    for wanted, finding in results.items():
        sign = f"[{STYLES[finding.state]}]{SIGNS[finding.state]}"
        measured = "" if finding.state == "not checked" else finding.measured
        table.add_row(wanted.name, sign, measured, wanted.means)
    return table


def _each(results: dict[str, Results]) -> Table:
    """One line for each encoding: narrow enough for a terminal, however many properties there are."""
    table = Table(box=None, pad_edge=False)
    for column in ("encoding", "holds", "fails", "not claimed, or not defined"):
        table.add_column(column, overflow="fold")
    for name, result in results.items():
        of = {
            state: [wanted.name for wanted, finding in result.items() if finding.state == state]
            for state in SIGNS
        }
        unknown = len(of["not checked"])
        failing = [*of["fails"], *([f"{unknown} not checked"] if unknown else [])]
        styled = f"[{STYLES['fails']}]{' '.join(failing)}" if failing else "0"
        holding = f"{len(of['holds'])} of {len(result) - unknown}"
        table.add_row(name, holding, styled, " ".join(of["not claimed"]))
    return table


def _render(table: Table) -> str:
    # Off a terminal nothing is cut or wrapped, so that other programs can read it.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
