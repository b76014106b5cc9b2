"""The `check`, `show` and `speed` commands: what encodings do, and what they cost."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from pe_bench.cli.data import print_data
from pe_bench.config.groups import encoding_names
from pe_bench.config.overrides import parse_override
from pe_bench.errors import RunError, require
from pe_bench.inspection.resolve import resolve, resolve_timed, split_arguments
from pe_bench.plot.paper import picture_format, save_picture
from pe_bench.runs.find import is_checkpoint
from pe_bench.system.files import check_folder, require_writable
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid, draw, show
from pe_bench.system.terminal import progress_bar, say, width_of, write_out
from pe_bench.values import parse_lengths

if TYPE_CHECKING:  # with torch, which a mistyped argument should not wait for
    from pe_bench.inspection.check import Property
    from pe_bench.inspection.check.case import Case, Finding
    from pe_bench.inspection.speed import Row

    Results = dict[Property, Finding]

# In colour too, and not by colour alone.
SIGNS = {"holds": "ok", "fails": "FAILS", "not claimed": "-"}


def check_encodings(
    arguments: Sequence[str],
    search: Sequence[Path] = (),
    *,
    everything: bool = False,
    verbose: bool = False,
    as_json: bool = False,
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
        message = f"check uses its own model: leave out {text}, which is not an option of an encoding"
        require(is_option, message)
    from pe_bench.inspection.check.case import find_cases

    cases = find_cases([*(encoding_names(search) if everything else []), *arguments], search)
    for case in cases:
        _tell_examples("checked", case.name, case.examples)
    results = _check_each(cases)
    if as_json:
        print_data("check", encodings=[_data(name, result) for name, result in results.items()])
    else:
        _show(results, verbose)
    states = [finding.state for result in results.values() for finding in result.values()]
    failed, unknown = states.count("fails"), states.count("not checked")
    if failed:
        told = f"{failed} of {len(states)} checks failed"
        raise RunError(f"{told}, {unknown} could not be made" if unknown else told)
    if not as_json:
        hint = "" if verbose else "; the number of each: --verbose"
        write_out(f"\n{states.count('holds')} checks hold, none fails{hint}\n")


def _check_each(cases: Sequence[Case]) -> dict[str, Results]:
    """Check every encoding, with a bar on a terminal."""
    from pe_bench.inspection.check import PROPERTIES, check_all

    results: dict[str, Results] = {case.name: {} for case in cases}
    with progress_bar("check", len(cases) * len(PROPERTIES)) as bar:
        for case in cases:
            for prop, finding in check_all(case):
                results[case.name][prop] = finding
                bar.show(sum(map(len, results.values())), f"{case.name}: {prop.name}")
    return results


def _data(name: str, result: Results) -> dict[str, Any]:
    """Return what a program reads of an encoding: each property with what was found of it."""
    about = [
        {"property": prop.name, "means": prop.means, "look": prop.look, **finding._asdict()}
        for prop, finding in result.items()
    ]
    return {"encoding": name, "findings": about}


def _show(results: dict[str, Results], verbose: bool) -> None:
    notes = [f"{name}: {one.note}" for name, each in results.items() for one in each.values() if one.note]
    summary = [_summary(name, result) for name, result in results.items()]
    grids = [_grid(("encoding", "holds", "fails", "unclaimed"), summary, notes)]
    grids += [grid for name, result in results.items() for grid in _details(name, result, verbose)]
    show(lambda width: [line for grid in grids for line in [*draw(grid, width), Text()]][:-1])


def _grid(headings: Sequence[str], rows: Iterable[Sequence[Cell]], notes: Sequence[str] = ()) -> Grid:
    """Return a table whose first column holds names, which are not broken."""
    columns = [Column(name, is_left=True, least=MIN_FOLDED * (name != headings[0])) for name in headings]
    return Grid(columns, list(rows), notes=notes)


def _summary(name: str, result: Results) -> list[Cell]:
    properties = {
        state: [prop.name for prop, finding in result.items() if finding.state == state]
        for state in (*SIGNS, "not checked")
    }
    unknown = len(properties["not checked"])
    failing = ", ".join([*properties["fails"], *([f"{unknown} not checked"] if unknown else [])])
    holding = f"{len(properties['holds'])} of {len(result) - unknown}"
    failed = Cell(failing or "0", style="fails" if failing else "")
    return [Cell(name), Cell(holding), failed, Cell(", ".join(properties["not claimed"]))]


def _details(name: str, result: Results, verbose: bool) -> Iterator[Grid]:
    """Yield a table of what failed or, if `verbose`, of everything: what was measured, and where to look."""
    states = ("fails", "holds", "not claimed") if verbose else ("fails",)
    rows = [
        [Cell(prop.name, style=finding.state), Cell(_explain(prop, finding, verbose))]
        for prop, finding in result.items()
        if finding.state in states
    ]
    if rows:
        yield _grid(("property" if verbose else "fails", name), rows)


def _explain(prop: Property, finding: Finding, verbose: bool) -> str:
    sign = f"{SIGNS[finding.state]}  " if verbose else ""
    if finding.state != "fails":
        return f"{sign}{prop.means}: {finding.measured}"
    look = ", ".join(finding.lines) + "; " + prop.look if finding.lines else prop.look
    return f"{sign}{finding.measured}\nmust hold: {prop.means}\nlook at: {look}"


def _tell_examples(done: str, name: str, examples: Mapping[str, Any]) -> None:
    for option, value in examples.items():
        say(f"{name} has no default for {option}: {done} with {option}={value}, an example")


def show_encodings(arguments: Sequence[str], plot: Path | None, search: Sequence[Path]) -> None:
    """Print the page of each encoding among `arguments`, of a task or of a checkpoint; draw encodings.

    Raises `UserError` for arguments and files that cannot be, before anything is printed.
    """
    if any(map(is_checkpoint, arguments)):
        from pe_bench.checkpoints.layers import layers_of

        require(
            plot is None and len(arguments) == 1,
            "show takes one checkpoint at a time, and draws no picture of it",
        )
        grid = layers_of(arguments[0])
        show(lambda width: draw(grid, width))
        return
    if any(re.match(r"\+*task[.=]", argument) for argument in arguments):
        from pe_bench.inspection.page import task_page

        require(plot is None, "a task has no picture: leave --plot out")
        write_out(task_page(arguments, search, width_of(sys.stdout)))
        return
    if plot is not None:
        require_writable("--plot", plot)
        picture_format(plot)
    subjects = resolve(arguments, search)
    from pe_bench.inspection import picture
    from pe_bench.inspection.page import page
    from pe_bench.model.checks import user_code_errors

    # All pages and the picture first: what cannot be drawn is refused before anything is printed.
    pages = [page(subject, width_of(sys.stdout)) for subject in subjects]
    if plot is not None:
        with user_code_errors(*(subject.encoding for subject in subjects)):
            save_picture(lambda: picture.draw(picture.rows_of(subjects)), plot)
    write_out("\n\n".join(pages))
    if plot is not None:
        say(f"wrote {plot}")


def time_encodings(
    arguments: Sequence[str],
    lengths: str,
    repeats: int | None,
    output: Path | None,
    search: Sequence[Path],
    *,
    train: bool,
    as_json: bool = False,
) -> None:
    """Time the encodings among `arguments`, or all, at each length; print and write the results.

    Rows are written as they come, so that an interruption leaves those that there are, and those of other
    measurements stay in the file. Raises `UserError` for arguments that cannot be, before anything is timed.
    """
    sizes = sorted(set(parse_lengths(lengths)))
    require(sizes[0] > 1, f"--lengths takes lengths of at least 2 tokens, and {sizes[0]} is shorter")
    if output is not None:
        require(output.suffix == ".csv", f"--output {output}: the name must end with .csv")
        require_writable("--output", output)
    setting, subjects = resolve_timed(arguments, sizes, search, train=train)
    for subject in subjects[sizes[0]]:
        _tell_examples("timed", subject.name, subject.examples)
        _ = subject.encoding  # which raises where it cannot be built
    config = subjects[sizes[0]][0].config
    file = output or check_folder(config.results_dir, "results_dir", is_written=True) / "speed.csv"
    from pe_bench.inspection.speed import FACTS, Bench, dtype_of, grid_of, line_of, read_rows, write_rows
    from pe_bench.model.attention import is_kernel_here
    from pe_bench.model.attention.native import training_kernel
    from pe_bench.system.machine import environment, resolve_device, set_threads

    read_rows(file)
    if not split_arguments(arguments)[0]:
        say(
            f"no encoding is named: timing all {len(subjects[sizes[0]])}; Ctrl-C stops and keeps what is done"
        )
    threads, device = set_threads(config.threads), resolve_device(config.device)
    if train and device.type == "cpu" and not is_kernel_here():
        say(f"attention: {training_kernel(device, dtype_of(config, train=True))}")
    facts = environment(device, threads)
    bench = Bench({"setting": setting, **{name: facts[name] for name in FACTS}}, train, repeats, device)
    rows: list[Row] = []
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with progress_bar("speed", sum(map(len, subjects.values()))) as bar:
            for row in bench.rows(subjects, lambda now: bar.show(len(rows), now)):
                write_rows(file, [*rows, row])
                rows.append(row)
                bar.show(len(rows), line_of(row), line_of(row))
    finally:
        if rows:
            grid = grid_of(rows)
            if as_json:
                print_data("speed", rows=rows)
            else:
                show(lambda width: draw(grid, width))
            say(f"wrote {file}")
    if not any(row["status"] == "ok" for row in rows):
        raise RunError("nothing could be timed: the reasons are below the table")
