"""The commands on encodings without training: `check`, `show` and `speed`."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.cli.data import print_data
from pe_bench.cli.options import command
from pe_bench.errors import RunError, require
from pe_bench.system.terminal import progress_bar, say, width_of, write_out
from pe_bench.values import check_folder, parse_lengths, require_writable

if TYPE_CHECKING:  # these import torch, for which a mistyped argument should not wait
    from pe_bench.inspection.check import Property
    from pe_bench.inspection.check.case import Finding
    from pe_bench.inspection.speed import SpeedRow
    from pe_bench.render.grid import Grid


# The end of a run's name with its hash, a part of the hash, or none.
RUN_NAME = re.compile(r"-s\d+(-[0-9a-f]*)?\*?$")
# Sections and keys that `speed` does not read.
NOT_IN_SPEED = ("data", "task", "tokenizer", "precision", "report", "tag", "tracker")
Findings = dict["Property", "Finding"]  # the findings of an encoding
# In colour too, and not by colour alone.
STATE_SIGNS = {"holds": "ok", "fails": "FAILS", "not claimed": "-"}


@command("check")
def check(
    arguments: Sequence[str] = (),
    *,
    everything: bool = False,
    verbose: bool = False,
    as_json: bool = False,
    config_dir: Sequence[Path] = (),
) -> None:
    """Check that an encoding, shipped or your own, is correct.

    It must be causal, exact in blocks and on fast paths, finite at 65,536 tokens, and do what it
    claims. Exit code 1 if a property fails.

    arguments NAME|FILE.py:CLASS|KEY=VALUE: Encodings and their options.
    everything: Check every encoding.
    verbose: Show every property, with what was measured.

    Examples:
      pe-bench check rope
      pe-bench check yarn factor=4
      pe-bench check my.py:MyEncoding --verbose
      pe-bench check --all
    """
    from pe_bench.config.arguments import is_encoding_option, names_and_overrides
    from pe_bench.config.groups import names_in
    from pe_bench.config.overrides import parse_override

    names, overrides = names_and_overrides(arguments)
    require(not (names and everything), f"--all checks every encoding: leave out {' '.join(names)}, or --all")
    require(bool(names) or everything, "name an encoding, a file.py:Class, or say --all")
    for override in map(parse_override, overrides):
        message = f"check uses its own model: leave out {override}, which is no option of an encoding"
        require(is_encoding_option(override) or override.key == "modifier", message)
    every = names_in("encoding", config_dir) if everything else []
    print_checks(check_each([*every, *arguments], config_dir), verbose=verbose, as_json=as_json)


def check_each(arguments: Sequence[str], search: Sequence[Path]) -> dict[str, Findings]:
    """Check every encoding in the arguments, and return the findings of each by its name."""
    from pe_bench.inspection.check import PROPERTIES, check_all
    from pe_bench.inspection.check.case import find_cases
    from pe_bench.system.machine import one_thread

    cases = find_cases(arguments, search)
    results: dict[str, Findings] = {case.name: {} for case in cases}
    with one_thread(), progress_bar("check", len(cases) * len(PROPERTIES)) as bar:
        for case in cases:
            for prop, finding in check_all(case):
                results[case.name][prop] = finding
                bar.show(sum(map(len, results.values())), f"{case.name}: {prop.name}")
    return results


def print_checks(results: dict[str, Findings], *, verbose: bool = False, as_json: bool = False) -> None:
    """Print the findings. Raises `RunError` if a property fails."""
    states = finding_states(results)
    if as_json:
        print_data("check", encodings=[_findings_data(name, result) for name, result in results.items()])
    else:
        from pe_bench.render import grid

        grid.show(each.draw for each in _finding_grids(results, verbose=verbose))
    if "fails" in states:
        raise RunError(f"{states.count('fails')} of {len(states)} checks failed")
    if not as_json:
        write_out(f"\n{len(states) - states.count('not claimed')} checks hold, none fails\n")


def finding_states(results: dict[str, Findings]) -> list[str]:
    """Return the states of all properties of all encodings: holds, fails or not claimed."""
    states: list[str] = []
    for result in results.values():
        states += [finding.state for finding in result.values()]
    return states


def _findings_data(name: str, result: Findings) -> dict[str, Any]:
    """Return the findings about an encoding as data for programs."""
    findings = []
    for prop, finding in result.items():
        facts = {"property": prop.name, "means": prop.meaning, "look": prop.look}
        findings.append(facts | finding._asdict())
    return {"encoding": name, "findings": findings}


def _finding_grids(results: dict[str, Findings], *, verbose: bool) -> "Iterator[Grid]":
    """Yield a table of all encodings, then a table for each with its failures, or `verbose` all findings."""
    from pe_bench.render.grid import Cell, plain_grid
    from pe_bench.report.marks import verdict_cell

    summary: list[list[Cell | str]] = []
    for name, result in results.items():
        names: dict[str, list[str]] = {state: [] for state in STATE_SIGNS}
        for prop, finding in result.items():
            names[finding.state].append(prop.name)
        holds = f"{len(names['holds'])} of {len(result)}"
        failing = ", ".join(names["fails"])
        fails = replace(verdict_cell("fails"), text=failing) if failing else Cell("0")
        summary.append([name, holds, fails, ", ".join(names["not claimed"])])
    yield plain_grid(("encoding", "holds", "fails", "unclaimed"), summary)
    for name, result in results.items():
        rows = []
        for prop, finding in result.items():
            if verbose or finding.state == "fails":
                cell = replace(verdict_cell(finding.state), text=prop.name)
                rows.append([cell, Cell(_finding_text(prop, finding, verbose))])
        if rows:
            yield plain_grid(("property" if verbose else "fails", name), rows)


def _finding_text(prop: "Property", finding: "Finding", verbose: bool) -> str:
    """Return a finding as text: its measurement and, after a failure, the places to look at."""
    sign = f"{STATE_SIGNS[finding.state]}  " if verbose else ""
    if finding.state != "fails":
        return sign + ": ".join(filter(None, (prop.meaning, finding.measured)))
    look = "; ".join(filter(None, (", ".join(finding.lines), prop.look)))
    return f"{sign}{finding.measured}\nmust hold: {prop.meaning}\nlook at: {look}"


@command("show")
def show(
    arguments: Sequence[str] = (),
    *,
    plot: Path | None = None,
    sample: bool = False,
    code: Sequence[Path] = (),
    config_dir: Sequence[Path] = (),
    results_dir: Path = Path("results"),
) -> None:
    """Show an encoding, a task, a run, or a Hugging Face model.

    An encoding is shown by its equation, options and claims; hf:FOLDER by what each of its layers does:
    rotation and base, window, sinks; a run by its encoding and attention (--plot) and by what it writes
    (--sample).

    arguments NAME|FILE.py:CLASS|RUN|KEY=VALUE: Encodings, and keys as in train; or a run.
    plot FILE: Draw the encodings, or a run's encoding and attention by layer, to a PNG, SVG or PDF file.
    sample: Write 200 characters with a run, each the likeliest, after a prompt of its training length and of
        its longest scored length.
    code FILE: Trust FILE as the code of a run's custom encoding.

    Examples:
      pe-bench show yarn
      pe-bench show rope alibi t5 --plot compare.png
      pe-bench show rope base=500 train.length=256
      pe-bench show my.py:MyEncoding --plot mine.svg
      pe-bench show hf:FOLDER
      pe-bench show rope-s0-1a2b3c4d --plot trained.png
      pe-bench show rope-s0-1a2b3c4d --sample
    """
    is_hf_model = any(argument.startswith("hf:") for argument in arguments)
    is_task = any(re.match(r"\+*task[.=]", argument) for argument in arguments)
    is_run = sample or any(_is_run(argument, results_dir, config_dir) for argument in arguments)
    takes_code = is_run and not is_hf_model and not is_task
    require(takes_code or not code, "--code is for a run with an encoding of its own: leave it out")
    if is_hf_model:
        from pe_bench.hf.layers import layer_table
        from pe_bench.render import grid

        is_one = plot is None and not sample and len(arguments) == 1
        require(
            is_one,
            "show takes one Hugging Face model at a time, without --plot and --sample: leave out the rest",
        )
        grid.show([layer_table(arguments[0]).draw])
    elif is_task:
        from pe_bench.inspection.page import task_page

        require(plot is None, "a task has no picture: leave --plot out")
        require(not sample, "a task writes no text: leave --sample out")
        write_out(task_page(arguments, config_dir, width_of(sys.stdout)))
    elif is_run:
        require(len(arguments) == 1, f"show takes one run at a time, not {' '.join(arguments) or 'none'}")
        message = f"say what to show of the run {arguments[0]}: --plot FILE, --sample, or both"
        require(sample or plot is not None, message)
        _show_run(arguments[0], plot, results_dir, code, sample=sample)
    else:
        _show_encodings(arguments, plot, config_dir)


def _is_run(argument: str, results_dir: Path, search: Sequence[Path]) -> bool:
    """Return whether an argument of `show` is a finished run's folder or name, or has a run name's form.

    The name of an encoding, shipped or in the folders `search`, is never a run.
    """
    from pe_bench.config.groups import names_in

    if "=" in argument or ":" in argument or argument in names_in("encoding", search):
        return False
    paths = (Path(argument), results_dir / "runs" / argument)
    is_folder = any((path / "result.json").is_file() for path in paths)
    return is_folder or RUN_NAME.search(Path(argument).name) is not None


def _show_run(name: str, plot: Path | None, results_dir: Path, code: Sequence[Path], *, sample: bool) -> None:
    """Draw a trained run, and print a text that it writes. Raises `UserError`, `RunError`."""
    from pe_bench.commands.show_run import draw_run, load_run, text_written
    from pe_bench.render.paper import picture_format

    if plot is not None:
        require_writable("--plot", plot)
        picture_format(plot)
    job = load_run(name, results_dir, code)
    if plot is not None:
        draw_run(job, plot)
        say(f"wrote {plot}")
    if sample:
        write_out(text_written(job))


def _show_encodings(arguments: Sequence[str], plot: Path | None, search: Sequence[Path]) -> None:
    """Print the page of each encoding, and draw them.

    Raises `UserError` for invalid arguments and files before anything is printed.
    """
    from pe_bench.inspection.resolve import resolve
    from pe_bench.render.paper import picture_format, save_picture

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


@command("speed")
def speed(
    arguments: Sequence[str] = (),
    *,
    lengths: str = "512,2048,8192",
    repeats: int | None = None,
    as_json: bool = False,
    config_dir: Sequence[Path] = (),
) -> None:
    """Measure time and memory of encodings, relative to nope.

    Prints a table, and adds its rows to speed.csv in the folder results_dir.

    arguments NAME|FILE.py:CLASS|KEY=VALUE: Encodings, and keys as in train.  [default: all encodings]
    lengths N,N: Window lengths in tokens.
    repeats NUMBER: Timed passes per encoding.  [default: 5 to 25]

    Examples:
      pe-bench speed rope alibi --lengths 512,2048
      pe-bench speed t5 model=small
      pe-bench speed lm_infinite encoding.window=64 threads=1
      pe-bench speed my.py:MyEncoding
    """
    from pe_bench.config.arguments import in_sections, names_and_overrides
    from pe_bench.inspection.resolve import encodings_to_time

    sizes = sorted(set(parse_lengths(lengths)))
    require(sizes[0] > 1, f"--lengths takes lengths of at least 2 tokens, and {sizes[0]} is shorter")
    unread = in_sections(names_and_overrides(arguments)[1], NOT_IN_SPEED)
    message = f"speed scores random bytes, in the type of eval.precision: leave out {' '.join(unread)}"
    require(not unread, message)
    setting, subjects = encodings_to_time(arguments, config_dir)
    config = subjects[0].config
    file = check_folder(config.results_dir, "results_dir", is_written=True) / "speed.csv"
    from pe_bench.inspection.speed import MACHINE_COLUMNS, Bench, grid_of, texts_of, write_rows
    from pe_bench.render import grid
    from pe_bench.system.machine import environment, resolve_device, set_threads

    threads = set_threads(config.threads)
    device = resolve_device(config.device)
    facts = environment(device, threads)
    shared = {"setting": setting, "pass": "score", "dtype": config.eval.precision}
    bench = Bench(shared | {name: facts[name] for name in MACHINE_COLUMNS}, device, repeats)
    rows: list[SpeedRow] = []
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with progress_bar("speed", len(sizes) * len(subjects)) as bar:
            for row in bench.rows(subjects, sizes):
                rows.append(row)
                write_rows(file, rows)  # as they come: an interruption leaves those that there are
                name, length, path, milliseconds, *_ = texts_of(row)
                result = f"{milliseconds} ms" if milliseconds else path
                line = f"{name} at {length}: {result}"
                bar.show(len(rows), line, line)
    finally:
        if rows:
            if as_json:
                print_data("speed", rows=rows)
            else:
                grid.show([grid_of(rows).draw])
            say(f"wrote {file}")
    if not any(row["status"] == "ok" for row in rows):
        raise RunError("nothing could be timed: the reasons are below the table")
