"""Does a model use the context beyond its training length? From the controls, for one line of a table."""

from collections import Counter
from collections.abc import Sequence

from pe_bench.report.cells import ContextUse
from pe_bench.report.differences import Paired, ScoreFiles, has_number, paired, pairs_by_run
from pe_bench.results import Row
from pe_bench.statistics import beats, is_sensitive, uses_context


def quarter_of(train_length: int) -> int:
    return round(train_length / 4)


def sensitivity(rows: Sequence[Row], unmodified: Sequence[Row], files: ScoreFiles) -> bool | None:
    """Whether the model gains from a quarter to all of its training length; None where that is not known.

    rows: of a line. unmodified: of the same runs with what they were trained with, which stand in for a line
    that was not scored at a quarter: the weights are the same.
    """
    references = [row for row in unmodified if row.length == row.train_length]
    own, trained = (
        pairs_by_run([row for row in some if row.length == quarter_of(row.train_length)], references)
        for some in (rows, unmodified)
    )
    pairs = _of_one_set(own or trained)
    gain = paired(pairs, files).interval if pairs else None
    return None if gain is None else is_sensitive(gain)


def _of_one_set(pairs: Sequence[tuple[Row, Row]]) -> list[tuple[Row, Row]]:
    """Those on the set of targets that most of them are on."""
    sets = Counter(row.target_hash for row, _ in pairs)
    chosen = max(sets, key=lambda target_hash: (sets[target_hash], target_hash), default="")
    return [pair for pair in pairs if pair[0].target_hash == chosen]


def context_use(
    rows: Sequence[Row],
    controls: Sequence[Row],
    references: Sequence[Row],
    sensitive: bool | None,
    margin: float,
    files: ScoreFiles,
) -> ContextUse | None:
    """What the controls at one length say; None where there is none.

    rows: the line's at that length on one set of targets; controls: of the same at that length.
    """
    if not controls or not rows:
        return None
    gain = _gain(references, rows, files)
    swap = _gain([row for row in controls if row.control == "swap"], rows, files)
    window_rows = [row for row in controls if row.control == "window"]
    window = _gain(window_rows, rows, files)
    missing = _why_not(gain, swap, controls, rows[0].train_length, sensitive)
    answer = ""
    if not missing and gain.interval is not None and swap.interval is not None:
        answer = uses_context(gain.interval, swap.interval, margin)
    return ContextUse(
        uses_context=answer,
        beats_window=_beats_window(window, window_rows, margin),
        swap_gain=swap.interval,
        window_gain=window.interval,
        missing=missing,
    )


def _gain(worse: Sequence[Row], rows: Sequence[Row], files: ScoreFiles) -> Paired:
    """How much better `rows` are than the same runs' `worse` ones, on the same targets."""
    pairs = pairs_by_run(worse, rows)
    return paired(pairs, files) if pairs else Paired(None, None, "no score on the same targets")


def _why_not(
    gain: Paired, swap: Paired, controls: Sequence[Row], train_length: int, sensitive: bool | None
) -> str:
    """Why the use of context cannot be judged; empty where it can."""
    quarter = quarter_of(train_length)
    if sensitive is None:
        return f"no score at {quarter}, a quarter of the training length: add it with --lengths {quarter}"
    if not sensitive:
        return f"it gains nothing from {quarter} to {train_length} tokens, so it may not be able to use more"
    reasons = [row.reason for row in controls if row.control == "swap" and not has_number(row)]
    return gain.missing or (reasons[0] if reasons else swap.missing)


def _beats_window(window: Paired, rows: Sequence[Row], margin: float) -> str:
    if window.interval is not None:
        return beats(window.interval, margin)
    return "n/a" if any(row.status == "undefined" for row in rows) else ""
