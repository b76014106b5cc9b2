"""The `reproduce` command: make a study's missing runs, compare its levels, judge its claims."""

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.cli.options import command
from pe_bench.errors import RunError, require
from pe_bench.system.terminal import say, width_of, write_out

if TYPE_CHECKING:
    from pe_bench.commands.reproduce.claims import Measurements, RestoredShares
    from pe_bench.commands.reproduce.outcomes import LevelRow, StudyOutcomes
    from pe_bench.commands.reproduce.pieces import StoredPieces
    from pe_bench.commands.reproduce.runs import StudyRuns
    from pe_bench.commands.reproduce.study import Study


@command("reproduce")
def reproduce(
    arguments: Sequence[str] = (),
    *,
    quick: bool = False,
    text: str = "stdlib",
    stored: bool = False,
    write_table: bool = False,
    claims: bool = False,
    as_json: bool = False,
    models: Path | None = None,
    config_dir: Sequence[Path] = (),
    results_dir: Path = Path("results"),
) -> None:
    """Repeat a paper's experiment with small models; test its claims.

    Trains and scores what is missing; after Ctrl-C, repeat the command to continue. Then compares
    the levels with the study's table (exit code 1 if they differ), and tests the paper's claims:
    each holds, is contradicted or stays unclear. Without NAME, lists the studies.

    arguments NAME|KEY=VALUE: A study, then settings of this machine: threads, device, cache_dir,
        hydra/launcher. With --claims, papers.
    quick: Train toy models, in minutes, to see that everything works.
    text stdlib|DIR: The text: Python's standard library, or a folder of files.
    stored: Train nothing: test the claims on the scores that are stored with the study.
    write_table: Make the study in pieces, an encoding with its seeds each, and store the scores of
        each piece and the study's table as it ends (for maintainers). With --quick, only the levels
        of the toy are written.
    claims: Print the ledger: the claims of all papers, or of the papers named, and what our stored
        scores say of each claim, at each model size and after each training budget.
    models DIR: The folder with the Hugging Face models that a study such as real scores; without it, the
        command says how to get them.
    config_dir DIR: A folder with your study/NAME.yaml and encodings.

    Examples:
      pe-bench reproduce                       # the studies, and the runs stored
      pe-bench reproduce alibi --quick         # a toy of it: everything works
      pe-bench reproduce alibi
      pe-bench reproduce budget --stored       # what our own runs say, in seconds
      pe-bench reproduce --claims yarn pi      # what two papers claim
      pe-bench reproduce alibi --text books    # the same on texts in a folder
      pe-bench reproduce alibi threads=1 hydra/launcher=joblib
    """
    names = [argument for argument in arguments if "=" not in argument]
    machine = [argument for argument in arguments if "=" in argument]
    if claims:
        rest = [*machine, *config_dir]
        message = "--claims only reads stored scores: give it names of papers and --json, nothing else"
        require(not (quick or stored or write_table or models or rest or text != "stdlib"), message)
        _print_claims(names, as_json=as_json)
        return
    require(not as_json, "--json is for pe-bench reproduce --claims: leave it out")
    if not names and not (quick or machine or stored or write_table or config_dir):
        from pe_bench.cli.list import list_

        list_("studies", results_dir=results_dir)
        return
    from pe_bench.commands.reproduce.runs import StudyRuns
    from pe_bench.commands.reproduce.study import STDLIB, read_study, study_names

    studies = ", ".join(study_names(config_dir))
    require(len(names) == 1, f"one study at a time: {', '.join(names) or 'name one'}; there are {studies}")
    for override in machine:
        _require_machine_key(override)
    require(text == STDLIB or Path(text).is_dir(), f"--text {text} is neither stdlib nor a folder")
    text = text if text == STDLIB else str(Path(text).absolute())
    study = replace(read_study(names[0], config_dir), text=text)
    hf_models = [sweep.hf_model for sweep in study.sweeps if sweep.hf_model]
    message = f"--quick trains toys, and {study.name} scores {', '.join(hf_models)}: leave out --quick"
    require(not (quick and hf_models), message)
    study = study.quick() if quick else study
    runs = StudyRuns(study, machine, results_dir, models)
    if stored:
        require(not (quick or write_table), "--stored trains nothing: leave out --quick and --write-table")
        require(not machine, f"--stored trains nothing: leave out {' '.join(machine)}")
        require(models is None, "--stored reads no Hugging Face models: leave out --models")
        _report_stored(runs)
    elif write_table and not quick:
        _make_pieces(runs)
    else:
        _make_and_report(runs, write_table)


def _print_claims(names: Sequence[str], *, as_json: bool) -> None:
    from pe_bench.cli.data import print_data
    from pe_bench.commands.reproduce.ledger import Ledger, chosen_papers, ledger_data, render_ledger

    papers = chosen_papers(Ledger(), names)
    if as_json:
        print_data("reproduce", papers=ledger_data(papers))
    else:
        write_out(render_ledger(papers, min(width_of(sys.stdout), 80)))


def _require_machine_key(text: str) -> None:
    from pe_bench.config.overrides import parse_override
    from pe_bench.config.schema import MACHINE_KEYS

    key = parse_override(text).key
    is_of_machine = re.split("[./]", key)[0] == "hydra" or key in MACHINE_KEYS
    keys = ", ".join(MACHINE_KEYS)
    require(is_of_machine, f"{text} would change the study: reproduce takes {keys} and Hydra's keys alone")


def _print_cost(study: "Study") -> None:
    """Print the cost of the whole study; later its sweeps print their own cost."""
    from pe_bench.system.cost import cost_text, count

    if study.size == "quick":
        return
    cores = 0 if study.name == "gpu" else 2
    whole = cost_text(f"{study.name}: {count(study.n_runs, 'run')} in all", 60 * study.minutes, cores)
    say(f"{whole} by the estimate in its file; what is done is reused")


def _make_and_report(runs: "StudyRuns", write_table: bool) -> None:
    """Make the missing runs of a study, print its levels and claims, and draw them.

    write_table: write the levels to the study's table. Else levels that differ from it raise `RunError`.
    """
    _print_cost(runs.study)
    steps = list(runs.steps())
    from pe_bench.commands.reproduce.claims import Measurements, Series
    from pe_bench.commands.reproduce.outcomes import read_table, write_levels

    explained: list[RestoredShares] = []
    if runs.study.explains:
        from pe_bench.commands.reproduce.explained import explain_step, shares_of
        from pe_bench.runs.rows import grouped

        for step in steps:
            # A further scoring has no encodings, so that no run is explained twice.
            for names in grouped(step.encodings, step.encodings.__getitem__).values():
                found = explain_step(runs, replace(step, runs=tuple(names)))
                write_out(str(found))
                explained.append(shares_of(Series(found.label, step.sweep), found.losses, found.effects))
    table = runs.study.table_path
    measured = Measurements(runs.results_dir, steps, runs.study.length, explained)
    outcomes = _show_study(runs, measured, runs.results_dir, read_table(table))
    differing = len(outcomes.differing)
    if write_table:
        write_levels(table, outcomes.ours)
        say(f"wrote {table}")
    elif differing:
        raise RunError(f"levels that differ from {table}: {differing}")


def _report_stored(runs: "StudyRuns", table: "Sequence[LevelRow] | None" = None) -> None:
    """Print the levels and claims of a study's stored pieces, and draw them.

    table: levels to compare with. By default these are the study's table, and differing levels raise
    `RunError`.
    """
    from pe_bench.commands.reproduce.claims import Measurements
    from pe_bench.commands.reproduce.explained import (
        draw_explanations,
        stored_explanations,
        stored_shares,
    )
    from pe_bench.commands.reproduce.outcomes import read_table
    from pe_bench.commands.reproduce.pieces import StoredPieces

    pieces = StoredPieces(runs.study)
    measured = Measurements(pieces.folder, pieces.steps(), runs.study.length, stored_shares(pieces))
    own_table = read_table(runs.study.table_path)
    outcomes = _show_study(runs, measured, pieces.folder, own_table if table is None else table)
    for text in stored_explanations(pieces):
        write_out(text)
    for picture in draw_explanations(pieces, runs.study.picture_path(runs.results_dir).parent):
        say(f"what each layer does: {picture}")
    if missing := pieces.missing():
        say(f"pieces that are not stored: {len(missing)}, first {missing[0]}")
    if table is None and outcomes.differing:
        raise RunError(f"levels that differ from {runs.study.table_path}: {len(outcomes.differing)}")


def _make_pieces(runs: "StudyRuns") -> None:
    """Make the missing pieces of a study one after the other; store each and its levels when it ends."""
    from pe_bench.commands.reproduce.claims import Measurements
    from pe_bench.commands.reproduce.outcomes import levels_of, read_table, write_levels
    from pe_bench.commands.reproduce.pieces import StoredPieces

    runs.check()
    study = runs.study
    pieces = StoredPieces(study)
    pieces.require_torch()
    _print_cost(study)
    before = read_table(study.table_path)
    for piece in pieces.read():
        say(f"stored: {piece}")
    _explain_pieces(runs, pieces)
    for piece in pieces.missing():
        say(f"next: {piece}")
        pieces.add(piece, runs.make_piece(piece), runs.results_dir)
        measured = Measurements(pieces.folder, pieces.steps(), study.length)
        write_levels(study.table_path, levels_of(measured.rows, study.size, measured.machines))
        say(f"stored {piece} in {pieces.folder}, its levels in {study.table_path}")
        _explain_pieces(runs, pieces)
    _report_stored(runs, before)


def _explain_pieces(runs: "StudyRuns", pieces: "StoredPieces") -> None:
    """Explain the stored pieces that have no explanation, if the study asks for explanations."""
    if not runs.study.explains:
        return
    from pe_bench.commands.reproduce.explained import explain_piece, is_explained

    for piece in pieces.still_in_study():
        if not is_explained(piece, pieces.folder):
            say(f"explaining {piece}")
            explain_piece(runs, piece, pieces.folder)


def _show_study(
    runs: "StudyRuns", measured: "Measurements", results_dir: Path, table: "Sequence[LevelRow]"
) -> "StudyOutcomes":
    """Print the levels and claims of a study, and draw its scores.

    results_dir: the folder with the scored runs. table: levels to compare with.
    """
    from pe_bench.commands.reproduce.budgets import budget_results, budget_table_lines, draw_budgets
    from pe_bench.commands.reproduce.outcomes import judge_study, render
    from pe_bench.commands.reproduce.sizes import draw_sizes, size_results, size_table_lines

    study = runs.study
    outcomes = judge_study(study, measured, table)
    path = study.picture_path(runs.results_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    budgets = budget_results(study, measured) if study.over == "tokens" else []
    sizes = size_results(study, measured) if study.over == "parameters" else []
    width = min(width_of(sys.stdout), 100)
    if budgets:
        _write_lines(budget_table_lines(budgets, measured.length, width), width)
    elif sizes:
        _write_lines(size_table_lines(sizes, study, measured, width), width)
    write_out(render(outcomes, width))
    if budgets:
        draw_budgets(budgets, study, path)
    elif sizes:
        draw_sizes(sizes, study, path)
    else:
        _draw_study(study, measured, results_dir, path)
    say(f"the picture: {path}")
    return outcomes


def _write_lines(lines: Iterable[str], width: int) -> None:
    """Print the lines of a table, its sentences broken at the width, and an empty line after them."""
    fitting_lines: list[str] = []
    for line in lines:
        is_long = len(line) > width
        fitting_lines += textwrap.wrap(line, width, subsequent_indent="  ") if is_long else [line]
    write_out("".join(f"{line}\n" for line in (*fitting_lines, "")))


def _draw_study(study: "Study", measured: "Measurements", results_dir: Path, path: Path) -> None:
    """Draw the report's curves of the runs, without scores of other studies."""
    from pe_bench.report.build import build_tables
    from pe_bench.report.draw import plot_tables
    from pe_bench.report.groups import Selection
    from pe_bench.runs.find import Condition
    from pe_bench.runs.rows import TASK
    from pe_bench.runs.typed import results_option

    rows = [row for row in chain.from_iterable(measured.rows.values()) if row.protocol in ("paired", TASK)]
    where = []
    for column in ("target_hash", "length", "scored_with"):
        values = {str(getattr(row, column)) for row in rows}
        where.append(Condition(column, "=", tuple(sorted(values))))
    names = sorted({row.run for row in rows})
    # First stages that differ in these keys are lines of one panel, instead of a panel each. The report names
    # the keys in which later stages differ.
    first_sweeps = [sweep for sweep in study.sweeps if not sweep.parent_sweep]
    budgets = {sweep.tokens for sweep in first_sweeps}
    rates = {tuple(text for text in sweep.overrides if "train.lr=" in text) for sweep in first_sweeps}
    by = []
    if len(budgets) > 1:
        by.append("train.tokens")
    if len(rates) > 1:
        by.append("train.lr")
    selection = Selection(where=tuple(where), by=tuple(by))
    plot_tables(build_tables(results_dir, names, selection=selection), path)
    # The runs of a Hugging Face model are not named after its encoding.
    trained = chain.from_iterable(sweep.encodings for sweep in study.sweeps if not sweep.hf_model)
    command = " ".join(["pe-bench report", *dict.fromkeys(trained)])
    say(f"tables of the runs: {command}{results_option(results_dir)}")
