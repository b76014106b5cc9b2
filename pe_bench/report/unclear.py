"""Notes on unclear changes: how bad they can be at most, and the commands that would settle them."""

import shlex
from collections.abc import Iterator, Sequence
from math import isfinite

from pe_bench.config.schema import EvalConfig
from pe_bench.report.groups import MAX_NAMES, list_lengths
from pe_bench.report.records import Note, Number, Table
from pe_bench.runs.find import ScoredRuns, finished_runs
from pe_bench.runs.folder import encoding_in
from pe_bench.runs.rows import BY_RUN, Row, grouped, has_number
from pe_bench.runs.typed import results_option

MAX_LINES = 3  # the most lines that the short form names


def unclear_notes(table: Table, rows: Sequence[Row], runs: ScoredRuns) -> Iterator[Note]:
    """Yield the upper bounds of unclear changes or differences, and the commands that would settle them."""
    bounds = _upper_bounds(table)
    # Targets of the whole set, of which a slice has only some.
    targets = max((row.targets for row in rows if has_number(row)), default=0)
    all_places: list[str] = []
    ways_out = [] if table.key.is_of_hf_models else ["more seeds"]  # a Hugging Face model has no seeds
    numbers = f"differences from {table.baseline}" if table.baseline else "changes"
    note_texts: list[str] = []
    for by_seeds, highs_of_lines in sorted(bounds.items()):
        where = []
        for label, highs in highs_of_lines.items():
            highest = max(highs.values())
            where.append(f"{label} at {list_lengths(highs)} (at most {highest:+.3f})")
        all_places += where
        way_out = "Most of this is how seeds differ: train more seeds"
        if not by_seeds:
            options = _target_options(table, rows, 4 * targets)
            ways_out.append(options.strip() or "more eval.tokens")
            way_out = _more_targets_text(table, rows, runs, options)
        note_texts.append(f"unclear {numbers}: {'; '.join(where)}. {way_out}")
    if not note_texts:
        return
    against = f" against {table.baseline}" if table.baseline else ""
    named = ", ".join(all_places[:MAX_LINES])
    if len(all_places) > MAX_LINES:
        named += f" and {len(all_places) - MAX_LINES} more"
    way_out = " or ".join(dict.fromkeys(ways_out))
    yield Note(note_texts[0], short=f"unclear{against}: {named}; {way_out}")
    for text in note_texts[1:]:
        yield Note(text, is_caveat=False)


def _upper_bounds(table: Table) -> dict[bool, dict[str, dict[int, float]]]:
    """Return the upper bound of each unclear change or difference: `bounds[by_seeds][label][length]`.

    by_seeds: whether most of the interval's width comes from seeds, not from documents.
    """
    bounds: dict[bool, dict[str, dict[int, float]]] = {}
    if table.is_task:
        return bounds
    for line in table.lines:
        for length, record in line.records.items():
            interval = record.interval
            verdict = record.verdict
            if table.baseline:
                difference = record.baseline or Number()
                interval = difference.interval
                verdict = difference.verdict
            if verdict == "unclear" and interval is not None and isfinite(interval.high):
                by_seeds = interval.spread is not None and interval.spread.seed_share > 0.5
                bounds.setdefault(by_seeds, {}).setdefault(line.label, {})[length] = interval.high
    return bounds


def _target_options(table: Table, rows: Sequence[Row], targets: int) -> str:
    """Return the options of `eval` for this number of targets; empty for a protocol without target blocks."""
    block = rows[0].target_tokens
    if rows[0].protocol != "paired" or not block:
        return ""
    options = f" --targets {targets // block}"
    if table.key.half:
        options += f" --half {table.key.half}"
    if table.key.score_dtype != "float32":
        options += f" --precision {table.key.score_dtype}"
    return options


def _more_targets_text(table: Table, rows: Sequence[Row], runs: ScoredRuns, options: str) -> str:
    """Return a sentence with the `pe-bench eval` commands that score 4 times the targets.

    options: the options of `_target_options`, which each command ends with. If they are empty, the sentence
    advises to raise eval.tokens. Where `_eval_command` returns no command, it names only the options.
    """
    if not options:
        return "More text would narrow these: raise eval.tokens"
    encodings = {line.encoding for line in table.lines}
    shown = [row for row in rows if row.encoding in encodings]
    # An encoding after --with has to fit each run of its command.
    rows_of_commands: dict[str, list[Row]] = {}
    for run_rows in grouped(shown, BY_RUN).values():
        labels = {row.scored_with for row in run_rows if row.scored_with != row.encoding}
        words = [f" --with {shlex.quote(label)}" for label in sorted(labels)]
        if any(row.forced for row in run_rows):
            words.append(" --force")
        rows_of_commands.setdefault("".join(words), []).extend(run_rows)
    commands = []
    for words, rows_alike in rows_of_commands.items():
        commands.append(_eval_command(rows_alike, runs, words + options))
    way_out = f"score them again with{options}"
    if all(commands):
        way_out = " && ".join(commands)
    return f"4 times the targets would narrow these by up to half: {way_out}"


def _eval_command(rows: Sequence[Row], runs: ScoredRuns, options: str) -> str:
    """Return the command that scores the runs of rows again; empty if there is no short command for them.

    There is none if it would name other runs too, or if `--with` does not read a label back
    (`_is_read_back`).
    """
    names_of_runs = dict.fromkeys(map(BY_RUN, rows))
    folders = list(map(runs.folder_of, names_of_runs))
    paths = {folder.path for folder in folders}
    results_dir = folders[0].path.parent.parent
    finished = set(finished_runs(results_dir))
    names = sorted({encoding_in(path.name) for path in paths})
    meant = {path for path in finished if encoding_in(path.name) in names}
    if meant != paths:
        names = sorted(path.name for path in paths)
    if len(names) > MAX_NAMES and finished == paths:
        names = ["--all"]
    if len(names) > MAX_NAMES or not paths <= finished:
        return ""
    if not all(map(_is_read_back, rows)):
        return ""
    lengths = {row.length for row in rows if row.control == "none"}
    is_usual = lengths.issubset(EvalConfig().resolved_lengths(rows[0].train_length))
    if not is_usual or any(folder.flat_config.get("eval.lengths") for folder in folders):
        listed = ",".join(map(str, sorted(lengths)))
        options = f" --lengths {listed}{options}"
    return f"pe-bench eval {shlex.join(names)}{results_option(results_dir)}{options}"


def _is_read_back(row: Row) -> bool:
    """Return whether `eval --with` reads the label of a row's encoding as the same encoding.

    A label lacks the file of a class, and an option whose default differs from the trained value.
    """
    name, _, _ = row.scored_with.partition(" ")
    trained, _, _ = row.encoding.partition(" ")
    return "@" not in name and (row.scored_with == row.encoding or name != trained)
