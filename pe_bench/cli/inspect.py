"""The `check`, `show` and `speed` commands: what encodings do, and what they cost."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from pe_bench.config.groups import encoding_names
from pe_bench.config.overrides import parse_override
from pe_bench.config.parse import parse_lengths
from pe_bench.errors import RunError, require
from pe_bench.inspection.resolve import ResolvedEncoding, resolve, split_arguments
from pe_bench.inspection.speed import (
    Row,
    grid_of,
    read_request,
    read_rows,
    with_examples,
    write_rows,
)
from pe_bench.system.files import check_folder
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid, draw, show
from pe_bench.system.progress import progress_bar
from pe_bench.system.terminal import say, width_of, wrap, write_out

if TYPE_CHECKING:  # with torch, which a mistyped argument should not wait for
    from pe_bench.inspection.check import Property
    from pe_bench.inspection.check.case import Case
    from pe_bench.inspection.check.result import Finding
    from pe_bench.inspection.passes import Bench

    Results = dict[Property, Finding]

# In colour too, and not by colour alone.
SIGNS = {"holds": "ok", "fails": "FAILS", "not claimed": "-"}


def check_encodings(
    arguments: Sequence[str],
    search: Sequence[Path] = (),
    *,
    everything: bool = False,
    verbose: bool = False,
) -> None:
    """Check the encodings among `arguments` with the options among them; print counts and what failed.

    Raises `UserError` for what cannot be built, `RunError` where a property fails.
    """
    names, overrides = split_arguments(arguments)
    require(not (names and everything), f"--all checks every encoding: leave out {' '.join(names)}, or --all")
    require(bool(names) or everything, "name an encoding, a file.py:Class, or say --all")
    for text in overrides:
        override = parse_override(text)
        is_option = "." not in override.key or override.section == "encoding"
        require(
            is_option, f"check uses its own model: leave out {text}, which is not an option of an encoding"
        )
    from pe_bench.inspection.check.case import find_cases

    cases = find_cases([*(encoding_names(search) if everything else []), *arguments], search)
    for encoding in cases:
        for option, value in encoding.examples.items():
            say(f"{encoding.name} has no default for {option}: checked with {option}={value}, an example")
    results = _check_each(cases)
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
    for prop, finding in result.items():
        if finding.state == "fails":
            places = ", ".join(finding.places)
            look = f"{places}; {prop.look}" if places else prop.look
            explained = f"{finding.measured}\nmust hold: {prop.means}\nlook at: {look}"
            rows.append([Cell(prop.name, style="fails"), Cell(explained)])
    return Grid(_columns("fails", name), rows)


def _property_grid(name: str, result: Results) -> Grid:
    """Return all properties, with what was measured."""
    rows = [
        [
            Cell(prop.name),
            Cell(SIGNS[finding.state], style=finding.state),
            Cell(f"{prop.means}: {finding.measured}"),
        ]
        for prop, finding in result.items()
        if finding.state != "not checked"
    ]
    return Grid(_columns("property", "result", name), rows)


def _summary_grid(results: dict[str, Results]) -> Grid:
    """Return a row for each encoding."""
    rows = []
    for name, result in results.items():
        properties = {
            state: [prop.name for prop, finding in result.items() if finding.state == state]
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
        Column(heading, is_left=True, least=MIN_FOLDED if index else 0)
        for index, heading in enumerate(headings)
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


def _check_each(cases: Sequence[Case]) -> dict[str, Results]:
    """Check every encoding, with a bar on a terminal."""
    results: dict[str, Results] = {}
    from pe_bench.inspection.check import PROPERTIES, check_all

    with progress_bar("check", len(cases) * len(PROPERTIES)) as bar:
        for case in cases:
            done = itertools.count(len(results) * len(PROPERTIES))
            results[case.name] = check_all(
                case, lambda prop, name=case.name, done=done: bar.show(next(done), f"{name}: {prop.name}")
            )
    return results


def show_encodings(arguments: Sequence[str], plot: Path | None, search: Sequence[Path]) -> None:
    """Print the page of each encoding among `arguments`, or of a task, and draw encodings into `plot`.

    Raises `UserError` for arguments and files that cannot be, before anything is printed.
    """
    if any(map(_names_task, arguments)):
        from pe_bench.inspection.page import task_page

        require(plot is None, "a task has no picture: leave --plot out")
        write_out(task_page(arguments, search, width_of(sys.stdout)))
        return
    if plot is not None:
        from pe_bench.cli.report import Outputs

        Outputs({"--plot": plot})
    subjects = resolve(arguments, search)
    from pe_bench.inspection.page import page

    # All pages and the picture first: what cannot be drawn is refused before anything is printed.
    pages = [page(subject, width_of(sys.stdout)) for subject in subjects]
    if plot is not None:
        _draw(subjects, plot)
    write_out("\n\n".join(pages))
    if plot is not None:
        say(f"wrote {plot}")


def _names_task(argument: str) -> bool:
    return re.match(r"\+*task[.=]", argument) is not None


def _draw(subjects: Sequence[ResolvedEncoding], plot: Path) -> None:
    from pe_bench.inspection import picture
    from pe_bench.model.checks import user_code_errors
    from pe_bench.plot.paper import save_picture

    with user_code_errors(*(subject.encoding for subject in subjects)):
        save_picture(lambda: picture.draw(picture.rows_of(subjects)), plot)


FILE = "speed.csv"


def time_encodings(
    arguments: Sequence[str],
    lengths: str,
    repeats: int | None,
    output: Path | None,
    search: Sequence[Path],
    *,
    train: bool,
) -> None:
    """Time the encodings among `arguments`, or all, at each length; print and write the results.

    Rows are written as they come, so that an interruption leaves those that there are, and those of other
    measurements stay in the file. Raises `UserError` for arguments that cannot be, before anything is timed.
    """
    sizes = sorted(set(parse_lengths(lengths)))
    require(sizes[0] > 1, f"--lengths takes lengths of at least 2 tokens, and {sizes[0]} is shorter")
    if output is not None:
        require(output.suffix == ".csv", f"--output {output}: the name must end with .csv")
        require(output.parent.is_dir(), f"--output {output}: there is no folder {output.parent}")
        require(not output.is_dir(), f"--output {output}: a folder has that name")
    request = read_request(arguments, train, search)
    subjects = {size: request.at(size) for size in (sizes if train else sizes[:1])}
    subjects = {size: list(map(_complete, subjects.get(size, subjects[sizes[0]]))) for size in sizes}
    config = subjects[sizes[0]][0].config
    file = output or check_folder(config.results_dir, "results_dir") / FILE
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    require(os.access(folder, os.W_OK), f"{file}: {folder} cannot be written: name another with --output")
    read_rows(file)
    count = len(subjects[sizes[0]])
    for subject in subjects[sizes[0]]:
        _ = subject.encoding  # which raises where it cannot be built
    if not request.is_choice:
        say(f"no encoding is named: timing all {count}; Ctrl-C stops and keeps what is done")
    from pe_bench.inspection.passes import Bench, dtype_of
    from pe_bench.model.attention import is_kernel_here, training_kernel
    from pe_bench.system.machine import resolve_device
    from pe_bench.system.threads import set_threads

    threads, device = set_threads(config.threads), resolve_device(config.device)
    if train and device.type == "cpu" and not is_kernel_here():
        say(f"attention: {training_kernel(device, dtype_of(config, train=True))}")
    _measure(Bench(" ".join(request.shared), train, repeats, device, threads), subjects, file)


def _measure(bench: Bench, subjects: Mapping[int, Sequence[ResolvedEncoding]], file: Path) -> None:
    rows: list[Row] = []
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with progress_bar("speed", sum(map(len, subjects.values()))) as bar:
            for row in bench.rows(subjects, lambda now: bar.show(len(rows), now)):
                write_rows(file, [*rows, row])
                rows.append(row)
                bar.show(len(rows), row.line, row.line)
    finally:
        if rows:
            grid = grid_of(rows)
            show(lambda width: draw(grid, width))
            say(f"wrote {file}")
    if not any(row.status == "ok" for row in rows):
        raise RunError("nothing could be timed: the reasons are below the table")


def _complete(subject: ResolvedEncoding) -> ResolvedEncoding:
    """Return the encoding with an example, which is told, for each option that its class requires."""
    complete = with_examples(subject)
    for option, value in complete.config.encoding.items():
        if subject.config.encoding.get(option, {}) != value:
            say(f"{subject.name} has no default for {option}: timed with {option}={value}, an example")
    return complete
