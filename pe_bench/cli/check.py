"""The `check` command: the conformance suite on some encodings, as a table."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from pe_bench.config.groups import encoding_names
from pe_bench.config.overrides import parse_override
from pe_bench.errors import RunError, require
from pe_bench.inspection.check.case import Case, Finding, find_cases
from pe_bench.inspection.check.suite import PROPERTIES, Property, check_all
from pe_bench.inspection.resolve import split_arguments
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid, draw, show
from pe_bench.system.progress import progress_bar
from pe_bench.system.terminal import say, wrap, write_out

# In colour too, and not by colour alone.
SIGNS = {"holds": "ok", "fails": "FAILS", "not claimed": "-"}

Results = dict[Property, Finding]


def check_encodings(
    arguments: Sequence[str] | None,
    config_dir: Sequence[Path] | None = None,
    *,
    everything: bool = False,
    verbose: bool = False,
) -> None:
    """Check the encodings among `arguments` with the options among them; print counts and what failed.

    Raises `UserError` for what cannot be built, `RunError` where a property fails.
    """
    arguments, search = arguments or [], config_dir or []
    names, overrides = split_arguments(arguments)
    require(not (names and everything), f"--all checks every encoding: leave out {' '.join(names)}, or --all")
    require(bool(names) or everything, "name an encoding, a file.py:Class, or say --all")
    for text in overrides:
        override = parse_override(text)
        is_option = "." not in override.key or override.section == "encoding"
        require(
            is_option, f"check uses its own model: leave out {text}, which is not an option of an encoding"
        )
    found = find_cases([*(encoding_names(search) if everything else []), *arguments], search)
    for encoding in found:
        for option, value in encoding.examples.items():
            say(f"{encoding.name} has no default for {option}: checked with {option}={value}, an example")
    results = _check_each(found)
    _print_tables(results, verbose)
    states = [finding.state for result in results.values() for finding in result.values()]
    if "fails" in states or "not checked" in states:
        raise RunError(_failed_checks(states))
    hint = "" if verbose else "; the number of each: --verbose"
    write_out(f"\n{states.count('holds')} checks hold, none fails{hint}\n")


def _print_tables(results: dict[str, Results], verbose: bool) -> None:
    """Print the table of all encodings, and of each encoding what failed or, if `verbose`, everything."""
    grids = [_summary_grid(results)]
    for name, result in results.items():
        if verbose:
            grids.append(_property_grid(name, result))
        if any(finding.state == "fails" for finding in result.values()):
            grids.append(_failure_grid(name, result))
    notes = [line for name, result in results.items() if (line := _notes(name, result))]

    def draw_all(width: int) -> Iterator[Text]:
        for index, grid in enumerate(grids):
            yield from [Text()] if index else []
            yield from draw(grid, width)
        for index, note in enumerate(notes):
            yield from [Text()] if not index else []
            yield from map(Text, wrap(note, width, hanging=2).split("\n"))

    show(draw_all)


def _failure_grid(name: str, result: Results) -> Grid:
    """Return the properties that fail: what was measured, what must hold, where to look."""
    rows = []
    for wanted, finding in result.items():
        if finding.state == "fails":
            places = ", ".join(finding.places)
            look = f"{places}; {wanted.look}" if places else wanted.look
            explained = f"{finding.measured}\nmust hold: {wanted.means}\nlook at: {look}"
            rows.append([Cell(wanted.name, style="fails"), Cell(explained)])
    return Grid(_columns("fails", name), rows)


def _property_grid(name: str, result: Results) -> Grid:
    """Return all properties, with what was measured."""
    rows = [
        [
            Cell(wanted.name),
            Cell(SIGNS[finding.state], style=finding.state),
            Cell(f"{wanted.means}: {finding.measured}"),
        ]
        for wanted, finding in result.items()
        if finding.state != "not checked"
    ]
    return Grid(_columns("property", "result", name), rows)


def _summary_grid(results: dict[str, Results]) -> Grid:
    """Return a row for each encoding."""
    rows = []
    for name, result in results.items():
        properties = {
            state: [wanted.name for wanted, finding in result.items() if finding.state == state]
            for state in (*SIGNS, "not checked")
        }
        unknown = len(properties["not checked"])
        failing = ", ".join([*properties["fails"], *([f"{unknown} not checked"] if unknown else [])])
        holding = f"{len(properties['holds'])} of {len(result) - unknown}"
        failed = Cell(failing or "0", style="fails" if failing else "")
        rows.append([Cell(name), Cell(holding), failed, Cell(", ".join(properties["not claimed"]))])
    return Grid(_columns("encoding", "holds", "fails", "unclaimed"), rows)


def _columns(*headings: str) -> list[Column]:
    """Return columns of which the first holds names, which are not broken."""
    return [
        Column(heading, is_left=True, least=MIN_FOLDED if place else 0)
        for place, heading in enumerate(headings)
    ]


def _notes(name: str, result: Results) -> str:
    """Return what was found out beside the properties, such as how many keys a query sees."""
    notes = [finding.note for finding in result.values() if finding.note]
    return f"{name}: {'; '.join(notes)}" if notes else ""


def _failed_checks(states: Sequence[str]) -> str:
    """Count them, as in `2 of 23 checks failed, 14 could not be made`."""
    failed, unknown, total = states.count("fails"), states.count("not checked"), len(states)
    if failed and unknown:
        return f"{failed} of {total} checks failed, {unknown} could not be made"
    return (
        f"{failed} of {total} checks failed" if failed else f"{unknown} of {total} checks could not be made"
    )


def _check_each(found: Sequence[Case]) -> dict[str, Results]:
    """Check every encoding, with a bar on a terminal."""
    results: dict[str, Results] = {}
    with progress_bar("check", len(found) * len(PROPERTIES)) as bar:
        for case in found:
            done = itertools.count(len(results) * len(PROPERTIES))
            results[case.name] = check_all(
                case, lambda wanted, name=case.name, done=done: bar.show(next(done), f"{name}: {wanted.name}")
            )
    return results
