"""Does a model use the context beyond its training length? From the controls, for one line of a table."""

from collections.abc import Sequence

from pe_bench.config.schema import MIN_PAIRED_LENGTH
from pe_bench.report.statistics import is_sensitive, judge_context_use, judge_gain_over_control
from pe_bench.report.tables.cells import ContextUse
from pe_bench.report.tables.differences import (
    Paired,
    ScoreFiles,
    has_number,
    of_one_set,
    paired,
    pairs_by_run,
)
from pe_bench.runs.rows import Row


def quarter_of(train_length: int) -> int:
    return round(train_length / 4)


def sensitivity(own_rows: Sequence[Row], files: ScoreFiles) -> Paired:
    """Return what the models gain from a quarter to all of their training length, as they were trained.

    own_rows: of a line's runs with their own encoding. What weights can make of context within
    training is theirs, whatever they are scored with: another encoding may do worse at a quarter alone.
    """
    quarter = [row for row in own_rows if row.length == quarter_of(row.train_length)]
    own_at_train_length = [row for row in own_rows if row.length == row.train_length]
    pairs = of_one_set(pairs_by_run(quarter, own_at_train_length))
    return paired(pairs, files) if pairs else Paired(None, None, "")


def context_use(
    rows: Sequence[Row],
    controls: Sequence[Row],
    own_at_train_length: Sequence[Row],
    sensitive: Paired,
    margin: float,
    files: ScoreFiles,
) -> ContextUse | None:
    """Return what the controls at one length say; None where there is none, or no number to control.

    rows: the line's at that length on one set of targets; controls: of the same at that length.
    """
    if not controls or not any(map(has_number, rows)):
        return None
    gain = _gain(own_at_train_length, rows, files)
    swap = _gain([row for row in controls if row.control == "swap"], rows, files)
    window_rows = [row for row in controls if row.control == "window"]
    window = _gain(window_rows, rows, files)
    missing = _unjudged(rows[0], sensitive, margin) or _unscored(gain, swap, controls)
    answer = ""
    if not missing and gain.interval is not None and swap.interval is not None:
        answer = judge_context_use(gain.interval, swap.interval, margin)
    return ContextUse(
        uses_context=answer,
        beats_window=_beats_window(window, window_rows, margin),
        swap_gain=swap.interval,
        window_gain=window.interval,
        missing=missing,
    )


def _gain(worse: Sequence[Row], rows: Sequence[Row], files: ScoreFiles) -> Paired:
    """Return how much better `rows` are than the same runs' `worse` ones, on the same targets."""
    pairs = pairs_by_run(worse, rows)
    return paired(pairs, files) if pairs else Paired(None, None, "no score on the same targets")


def _unjudged(row: Row, sensitive: Paired, margin: float) -> str:
    """Return why its levels within training leave a model's use of context open; empty where they do not."""
    quarter = quarter_of(row.train_length)
    if sensitive.missing:
        return sensitive.missing
    if sensitive.interval is None:
        able = quarter >= MIN_PAIRED_LENGTH
        way_out = f": add it with --lengths {quarter}" if able else ", which is too short to score"
        return f"no score at {quarter}, a quarter of the training length{way_out}"
    if is_sensitive(sensitive.interval):
        return ""
    improves = "does not improve" if sensitive.interval.high < margin else "does not surely improve"
    return (
        f"the model {improves} from {quarter} to {row.train_length} tokens, so no gain beyond "
        f"{row.train_length} proves nothing"
    )


def _unscored(gain: Paired, swap: Paired, controls: Sequence[Row]) -> str:
    reasons = [row.reason for row in controls if row.control == "swap" and not has_number(row)]
    return gain.missing or (reasons[0] if reasons else swap.missing)


def _beats_window(window: Paired, rows: Sequence[Row], margin: float) -> str:
    if window.interval is not None:
        return judge_gain_over_control(window.interval, margin)
    return "n/a" if any(row.status == "undefined" for row in rows) else ""
