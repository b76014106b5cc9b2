"""What is unclear in a table: how bad it can be at most, and the commands that would settle it."""

import shlex
from collections.abc import Iterator, Sequence
from math import isfinite

from pe_bench.config.schema import EvalConfig
from pe_bench.report.groups import MAX_NAMES, list_lengths
from pe_bench.report.records import Note, Paired, Table
from pe_bench.runs.find import ScoredRuns, finished_runs
from pe_bench.runs.folder import encoding_in
from pe_bench.runs.rows import BY_RUN, Row, grouped, has_number
from pe_bench.runs.typed import results_option

MAX_LINES = 3  # that the short form names


def unclear_notes(table: Table, rows: Sequence[Row], runs: ScoredRuns) -> Iterator[Note]:
    """Yield how bad the unclear changes or differences can be at most, and what would settle them."""
    bounds = _bounds(table)
    # Targets of the whole set, of which a slice has only some.
    targets = max((row.targets for row in rows if has_number(row)), default=0)
    everywhere: list[str] = []
    ways_out = [] if table.key.is_of_checkpoints else ["more seeds"]  # a checkpoint has no seeds
    longs: list[str] = []
    for by_seeds, of_lines in sorted(bounds.items()):
        where = [
            f"{label} at {list_lengths(highs)} (at most {max(highs.values()):+.3f})"
            for label, highs in of_lines.items()
        ]
        everywhere += where
        way_out = "Most of this is how seeds differ: train more seeds"
        if not by_seeds:
            options = _options(table, rows, 4 * targets)
            ways_out.append(options.strip() or "more eval.tokens")
            way_out = _more_targets(table, rows, runs, options)
        what = f"differences from {table.baseline}" if table.baseline else "changes"
        longs.append(f"unclear {what}: {'; '.join(where)}. {way_out}")
    if not longs:
        return
    against = f" against {table.baseline}" if table.baseline else ""
    more = f" and {len(everywhere) - MAX_LINES} more" if len(everywhere) > MAX_LINES else ""
    named = ", ".join(everywhere[:MAX_LINES]) + more
    yield Note(longs[0], short=f"unclear{against}: {named}; {' or '.join(dict.fromkeys(ways_out))}")
    yield from (Note(text, is_caveat=False) for text in longs[1:])


def _bounds(table: Table) -> dict[bool, dict[str, dict[int, float]]]:
    """Return the upper bounds of what is unclear by line and length, and whether seeds are most of it."""
    bounds: dict[bool, dict[str, dict[int, float]]] = {}
    for line in table.lines if not table.is_task else ():
        for length, record in line.records.items():
            judged, verdict = record.compared, record.verdict
            if table.baseline:
                judged = record.baseline or Paired()
                verdict = judged.verdict
            interval = judged.interval
            if verdict == "unclear" and interval is not None and isfinite(interval.high):
                by_seeds = interval.spread is not None and interval.spread.seed_share > 0.5
                bounds.setdefault(by_seeds, {}).setdefault(line.label, {})[length] = interval.high
    return bounds


def _options(table: Table, rows: Sequence[Row], targets: int) -> str:
    """Return the options of `eval` that score so many targets; empty without blocks of them."""
    blocks, key = rows[0].target_tokens, table.key
    if rows[0].protocol != "paired" or not blocks:
        return ""
    options = f" --targets {targets // blocks}"
    options += f" --half {key.half}" if key.half else ""
    options += f" --precision {key.score_dtype}" if key.score_dtype != "float32" else ""
    return options


def _more_targets(table: Table, rows: Sequence[Row], runs: ScoredRuns, options: str) -> str:
    """Return the commands that score more targets; without blocks there is more text alone."""
    if not options:
        return "More text would narrow these: raise eval.tokens"
    encodings = {line.encoding for line in table.lines}
    shown = [row for row in rows if row.encoding in encodings]
    # An encoding after --with has to fit each run of its command.
    alike: dict[str, list[Row]] = {}
    for of_run in grouped(shown, BY_RUN).values():
        labels = sorted({row.scored_with for row in of_run if row.scored_with != row.encoding})
        words = "".join(f" --with {shlex.quote(label)}" for label in labels)
        words += " --force" if any(row.forced for row in of_run) else ""
        alike.setdefault(words, []).extend(of_run)
    commands = [_eval_command(of_runs, runs, f"{words}{options}") for words, of_runs in alike.items()]
    what = " && ".join(commands) if all(commands) else f"score them again with{options}"
    return f"4 times the targets would narrow these by up to half: {what}"


def _eval_command(rows: Sequence[Row], runs: ScoredRuns, options: str) -> str:
    """Return the command that scores the runs of rows again; empty where it would be long, or not read."""
    folders = [runs.folder_of(run) for run in dict.fromkeys(row.run for row in rows)]
    paths, results_dir = {folder.path for folder in folders}, folders[0].path.parent.parent
    finished, names = finished_runs(results_dir), sorted({encoding_in(path.name) for path in paths})
    if {path for path in finished if encoding_in(path.name) in names} != paths:
        names = sorted(path.name for path in paths)
    names = ["--all"] if len(names) > MAX_NAMES and {*finished} == paths else names
    lengths = {row.length for row in rows if row.control == "none"}
    is_usual = lengths <= {*EvalConfig().resolved_lengths(rows[0].train_length)}
    if not is_usual or any(folder.flat_config.get("eval.lengths") for folder in folders):
        options = f" --lengths {','.join(map(str, sorted(lengths)))}{options}"
    is_read = len(names) <= MAX_NAMES and paths <= {*finished} and all(map(_is_read_back, rows))
    return f"pe-bench eval {shlex.join(names)}{results_option(results_dir)}{options}" if is_read else ""


def _is_read_back(row: Row) -> bool:
    """Return whether `eval --with` reads the label that a row was scored with as the same encoding.

    A label does not have the file of a class, nor an option that is the default and not what was trained.
    """
    name, _, _ = row.scored_with.partition(" ")
    return "@" not in name and (row.scored_with == row.encoding or name != row.encoding.partition(" ")[0])
