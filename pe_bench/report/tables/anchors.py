"""The anchors of a table: lines that cost no training, and what trained ones did not learn to beat."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pe_bench.report.tables.differences import Paired, ScoreFiles, has_number, of_one_set, paired
from pe_bench.report.tables.lines import Line, Member, Unlearned, make_line, members_of
from pe_bench.report.tables.target_sets import Rank
from pe_bench.report.tables.task_cells import is_unlearned
from pe_bench.runs.anchors import COPYING, FREQUENCIES, TRIGRAM, StoredAnchors, place_of
from pe_bench.runs.rows import TASK, Row


def anchor_lines(
    rows: Sequence[Row],
    stored: StoredAnchors,
    ranks: Mapping[str, Rank],
    margin: float,
    files: ScoreFiles,
    name: str,
) -> tuple[list[Line], list[Member]]:
    """Return a line, and its rows, for each anchor that belongs to a table's rows, without verdicts.

    name: of the slice that the rows are of.
    """
    found = files.of_slice([*stored.of(TRIGRAM, rows), *stored.of(COPYING, rows)], name)
    differ_in_steps = len({row.steps for row in found}) > 1
    members = members_of(found, [], [], lambda row: f"of {row.steps} steps" if differ_in_steps else "")
    lines = [make_line(member, member.rows, member.rows, ranks, margin, files) for member in members]
    return [replace(line, is_anchor=True) for line in lines], members


def unlearned(own_rows: Sequence[Row], stored: StoredAnchors, files: ScoreFiles) -> Unlearned:
    """Return what weights have not learned to beat at their training length; empty where that is not known.

    own_rows: of a line's runs with their own encoding: it is the weights that learn.
    """
    if any(row.protocol == TASK for row in own_rows):
        return "task" if is_unlearned(own_rows, files) else ""
    trained = [row for row in own_rows if row.length == row.train_length and has_number(row)]
    over_frequencies = _against(FREQUENCIES, trained, stored, files).interval
    if over_frequencies is not None and not over_frequencies.high < 0:
        return "frequencies"
    over_trigram = _against(TRIGRAM, trained, stored, files).interval
    return "trigram" if over_trigram is not None and over_trigram.low > 0 else ""


def _against(label: str, rows: Sequence[Row], stored: StoredAnchors, files: ScoreFiles) -> Paired:
    """Return the rows minus those of an anchor that was counted on the same tokens; positive is worse."""
    anchor_of = {place_of(row): row for row in stored.of(label, rows)}
    pairs = [(row, anchor_of[place_of(row)]) for row in rows if place_of(row) in anchor_of]
    pairs = of_one_set(pairs)
    return paired(pairs, files) if pairs else Paired(None, None, "")
