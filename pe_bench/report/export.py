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


def to_csv(tables: Sequence[Table]) -> str:
    """Return the rows of the frame as text."""
    return grid.to_csv(COLUMNS, ([record[name] for name in COLUMNS] for record in _records(tables)))


def to_frame(tables: Sequence[Table]) -> pandas.DataFrame:
    """Return one row for each line and length of each table, in the tables' order.

    `run` is empty where seeds are averaged; `stride` is the number of tokens at that length.
    """
    import pandas

    records = _records(tables)
    frame = pandas.DataFrame.from_records(records, columns=list(COLUMNS))
    for name in ("stride", "compared_seeds", "holds_to", "breaks_at"):
        # Whole numbers that may be missing: plain pandas would write 32.0.
        frame[name] = pandas.array([record[name] for record in records], dtype="Int64")
    return frame


def _records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    return [
        {**vars(table.key), **_line_record(line), **_cell_record(record), "baseline": table.baseline}
        for table in tables
        for line in table.all_lines
        for _, record in sorted(line.records.items())
    ]


def _line_record(line: Line) -> dict[str, Any]:
    names = ("encoding", "scored_with", "by", "run", "unlearned", "parameters", "tokens_per_second")
    found = line.break_point
    return {
        **{name: getattr(line, name) for name in names},
        "anchor": line.is_anchor,
        "break_point": break_text(found),
        "holds_to": found.holds_to,
        "breaks_at": found.breaks_at,
    }


def _cell_record(record: Record) -> dict[str, Any]:
    names = ("length", "stride", "status", "reason", "documents", "targets", "target_hash")
    numbers = ("bits_per_byte", "perplexity", "change", "verdict", "verdict_of_models", "peak_memory_mb")
    use, baseline, of_models = record.use, record.baseline, record.compared.of_models
    return {
        **{name: getattr(record, name) for name in (*names, *numbers)},
        "seeds": len(record.levels),
        **_answers_record(record),
        **_interval_record("change", record.interval, record.change),
        "change_of_models_low": of_models.low if of_models else None,
        "change_of_models_high": of_models.high if of_models else None,
        "seed_low": min(record.changes, default=None),
        "seed_high": max(record.changes, default=None),
        "uses_context": use.uses_context if use else "",
        "beats_window": use.beats_window if use else "",
        **_interval_record("swap_gain", use.swap_gain if use else None),
        **_interval_record("window_gain", use.window_gain if use else None),
        **_interval_record(
            "difference", baseline.interval if baseline else None, baseline.mean if baseline else None
        ),
        "compared_seeds": baseline.interval.seeds if baseline and baseline.interval else None,
        "comparison": baseline.verdict if baseline else "",
    }


def _answers_record(record: Record) -> dict[str, float | None]:
    """Return the numbers of a task, which are missing for text."""
    found = record.answers
    if found is None:
        return dict.fromkeys(("accuracy", "exact", "exact_low", "exact_high", "chance"))
    exact = _interval_record("exact", found.intervals.exact)
    return {"accuracy": found.accuracy, "chance": found.chance, **exact}


def _interval_record(
    name: str, interval: Interval | None, mean: float | None = None
) -> dict[str, float | None]:
    """Return the mean and its bounds; a mean may be known where its interval is not."""
    if interval is None:
        return {name: mean, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
