"""The lines of a table from its rows: their records, their differences from a baseline, and their order."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from pe_bench.config.schema import quarter_of
from pe_bench.errors import RunError, require
from pe_bench.report.records import (
    BITS,
    EXACT,
    Answers,
    BreakPoint,
    Line,
    Measure,
    Number,
    Position,
    Record,
    Unlearned,
    common_targets,
)
from pe_bench.report.statistics import Interval, corrected_comparisons, judge_change, reads_nothing
from pe_bench.report.verdicts import (
    Rank,
    answers_of,
    find_break_point,
    judge_answers,
    judge_context,
    mean_difference,
    pairs_of,
    unlearned,
    why_context_use_stays_open,
)
from pe_bench.runs.find import COPYING, TRIGRAM, ScoredRuns, anchor_key
from pe_bench.runs.rows import (
    ALL,
    BY_RUN,
    BY_SEED,
    POSITIONS,
    TASK,
    Row,
    grouped,
    has_number,
    is_as_trained,
    level_of,
)
from pe_bench.runs.scores import perplexity_of
from pe_bench.values import unknown


@dataclass(frozen=True)
class TableRows:
    """The rows of a table and their runs, from which its lines are made."""

    rows: Sequence[Row]  # the rows on the table's slice
    # The rows of the same runs on all targets, which show whether a model has learned.
    unsliced: Sequence[Row]
    ranks: Mapping[str, Rank]  # the ranks of the sets of targets, by their hashes
    runs: ScoredRuns
    margin: float  # the margin for verdicts, in bits per byte
    train_length: int


def make_lines(
    rows: Iterable[Row], table_rows: TableRows, by: Callable[[Row], str], *, is_anchor: bool = False
) -> list[Line]:
    """Return a line for each encoding and setting, with its verdicts, but not compared with a baseline.

    by: returns a row's text of the settings in which lines with the same encodings differ. Rows with the same
    encodings and text are one line, with one run per seed. If two of its runs have the same seed, pe-bench
    cannot tell which runs belong together, and each run becomes a line.
    """

    def line_key(row: Row) -> tuple[str, str, str]:
        return row.encoding, row.scored_with, by(row)

    lines: list[Line] = []
    for (*_, text), line_rows in grouped(rows, line_key).items():
        rows_by_run = grouped(line_rows, BY_RUN)
        seeds = {run_rows[0].seed for run_rows in rows_by_run.values()}
        if len(seeds) == len(rows_by_run):
            rows_by_run = {"": list(chain.from_iterable(rows_by_run.values()))}
        for run, run_rows in rows_by_run.items():
            plain = [row for row in run_rows if row.control == "none"]
            levels = [row for row in plain if row.protocol != POSITIONS]
            if levels:
                lines.append(_make_line(run, text, levels, run_rows, table_rows, is_anchor=is_anchor))
    return lines


def anchor_lines(table_rows: TableRows, name: str) -> list[Line]:
    """Return a line for each anchor that belongs to a table's rows, without verdicts.

    name: the slice of the rows.
    """
    keys = [anchor_key(row) for row in table_rows.rows if row.control == "none"]
    stored = table_rows.runs.anchors.rows
    rows: list[Row] = []
    for label, key in product((TRIGRAM, COPYING), dict.fromkeys(keys)):
        row = stored.get((label, *key))
        if row is not None:
            rows.append(row)
    if name != ALL:
        rows = table_rows.runs.slice_rows(rows, name)
    differ_in_steps = len({row.steps for row in rows}) > 1

    def steps_text(row: Row) -> str:
        # A name to type as --baseline, and so without a separator.
        return f"of {row.steps} step{'s' if row.steps != 1 else ''}" if differ_in_steps else ""

    return make_lines(rows, replace(table_rows, rows=rows, unsliced=rows), steps_text, is_anchor=True)


def with_short_labels(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with short labels, except lines that would have the same short label."""
    shortened = [replace(line, has_short_label=True) for line in lines]
    counts = Counter(line.label for line in shortened)
    return [replace(line, has_short_label=counts[line.label] == 1) for line in shortened]


def _make_line(
    run: str,
    by: str,
    levels: Sequence[Row],
    rows: Sequence[Row],
    table_rows: TableRows,
    *,
    is_anchor: bool = False,
) -> Line:
    """Return a line from its rows: `levels` of its levels, and all `rows` with controls and positions.

    run, by: fields of `Line`.

    The changes of a later stage are from its first stage's level. Its break point and its use of context are
    judged from the longest length that it was trained at.
    """
    controls = [row for row in rows if row.control != "none"]
    names = sorted({row.run for row in levels})
    stages = {name: table_rows.runs.folder_of(name).first_stage for name in names}
    stage = stages[names[0]]
    themselves = {name: name for name in names}
    references = {name: name if first is None else first.run for name, first in stages.items()}
    in_table = {row.run for row in table_rows.rows}
    lacks_first_stage = in_table.isdisjoint(references.values())
    if lacks_first_stage:
        references = themselves
    row_of = {row.run: row for row in table_rows.unsliced}
    counted_on = {name: row_of[first] for name, first in references.items() if first in row_of}
    scores = [row for row in table_rows.unsliced if row.run in names]
    not_learned: Unlearned = "" if is_anchor else unlearned(scores, table_rows.runs, counted_on)
    records, gains_nothing = _records_of_lengths(
        levels, controls, references, table_rows.train_length, table_rows, not_learned, is_anchor
    )
    judged = records
    judged_from = table_rows.train_length
    if stage is not None:
        judged_from = stage.longest
        judged, gains_nothing = _records_of_lengths(
            levels, controls, themselves, judged_from, table_rows, not_learned, is_anchor
        )
        for length, record in records.items():
            records[length] = replace(record, use=judged[length].use)
    break_point = BreakPoint()
    if not is_anchor and not_learned not in ("frequencies", "task"):
        break_point = find_break_point(judged, judged_from, is_task=levels[0].protocol == TASK)
    seeds = {row.seed for row in levels}
    speeds = {row.run: row.tokens_per_second for row in levels}
    first = levels[0]
    line = Line(
        encoding=first.encoding,
        scored_with=first.scored_with,
        run=run,
        seeds=len(seeds),
        parameters=first.parameters,
        tokens_per_second=sum(speeds.values()) / len(speeds),
        records=records,
        runs=tuple(names),
        rows=levels,
        by=by,
    )
    return replace(
        line,
        break_point=break_point,
        reads_nothing=gains_nothing,
        positions=_levels_by_position([row for row in rows if row.protocol == POSITIONS and has_number(row)]),
        forced=first.forced,
        knows_length=any(row.knows_length and has_number(row) for row in levels),
        unlearned=not_learned,
        is_anchor=is_anchor,
        longest=0 if stage is None else stage.longest,
        lacks_first_stage=lacks_first_stage,
    )


def _records_of_lengths(
    scored: Sequence[Row],
    controls: Sequence[Row],
    references: Mapping[str, str],
    train_length: int,
    table_rows: TableRows,
    not_learned: Unlearned,
    is_anchor: bool,
) -> tuple[dict[int, Record], bool]:
    """Return the record at each length, and whether the models surely gain nothing within training.

    scored: the rows of levels, without controls. references: for each run, the run whose level at
    `train_length`, with its trained encoding, is the reference of changes.

    Not judged are lengths below the training length, because less context costs by nature; anchors; models
    that are no better than token frequencies, which would hold because they know nothing; and, at longer
    lengths, models that have not learned their task at the training length.
    """

    def rows_as_trained(length: int, rows: Sequence[Row]) -> list[Row]:
        as_trained = [row for row in rows if is_as_trained(row) and row.length == length]
        return [row for row in as_trained if row.run in references.values()]

    trained = rows_as_trained(train_length, table_rows.rows)
    # The gain describes the weights: another encoding may be worse only at a quarter of the length.
    quarter = rows_as_trained(quarter_of(train_length), table_rows.unsliced)
    whole = rows_as_trained(train_length, table_rows.unsliced)
    gain = mean_difference(pairs_of(quarter, whole), table_rows.runs)
    is_judged = not is_anchor and not_learned != "frequencies"
    controls_at = grouped(controls, lambda row: row.length)
    why_open = why_context_use_stays_open(train_length, gain, table_rows.margin) if controls else ""
    records = {}
    for length, rows in sorted(grouped(scored, lambda row: row.length).items()):
        is_longer = length > train_length
        has_verdict = is_judged and (length == train_length or (is_longer and not_learned != "task"))
        record = make_record(rows, trained, references, table_rows, has_verdict=has_verdict)
        if is_judged and is_longer and length in controls_at:
            use = judge_context(
                rows, controls_at[length], trained, why_open, table_rows.margin, table_rows.runs
            )
            record = replace(record, use=use)
        records[length] = record
    return records, gain.interval is not None and reads_nothing(gain.interval, table_rows.margin)


def make_record(
    rows: Sequence[Row],
    trained: Sequence[Row],
    references: Mapping[str, str],
    table_rows: TableRows,
    *,
    has_verdict: bool,
) -> Record:
    """Return the record of `rows`, the seeds of one encoding at one length.

    trained: rows at the training length of the runs that `references` names, with their own encoding.
    Of several sets of targets, the levels are of the set with most seeds, or else of the set with the highest
    rank; the set of the change does not depend on other lines.
    """
    first = rows[0]
    scored = [row for row in rows if has_number(row)]
    if not scored:
        return Record(
            first.length,
            status="undefined" if first.status == "ok" else first.status,
            reason=first.reason,
            verdict="undefined",
            target_hash=first.target_hash,
            stride=first.stride,
        )
    seeds = Counter(row.target_hash for row in scored)
    chosen = max(seeds, key=lambda target_hash: (seeds[target_hash], table_rows.ranks[target_hash]))
    on_chosen = [row for row in scored if row.target_hash == chosen]
    shown = sorted(on_chosen, key=BY_RUN)
    memory = [row.peak_memory_mb for row in shown if row.peak_memory_mb is not None]
    levels = tuple(map(level_of, shown))
    record = Record(
        first.length,
        levels=levels,
        level=float(np.mean(levels)),
        target_hash=chosen,
        targets=min(row.targets for row in shown),
        documents=min(row.documents for row in shown),
        stride=shown[0].stride,
        peak_memory_mb=max(memory, default=None),
    )
    if first.protocol == TASK:
        return _with_answers(record, shown, table_rows.runs, has_verdict=has_verdict)
    nll = [row.nll for row in shown if row.nll is not None]
    pairs = pairs_of(scored, trained, lambda row: references.get(row.run, row.run))
    is_training_length = bool(pairs) and all(row is reference for row, reference in pairs)
    change = Number()
    if not any(map(has_number, trained)):
        change = Number(missing="the training length has no score to compare with")
    elif not is_training_length:
        change = mean_difference(pairs, table_rows.runs, "scored on other targets than the training length")
    changes = []
    for row, reference in pairs:
        if change.target_hash in ("", row.target_hash):
            changes.append(level_of(row) - level_of(reference))
    perplexity = perplexity_of(float(np.mean(nll))) if nll else None
    record = replace(record, perplexity=perplexity, compared=change, changes=tuple(changes))
    if change.interval is None or not has_verdict:
        return record
    judge = partial(judge_change, margin=table_rows.margin)
    return _with_verdicts(record, judge, change.interval, change.of_models, change.of_seeds)


def _with_answers(record: Record, rows: Sequence[Row], runs: ScoredRuns, *, has_verdict: bool) -> Record:
    """Return the record with a task's answers; no change, because each length has examples of its own.

    rows: one for each seed. Without readable scores the record has the reason.
    """
    try:
        answers, of_models, of_seeds = answers_of(rows, runs)
    except RunError as error:
        return replace(record, compared=Number(missing=str(error)))
    record = replace(record, answers=answers)
    return _with_verdicts(record, judge_answers, answers, of_models, of_seeds) if has_verdict else record


def _with_verdicts(
    record: Record,
    judge: Callable[[Any], str],
    overall: Interval | Answers,
    of_models: Interval | Answers | None,
    of_seeds: Iterable[Interval | Answers],
) -> Record:
    """Return the record with its three kinds of verdicts: overall, on only these models, on each seed.

    judge: returns the verdict on an interval or on answers.
    """
    return replace(
        record,
        verdict=judge(overall),
        verdict_of_models="" if of_models is None else judge(of_models),
        verdicts_of_seeds=tuple(map(judge, of_seeds)),
    )


def _levels_by_position(rows: Sequence[Row]) -> tuple[Position, ...]:
    """Return the points of the position curve, by rising context; empty without rows.

    Of several sets of targets, the set of the longest windows is taken.
    """
    if not rows:
        return ()
    chosen = max(rows, key=lambda row: (row.length, row.target_hash)).target_hash
    shown = [row for row in rows if row.target_hash == chosen]
    shown.sort(key=lambda row: (row.length, row.run))
    positions = []
    for length, seeds in grouped(shown, lambda row: row.length).items():
        context = seeds[0].context_mean or length
        positions.append(Position(context, tuple(map(level_of, seeds))))
    return tuple(positions)


def labels_on_other_targets(lines: Sequence[Line], length: int) -> list[str]:
    """Return the labels of the lines whose level at a length is of other targets than most levels there."""
    common = common_targets(lines, length)
    labels = []
    for line in lines:
        record = line.records.get(length)
        if record is not None and record.levels and record.target_hash != common:
            labels.append(line.label)
    return labels


# The differences from a baseline


def with_baseline(lines: Sequence[Line], baseline: str, table_rows: TableRows) -> list[Line]:
    """Return the lines with their differences from the line with the label `baseline`.

    The verdicts on the differences at one length are corrected together; an anchor is compared, not judged.
    table_rows: the rows, runs and margin from which the lines were made.
    """
    base = next(line for line in lines if line.label == baseline)
    is_task = base.rows[0].protocol == TASK
    records = [dict(line.records) for line in lines]
    for length in lengths_of(lines):
        differences: dict[int, Number] = {}
        intervals: dict[int, Interval] = {}
        for number, line in enumerate(lines):
            record = line.records.get(length)
            if line is base or record is None or not record.levels:
                continue
            difference = _difference_from_baseline(line, base, length, table_rows.runs)
            differences[number] = difference
            if difference.interval is not None and not line.is_anchor:
                intervals[number] = difference.interval.mirrored if is_task else difference.interval
        comparisons = corrected_comparisons([*intervals.values()], table_rows.margin)
        verdicts = dict(zip(intervals, comparisons, strict=True))
        for number, difference in differences.items():
            compared = replace(difference, verdict=verdicts.get(number, ""))
            records[number][length] = replace(records[number][length], baseline=compared)
    return [replace(line, records=changed) for line, changed in zip(lines, records, strict=True)]


def lengths_of(lines: Sequence[Line]) -> list[int]:
    """Return the lengths at which any line was scored, the shortest first."""
    return sorted(set().union(*(line.records for line in lines)))


def _difference_from_baseline(line: Line, base: Line, length: int, runs: ScoredRuns) -> Number:
    """Return the difference of a line's level from the baseline's at a length, seed by seed."""
    rows = [row for row in line.rows if row.length == length]
    base_rows = [row for row in base.rows if row.length == length]
    if not base_rows:
        return Number(missing=f"{base.label} has no score at this length")
    if {row.target_hash for row in rows}.isdisjoint(row.target_hash for row in base_rows):
        return Number(missing=f"{base.label} was scored on other targets")
    missing = f"no seed in common with {base.label}"
    return mean_difference(pairs_of(rows, base_rows, BY_SEED), runs, missing, from_baseline=True)


# The order of lines: by their level at a length, or by another of their numbers

# The keys of `--sort` and their ranks: rising, except for speed, of which more is better.
KEYS: dict[str, Callable[[Line], float]] = {
    "name": lambda line: 0,
    "parameters": lambda line: line.parameters,
    "tokens_per_second": lambda line: -line.tokens_per_second,
}


class Order(NamedTuple):
    """The lines of a table in the order in which they are shown, with a sentence about the order."""

    lines: list[Line]
    # The length whose levels rank the lines; None if it is another order. Levels on different targets may put
    # lines in order, but do not rank them.
    ranked_at: int | None
    text: str
    is_caveat: bool = True  # the sentence is below the short form too


def check_sort(word: str) -> None:
    """Raise `UserError` for a word that is neither a length nor a key."""
    message = f"{unknown(word, '--sort', KEYS)}; or a length such as 2048"
    require(word.isdecimal() or word in KEYS, message)


def order_lines(lines: Sequence[Line], sort: str | None, loss: Measure = BITS) -> Order:
    """Return the lines in the order of their levels at the length `sort`, or of the key `sort`.

    By default the length is the longest that most lines have. loss: the measure of the levels of text. A line
    without a level at the length comes after all others.
    """
    by_name = sorted(lines, key=lambda line: line.label)
    if sort in KEYS:
        return Order(sorted(by_name, key=KEYS[sort]), None, f"in order of {sort}")
    is_task = any(map(_is_of_task, lines))
    if sort is None and is_task:
        text = "in order of the longest length that a line works to, then of the sum of its levels"
        return Order(sorted(by_name, key=_task_sort_key), None, text, is_caveat=False)
    asked = None if sort is None else int(sort)
    is_scored = asked is not None and any(_level_at(line, asked) is not None for line in lines)
    length = asked if is_scored else _longest_of_most(lines)
    if length is None:
        return Order(by_name, None, "in order of names: no length has a number for most lines")

    def rank(line: Line) -> tuple[bool, float]:
        """Return a sort key: ranked lines first, each part with the best level first."""
        level = _level_at(line, length)
        if level is None or math.isnan(level):
            return not line.is_ranked, math.inf
        return not line.is_ranked, -level if is_task else level

    by_level = sorted(by_name, key=rank)
    if len(lines) > 1 and labels_on_other_targets(lines, length):
        text = (
            f"not ranked, because the levels at {length:,} are of different targets: in order of "
            f"{'levels nevertheless' if is_scored else 'names'}. To rank them, repeat their commands with "
            "the same eval.* values (nothing is trained again), or pe-bench eval RUN... with the same "
            "--lengths, --max-length and --targets"
        )
        return Order(by_level if is_scored else by_name, None, text)
    measure = EXACT if is_task else loss
    text = f"ranked by {measure.name} at {length:,}"
    if not is_scored:
        text += ", the longest length that most have a number at"
    below = [line.label for line in by_level if _level_at(line, length) is None]
    if below:
        text += f"; below: {', '.join(below)}"
    return Order(by_level, length, text, is_caveat=is_scored)


def _is_of_task(line: Line) -> bool:
    return any(record.answers for record in line.records.values())


def _level_at(line: Line, length: int) -> float | None:
    """Return the level of a line at a length; None without a level."""
    record = line.records.get(length)
    return None if record is None else record.level


def _task_sort_key(line: Line) -> tuple[bool, int, float]:
    """Return the sort key of a line of a task: ranked lines first, then the longest `works_to`, then levels.

    Levels at one length rarely differ: at most lengths all lines solve the task, or no line does.
    """
    works_to = line.break_point.works_to or 0
    levels = [record.level or 0.0 for record in line.records.values()]
    return not line.is_ranked, -works_to, -sum(levels)


def _longest_of_most(lines: Sequence[Line]) -> int | None:
    """Return the longest length with a level for more than half of the lines that can be scored there.

    None if there is no such length.
    """
    for length in reversed(lengths_of(lines)):
        records = [line.records.get(length) for line in lines]
        able = [record for record in records if record is None or record.status != "undefined"]
        scored = [record for record in able if record is not None and record.levels]
        if 2 * len(scored) > len(able):
            return length
    return None
