"""Tables as one long data frame, for CSV and for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pe_bench.report.records import Line, Record, Table
from pe_bench.report.statistics import Interval
from pe_bench.report.values import break_text
from pe_bench.system import grid

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    *("model", "data", "data_hash", "tokenizer", "train_length", "steps", "setting", "protocol"),
    *("stride_rule", "score_dtype", "encoding", "scored_with", "by", "run", "length", "stride"),
    *("slice", "judge", "slice_hash", "status", "reason", "seeds", "documents", "targets", "anchor"),
    "unlearned",
    *("accuracy", "exact", "exact_low", "exact_high", "chance"),
    *("bits_per_byte", "perplexity", "change", "change_low", "change_high", "verdict"),
    *("change_of_models_low", "change_of_models_high", "verdict_of_models", "seed_low", "seed_high"),
    *("break_point", "holds_to", "breaks_at"),
    *("uses_context", "beats_window", "swap_gain", "swap_gain_low", "swap_gain_high"),
    *("window_gain", "window_gain_low", "window_gain_high"),
    *("baseline", "difference", "difference_low", "difference_high", "compared_seeds", "comparison"),
    *("parameters", "tokens_per_second", "peak_memory_mb", "target_hash"),
)
WHOLE_OR_MISSING = ("stride", "compared_seeds", "holds_to", "breaks_at")  # plain pandas would write 32.0


def to_csv(tables: Sequence[Table]) -> str:
    """Return the rows of the frame as text."""
    return grid.to_csv(COLUMNS, ([record.get(name) for name in COLUMNS] for record in _records(tables)))


def to_frame(tables: Sequence[Table]) -> pandas.DataFrame:
    """Return one row for each line and length of each table, in the tables' order.

    `run` is empty where seeds are averaged; `stride` is the number of tokens at that length.
    """
    import pandas

    frame = pandas.DataFrame(_records(tables), columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(WHOLE_OR_MISSING, "Int64"))


def _records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return the values of each line and length by their columns; what is missing is left out."""
    return [
        {
            **vars(table.key),
            **vars(line),
            **vars(record),
            **_derived(line, record),
            "baseline": table.baseline,
        }
        for table in tables
        for line in table.all_lines
        for _, record in sorted(line.records.items())
    ]


def _derived(line: Line, record: Record) -> dict[str, Any]:
    use, difference, answers = record.use, record.baseline, record.answers
    of_models, break_point = record.compared.of_models, line.break_point
    intervals = {
        "change": record.interval,
        "exact": answers and answers.intervals.exact,
        "swap_gain": use and use.swap_gain,
        "window_gain": use and use.window_gain,
        "difference": difference and difference.interval,
    }
    return {
        "anchor": line.is_anchor,
        "break_point": break_text(break_point),
        "holds_to": break_point.holds_to,
        "breaks_at": break_point.breaks_at,
        "bits_per_byte": record.bits_per_byte,
        "change": record.change,
        "difference": difference and difference.mean,
        **{key: value for name, interval in intervals.items() for key, value in _bounds(name, interval)},
        "seeds": len(record.levels),
        "accuracy": answers and answers.accuracy,
        "chance": answers and answers.chance,
        "change_of_models_low": of_models and of_models.low,
        "change_of_models_high": of_models and of_models.high,
        "seed_low": min(record.changes, default=None),
        "seed_high": max(record.changes, default=None),
        "uses_context": use.uses_context if use else "",
        "beats_window": use.beats_window if use else "",
        "compared_seeds": difference and difference.interval and difference.interval.seeds,
        "comparison": difference.verdict if difference else "",
    }


def _bounds(name: str, interval: Interval | None) -> list[tuple[str, float]]:
    """Return the mean and its bounds; a mean may be known where its interval is not."""
    if interval is None:
        return []
    return [(name, interval.mean), (f"{name}_low", interval.low), (f"{name}_high", interval.high)]
