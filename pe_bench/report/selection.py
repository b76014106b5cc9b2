"""What a report is asked to show of all results, and in which order lines stand."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pe_bench.errors import UserError, require
from pe_bench.report.groups import setting_without
from pe_bench.report.lines import on_other_targets
from pe_bench.report.pairs import ScoredRuns
from pe_bench.report.records import Line
from pe_bench.runs.find import Condition, check_key, one_a_run
from pe_bench.runs.rows import ALL, Row
from pe_bench.values import unknown


@dataclass(frozen=True)
class Selection:
    """The choice of what is shown of all results, and how.

    where: conditions that all hold. by: keys whose values set lines apart. best: a key of which each encoding
    keeps its best value. sort: a length or a key of `KEYS`. baseline: an encoding. margin: bits per byte.
    slice: the part of the targets that numbers are of. numbers_only: without what only a reader needs: notes,
    the small table of recall and positions. lengths: those that are shown beside the training length; all
    where none is named.
    """

    where: tuple[Condition, ...] = ()
    by: tuple[str, ...] = ()
    best: str | None = None
    sort: str | None = None
    baseline: str | None = None
    margin: float | None = None  # None: that of the runs
    slice: str = ALL
    numbers_only: bool = False
    lengths: tuple[int, ...] = ()

    def shows(self, length: int, train_length: int) -> bool:
        """Return whether a length has a column; without one it still serves as a reference."""
        is_left_out = self.lengths and length not in (*self.lengths, train_length)
        return not is_left_out and all(
            condition.holds(length) for condition in self.where if condition.key == "length"
        )

    def asks_for(self, length: int) -> bool:
        """Return whether a length is named."""
        named = [condition for condition in self.where if (condition.key, condition.sign) == ("length", "=")]
        return length in self.lengths or any(condition.holds(length) for condition in named)

    def takes(self, scored_with: str) -> bool:
        """Return whether an encoding that runs were scored with has a line."""
        return all(condition.holds(scored_with) for condition in self.where if condition.key == "scored_with")


EVERYTHING = Selection()


def parse_by(word: str) -> tuple[str, ...]:
    """`seed` or `train.lr,model.d_model`. Raises `UserError`."""
    keys = tuple(dict.fromkeys(key.strip() for key in word.split(",") if key.strip()))
    require(bool(keys), "--by is empty: name a key, such as --by seed or --by train.lr")
    for key in keys:
        check_key(key, "--by")
        message = "the lengths of an encoding are compared with each other, and are no lines"
        require(key != "length", f"--by {key}: {message}")
    return keys


def check_best(key: str, by: Sequence[str]) -> None:
    """Raise `UserError` for a key that may not be chosen by its results."""
    message = "name a key of training, such as train.lr; seeds and encodings are not chosen by their results"
    require(key.startswith("train."), f"--best {key}: {message}")
    require(key not in by, f"--best {key} and --by {key} exclude each other: give one of them")


def keep_best(rows: Sequence[Row], runs: ScoredRuns, key: str) -> tuple[list[Row], str]:
    """Return the rows of each encoding's runs with its best value of a key, and a note on the choice.

    The best has the lowest mean validation loss at the end of training, over the seeds that all values have.
    Raises `UserError` where a run has no validation loss.
    """
    runs.require(rows, key, "--best")
    families: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in one_a_run(rows):
        family = (row.encoding, row.data_hash, row.tokenizer, setting_without(row, runs, (key,)), row.steps)
        families.setdefault(family, {}).setdefault(str(runs.value(row, key)), {})[row.seed] = row
    kept: set[str] = set()
    chosen: list[str] = []
    for (encoding, *_), values in families.items():
        best = min(values, key=lambda value: _mean_loss(values, value, runs))
        chosen.append(f"{encoding} {best}" + (f" of {', '.join(sorted(values))}" if len(values) > 1 else ""))
        kept |= {row.run for row in values[best].values()}
    note = (
        f"the best {key} of each encoding: {'; '.join(chosen)}. Chosen by the mean validation loss at the "
        "training length, on documents that are scored here, so levels may be slightly too good"
    )
    return [row for row in rows if row.run in kept], note


def _mean_loss(values: Mapping[str, Mapping[int, Row]], value: str, runs: ScoredRuns) -> float:
    """Return the mean validation loss of a value's runs, over the seeds that all values have, if any."""
    common = set.intersection(*(set(rows) for rows in values.values())) or set(values[value])
    losses = []
    for seed in sorted(common):
        run = values[value][seed].run
        loss = runs.folder_of(run).validation_loss
        if loss is None:
            raise UserError(f"--best: {run} has no validation loss in its train.csv; leave it out")
        losses.append(loss)
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


# In which order lines stand: by their level at a length, or by another of their numbers

# Rising, but for what is better the larger it is.
KEYS: dict[str, Callable[[Line], tuple[object, ...]]] = {
    "name": lambda line: (),
    "parameters": lambda line: (line.parameters,),
    "tokens_per_second": lambda line: (-line.tokens_per_second,),
}


class Order(NamedTuple):
    """Lines in order; the length whose levels ranked them, if one did; and what says so.

    Levels on different targets put lines in order where that was asked for, and rank nothing. is_caveat: the
    short form says it too.
    """

    lines: list[Line]
    ranked_at: int | None
    text: str
    is_caveat: bool = True


def check_sort(word: str) -> None:
    """Raises `UserError` for what is neither a length nor a key."""
    require(word.isdecimal() or word in KEYS, f"{unknown(word, '--sort', KEYS)}; or a length such as 2048")


def ordered(lines: Sequence[Line], sort: str | None) -> Order:
    """Return the lines by their level at the length `sort`, or by a key.

    By default it is the longest length that most reach. A line without a level there stands below the others
    and moves none of them.
    """
    by_name = sorted(lines, key=lambda line: line.label)
    if sort in KEYS:
        return Order(sorted(by_name, key=KEYS[sort]), None, f"in order of {sort}")
    is_task = any(record.answers for line in lines for record in line.records.values())
    if sort is None and is_task:
        text = "in order of the length that a line works to, then of its mean over lengths"
        return Order(sorted(by_name, key=_reach), None, text, is_caveat=False)
    is_scored = sort is not None and any(_level(line, int(sort)) is not None for line in lines)
    length = int(sort) if sort is not None and is_scored else _longest_of_most(lines)
    if length is None:
        return Order(by_name, None, "in order of names: no length has a number for most lines")
    by_level = sorted(by_name, key=lambda line: _rank(line, length))
    if on_other_targets(lines, length):
        text = (
            f"not ranked, because the levels at {length} are of different targets: in order of "
            f"{'levels nevertheless' if is_scored else 'names'}. To rank them, repeat their commands with "
            "the same eval.* values (nothing is trained again), or pe-bench eval RUN... with the same "
            "--lengths, --max-length and --targets"
        )
        return Order(by_level if is_scored else by_name, None, text)
    chosen = "" if is_scored else ", the longest length that most have a number at"
    below = [line.label for line in by_level if _level(line, length) is None]
    text = f"ranked by {'exact' if is_task else 'bits/byte'} at {length}{chosen}"
    text += f"; below: {', '.join(below)}" if below else ""
    return Order(by_level, length, text, is_caveat=is_scored)


def _reach(line: Line) -> tuple[bool, int, float]:
    """Return the rank of a line of a task: at most lengths either all or none solve it."""
    levels = [record.level or 0.0 for record in line.records.values()]
    return not line.is_ranked, -(line.break_point.works_to or 0), -sum(levels)


def _rank(line: Line, length: int) -> tuple[bool, float]:
    """Return the rank of a line: what has not learned to beat the anchors is below all that has."""
    level = _level(line, length)
    return not line.is_ranked, math.inf if level is None or math.isnan(level) else level


def _longest_of_most(lines: Sequence[Line]) -> int | None:
    """Return the longest length that has a level for more than half of the lines that can be scored there."""
    for length in sorted({length for line in lines for length in line.records}, reverse=True):
        records = [line.records.get(length) for line in lines]
        able = [record for record in records if record is None or record.status != "undefined"]
        if 2 * sum(record is not None and bool(record.levels) for record in able) > len(able):
            return length
    return None


def _level(line: Line, length: int) -> float | None:
    """Return the level at a length, of which less is better; None where there is none."""
    record = line.records.get(length)
    if record is None or record.level is None:
        return None
    return record.level if record.answers is None else -record.level
