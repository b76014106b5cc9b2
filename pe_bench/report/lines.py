"""The lines of a table from its rows: which belong together, and what each says before it is judged."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pe_bench.config.schema import MIN_PAIRED_LENGTH
from pe_bench.errors import RunError
from pe_bench.report.pairs import (
    Pair,
    Paired,
    ScoreFiles,
    grouped,
    has_number,
    largest_set,
    level_of,
    of_one_set,
    paired,
    pairs_by_run,
    pairs_by_seed,
    pairs_with_trained,
)
from pe_bench.report.records import (
    AnswerIntervals,
    AnswerScores,
    ContextUse,
    Line,
    Position,
    Record,
    Unlearned,
    quarter_of,
)
from pe_bench.report.statistics import (
    corrected_comparisons,
    is_sensitive,
    judge_context_use,
    judge_gain_over_control,
    reads_nothing,
)
from pe_bench.report.verdicts import answer_intervals, judge_answers
from pe_bench.runs.gather import COPYING, FREQUENCIES, TRIGRAM, StoredAnchors, anchor_key
from pe_bench.runs.rows import TASK, Row
from pe_bench.runs.scores import perplexity_of

# Of a set of targets; the larger is preferred. The hash is last: of sets alike in all the rest, one has to
# be taken.
Rank = tuple[int, int, int, int, str]


@dataclass(frozen=True)
class Member:
    """The rows of one line, all under one protocol, and those of its controls and of its positions.

    run: its name, where the line is one of several runs that share a seed. by: what else sets it apart.
    """

    run: str
    by: str
    rows: list[Row]
    controls: list[Row]
    positions: list[Row]

    @property
    def runs(self) -> list[str]:
        return sorted({row.run for row in self.rows})

    def at(self, length: int) -> list[Row]:
        return [row for row in self.rows if row.length == length]


def members_of(
    rows: Sequence[Row], controls: Sequence[Row], positions: Sequence[Row], by: Callable[[Row], str]
) -> list[Member]:
    """Return the rows of each line, with the name of its run where it holds only one of several.

    Seeds of one encoding are a line. Runs of one encoding that share a seed differ in something its
    name does not show: which of them belong together is not known, and so each is a line.
    """
    controls_of, positions_of = (
        grouped(other, lambda row: (row.run, row.scored_with)) for other in (controls, positions)
    )
    members = []
    of_lines = grouped(rows, lambda row: (row.encoding, row.scored_with, by(row)))
    for (_, scored_with, by_text), of_line in of_lines.items():
        of_runs = grouped(of_line, lambda row: row.run)
        seeds_differ = len({of_run[0].seed for of_run in of_runs.values()}) == len(of_runs)
        parts = {"": list(of_runs)} if seeds_differ else {run: [run] for run in of_runs}
        for name, runs in parts.items():
            keys = [(run, scored_with) for run in runs]
            members.append(
                Member(
                    name,
                    by_text,
                    rows=[row for run in runs for row in of_runs[run]],
                    controls=[row for key in keys for row in controls_of.get(key, [])],
                    positions=[row for key in keys for row in positions_of.get(key, [])],
                )
            )
    return members


def make_line(
    member: Member,
    own_rows: Sequence[Row],
    whole_rows: Sequence[Row],
    ranks: Mapping[str, Rank],
    margin: float,
    files: ScoreFiles,
    train_length: int,
) -> Line:
    """Return the line without verdicts, which depend on the whole table.

    train_length: the length of `own_rows` that the line's changes are against.

    own_rows: of these runs, scored with the encoding that they were trained with. whole_rows: the same on all
    targets, where the others are of a slice.
    """
    rows, first = member.rows, member.rows[0]
    trained = [row for row in own_rows if row.length == train_length]
    gain = _gain_within_training(whole_rows, files, train_length)
    records = {}
    for length in sorted({row.length for row in rows}):
        record = make_record(member.at(length), trained, files, ranks)
        use = _context_use(member, record, trained, gain, margin, files, train_length)
        records[length] = replace(record, use=use)
    speed_of = {row.run: row.tokens_per_second for row in rows}
    return Line(
        encoding=first.encoding,
        scored_with=first.scored_with,
        run=member.run,
        seeds=len({row.seed for row in rows}),
        parameters=first.parameters,
        tokens_per_second=sum(speed_of.values()) / len(speed_of),
        records=records,
        runs=tuple(member.runs),
        by=member.by,
        reads_nothing=gain.interval is not None and reads_nothing(gain.interval, margin),
        positions=_positions(member.positions),
        forced=first.forced,
        knows_length=any(row.knows_length and has_number(row) for row in rows),
    )


def make_record(
    rows: Sequence[Row],
    trained: Sequence[Row],
    files: ScoreFiles,
    ranks: Mapping[str, Rank] | None = None,
) -> Record:
    """Return the record of `rows`, the seeds of one encoding at one length.

    trained: of the same runs at the training length with their own encoding. ranks: of the table's sets of
    targets; of several the levels are of that which most seeds were scored on, then of that ranked highest.
    The change is of a set that no other line has a part in choosing.
    """
    first, scored = rows[0], [row for row in rows if has_number(row)]
    if not scored:
        status = "undefined" if first.status == "ok" else first.status
        return Record(
            first.length,
            status,
            first.reason,
            verdict="undefined",
            target_hash=first.target_hash,
            stride=first.stride,
        )
    ranks, seeds = ranks or rank_sets(scored), Counter(row.target_hash for row in scored)
    chosen = max(seeds, key=lambda target_hash: (seeds[target_hash], ranks[target_hash]))
    shown = sorted((row for row in scored if row.target_hash == chosen), key=lambda row: row.run)
    nll = [row.nll for row in shown if row.nll is not None]
    memory = [row.peak_memory_mb for row in shown if row.peak_memory_mb is not None]
    record = Record(
        first.length,
        levels=tuple(map(level_of, shown)),
        target_hash=chosen,
        targets=min(row.targets for row in shown),
        documents=min(row.documents for row in shown),
        stride=shown[0].stride,
        peak_memory_mb=max(memory, default=None),
    )
    if first.protocol == TASK:
        return _with_answers(record, shown, files)
    compared = of_one_set(pairs_with_trained(scored, trained, files))
    return replace(
        record,
        perplexity=perplexity_of(float(np.mean(nll))) if nll else None,
        compared=_change(compared, trained, files),
        changes=tuple(level_of(row) - level_of(reference) for row, reference in compared),
    )


def _change(pairs: Sequence[Pair], trained: Sequence[Row], files: ScoreFiles) -> Paired:
    if not any(map(has_number, trained)):
        return Paired(None, None, "the training length has no score to compare with")
    if pairs and all(row is reference for row, reference in pairs):
        return Paired(None, None, "")  # the training length itself
    return paired(pairs, files, "scored on other targets than the training length")


def _with_answers(record: Record, rows: Sequence[Row], files: ScoreFiles) -> Record:
    """Return the record of a task. Each length has examples of its own, so that there is no change."""
    try:
        right = np.stack([files.answers(row) for row in rows])
    except RunError as error:
        return replace(record, compared=Paired(None, None, str(error)))

    exact, several = (right == 1).astype(float), len(rows) > 1

    def intervals_of(shares: np.ndarray, exact: np.ndarray) -> AnswerIntervals:
        return answer_intervals(shares[None, :], exact[None, :])

    answers = AnswerScores(
        float(right.mean()),
        rows[0].chance or 0.0,
        answer_intervals(right, exact),
        intervals_of(right.mean(0), exact.mean(0)) if several else None,
        tuple(map(intervals_of, right, exact)) if several else (),
    )
    return replace(record, answers=answers)


def _positions(rows: Sequence[Row]) -> tuple[Position, ...]:
    """Return those of the set of windows that reaches furthest; a range that a seed lacks is left out."""
    scored = [row for row in rows if has_number(row)]
    if not scored:
        return ()
    chosen = max(scored, key=lambda row: (row.length, row.target_hash)).target_hash
    shown = [row for row in scored if row.target_hash == chosen]
    ranges = grouped(sorted(shown, key=lambda row: (row.length, row.run)), lambda row: row.length)
    seeds = max(map(len, ranges.values()))
    return tuple(
        Position(seeds_of[0].context_mean or seeds_of[0].length, tuple(map(level_of, seeds_of)))
        for seeds_of in ranges.values()
        if len(seeds_of) == seeds
    )


# Which of several sets of targets stands for a length. Lengths beyond `eval.max_length` have targets of their
# own, on which the training length is scored too.


def rank_sets(rows: Iterable[Row]) -> dict[str, Rank]:
    """Return the rank of each set: most lengths first, then the smaller longest one, rows and targets."""
    of_set = grouped(rows, lambda row: row.target_hash)
    lengths_of = {name: {row.length for row in rows} for name, rows in of_set.items()}
    return {
        name: (len(lengths), -max(lengths), len(of_set[name]), max(row.targets for row in of_set[name]), name)
        for name, lengths in lengths_of.items()
    }


def on_other_targets(lines: Sequence[Line], length: int) -> list[str]:
    """Return the labels of the lines whose level at a length is of other targets than that of most lines."""
    records = {line.label: line.records[length] for line in lines if length in line.records}
    set_of = {label: record.target_hash for label, record in records.items() if record.levels}
    most = Counter(set_of.values()).most_common(1)
    return [label for label, target_hash in set_of.items() if target_hash != most[0][0]]


# Does a model use the context beyond its training length?


def _gain_within_training(own_rows: Sequence[Row], files: ScoreFiles, train_length: int) -> Paired:
    """Return what the models gain from a quarter to all of their training length, as they were trained.

    What weights can make of context within training is theirs, whatever they are scored with: another
    encoding may do worse at a quarter alone.
    """
    quarter = [row for row in own_rows if row.length == quarter_of(train_length)]
    trained = [row for row in own_rows if row.length == train_length]
    return paired(of_one_set(pairs_by_run(quarter, trained)), files)


def _context_use(
    member: Member,
    record: Record,
    trained: Sequence[Row],
    within: Paired,
    margin: float,
    files: ScoreFiles,
    train_length: int,
) -> ContextUse | None:
    """Return what the controls at one length say; None where there is none, or no number to control.

    within: what the models gain from a quarter to all of `train_length`, beyond which a control tells.
    """
    is_beyond = record.length > train_length
    controls = [row for row in member.controls if row.length == record.length and is_beyond]
    if not controls or not record.levels:
        return None
    controlled = {row.target_hash for row in controls}
    chosen = largest_set([row for row in member.at(record.length) if row.target_hash in controlled])
    rows = [row for row in member.at(record.length) if row.target_hash == chosen]
    if not rows:
        return ContextUse(missing=f"the controls at {record.length} were scored on other targets")
    if not any(map(has_number, rows)):
        return None
    swaps, windows = (
        [row for row in controls if (row.control, row.target_hash) == (control, chosen)]
        for control in ("swap", "window")
    )
    gain, swap, window = (
        paired(pairs_by_run(worse, rows), files, "no score on the same targets")
        for worse in (trained, swaps, windows)
    )
    unscored = [row.reason for row in swaps if not has_number(row)]
    missing = _why_open(train_length, within, margin) or gain.missing or next(iter(unscored), swap.missing)
    answer, beats_window = "", "n/a" if any(row.status == "undefined" for row in windows) else ""
    if not missing and gain.interval is not None and swap.interval is not None:
        answer = judge_context_use(gain.interval, swap.interval, margin)
    if window.interval is not None:
        beats_window = judge_gain_over_control(window.interval, margin)
    return ContextUse(answer, beats_window, swap.interval, window.interval, missing)


def _why_open(train_length: int, within: Paired, margin: float) -> str:
    """Return why its levels within training leave a model's use of context open; empty where they do not."""
    quarter = quarter_of(train_length)
    if within.missing:
        return within.missing
    if within.interval is None:
        able = quarter >= MIN_PAIRED_LENGTH
        way_out = f": add it with --lengths {quarter}" if able else ", which is too short to score"
        return f"no score at {quarter}, a quarter of the training length{way_out}"
    if is_sensitive(within.interval):
        return ""
    improves = "does not improve" if within.interval.high < margin else "does not surely improve"
    return (
        f"the model {improves} from {quarter} to {train_length} tokens, so no gain beyond "
        f"{train_length} proves nothing"
    )


# The differences from a baseline


def with_baseline(
    lines: Sequence[Line], members: Sequence[Member], baseline: str, margin: float, files: ScoreFiles
) -> list[Line]:
    """Return the lines with their differences from the line of that label, which has none itself.

    Those at one length are corrected together; an anchor is compared, and not judged.
    """
    base_line, base = next(pair for pair in zip(lines, members, strict=True) if pair[0].label == baseline)
    differences = {
        (line.label, length): _difference(member, base, length, base_line.label, files)
        for line, member in zip(lines, members, strict=True)
        for length, record in line.records.items()
        if line is not base_line and record.levels
    }
    is_task = any(record.answers for record in base_line.records.values())  # and then more is better
    trained = {line.label for line in lines if not line.is_anchor}
    for length in {length for _, length in differences}:
        intervals = {
            key: difference.interval.mirrored if is_task else difference.interval
            for key, difference in differences.items()
            if key[1] == length and difference.interval is not None and key[0] in trained
        }
        verdicts = corrected_comparisons(list(intervals.values()), margin)
        for key, verdict in zip(intervals, verdicts, strict=True):
            differences[key] = replace(differences[key], verdict=verdict)
    return [
        replace(
            line,
            records={
                length: replace(record, baseline=differences.get((line.label, length)))
                for length, record in line.records.items()
            },
        )
        for line in lines
    ]


def _difference(member: Member, base: Member, length: int, label: str, files: ScoreFiles) -> Paired:
    rows, others = member.at(length), base.at(length)
    if {row.target_hash for row in rows} & {row.target_hash for row in others}:
        pairs = of_one_set(pairs_by_seed(rows, others))
        return paired(pairs, files, f"no seed in common with {label}")
    why = "was scored on other targets" if others else "has no score at this length"
    return Paired(None, None, f"{label} {why}")


# Lines that cost no training, and what trained ones did not learn to beat.


def anchor_lines(
    rows: Sequence[Row],
    stored: StoredAnchors,
    ranks: Mapping[str, Rank],
    margin: float,
    files: ScoreFiles,
    name: str,
) -> list[tuple[Line, Member]]:
    """Return a line, and its rows, for each anchor that belongs to a table's rows, without verdicts.

    name: of the slice that the rows are of.
    """
    of_anchors = files.of_slice([*stored.of(TRIGRAM, rows), *stored.of(COPYING, rows)], name)
    differ_in_steps = len({row.steps for row in of_anchors}) > 1
    members = members_of(of_anchors, [], [], lambda row: f"of {row.steps} steps" if differ_in_steps else "")
    lines = [
        make_line(member, member.rows, member.rows, ranks, margin, files, member.rows[0].train_length)
        for member in members
    ]
    return [(replace(line, is_anchor=True), member) for line, member in zip(lines, members, strict=True)]


def unlearned(own_rows: Sequence[Row], stored: StoredAnchors, files: ScoreFiles) -> Unlearned:
    """Return what weights have not learned to beat at their training length; empty where that is not known.

    own_rows: of a line's runs with their own encoding: it is the weights that learn.
    """
    trained = [row for row in own_rows if row.length == row.train_length]
    if any(row.protocol == TASK for row in own_rows):
        answers = make_record(trained, [], files).answers if trained else None
        is_solved = answers is None or judge_answers(answers.intervals, answers.chance) == "solves"
        return "" if is_solved else "task"
    scored = [row for row in trained if has_number(row)]
    over_frequencies = _against(FREQUENCIES, scored, stored, files).interval
    if over_frequencies is not None and not over_frequencies.high < 0:
        return "frequencies"
    over_trigram = _against(TRIGRAM, scored, stored, files).interval
    return "trigram" if over_trigram is not None and over_trigram.low > 0 else ""


def _against(label: str, rows: Sequence[Row], stored: StoredAnchors, files: ScoreFiles) -> Paired:
    """Return the rows minus those of an anchor that was counted on the same tokens; positive is worse."""
    anchor_of = {anchor_key(row): row for row in stored.of(label, rows)}
    pairs = [(row, anchor_of[anchor_key(row)]) for row in rows if anchor_key(row) in anchor_of]
    return paired(of_one_set(pairs), files)
