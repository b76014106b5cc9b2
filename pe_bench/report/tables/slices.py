"""The groups of rows of a slice: one for each group of rows of all targets and each choice of targets."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pe_bench.errors import UserError
from pe_bench.report.tables.differences import ScoreFiles, has_number
from pe_bench.report.tables.listing import few_names
from pe_bench.report.tables.table import Table, TableKey
from pe_bench.runs.rows import ALL, Row


@dataclass(frozen=True)
class Group:
    """The rows of one table, which may be of a slice.

    whole: of the same runs, those of all targets, by which it is known what a model has learned at all.
    """

    rows: Sequence[Row]
    whole: Sequence[Row]

    @property
    def share(self) -> float:
        """Return the share of the targets that are in the slice, by the largest set of them."""
        sizes = {row.target_hash: row.targets for row in self.whole}
        counted = {row.target_hash: row.targets for row in self.rows}
        largest = max(counted, key=lambda target_hash: sizes[target_hash], default=None)
        return counted[largest] / sizes[largest] if largest is not None else 1.0

    @property
    def lacking(self) -> str:
        """Return which runs lack the slice, and so are not in the table; empty where none does."""
        runs = {row.run for row in self.rows}
        runs |= {row.judge for row in self.rows}  # a judge has no key targets that it chose
        lacking = {row.run: row.encoding for row in self.whole if has_number(row) and row.run not in runs}
        if not lacking or not self.rows:
            return ""
        names = few_names(list(dict.fromkeys(lacking.values())))
        what = f"{len(lacking)} {'run' if len(lacking) == 1 else 'runs'} of {names}"
        name, judge = self.rows[0].slice, self.rows[0].judge
        if judge:
            way_out = f"pe-bench eval RUN... --key-tokens-of {shlex.quote(judge)} adds it"
            return f"without the slice {name} of {judge}, and so not in this table: {what}; {way_out}"
        way_out = "pe-bench eval RUN... adds it, without scoring again"
        return f"without the slice {name}, and so not in this table: {what}; {way_out}"


def groups_of_slice(
    groups: Mapping[TableKey, Sequence[Row]], name: str, files: ScoreFiles
) -> dict[TableKey, Group]:
    """Return the groups of a slice; none for runs without it.

    Rows are of one group only where one judge, or the text, chose the same targets of each set.
    """
    if name == ALL:
        return {key: Group(rows, rows) for key, rows in groups.items()}
    found: dict[TableKey, Group] = {}
    for key, whole in groups.items():
        rows = files.of_slice(whole, name)
        for judge in sorted({row.judge for row in rows}):
            parts = _of_same_targets([row for row in rows if row.judge == judge])
            for slice_hash, part in parts.items():
                names = {"slice": name, "judge": judge, "slice_hash": slice_hash if len(parts) > 1 else ""}
                found[replace(key, **names)] = Group(part, whole)
    return found


def _of_same_targets(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return rows of a slice, a run's together, in parts with the same targets of each set.

    The largest part is first. Its name is a hash of the targets in the slice.
    """
    by_run: dict[str, list[Row]] = {}
    for row in rows:
        by_run.setdefault(row.run, []).append(row)
    parts: list[tuple[dict[str, str], list[Row]]] = []
    for own in by_run.values():
        hash_of = {row.target_hash: row.slice_hash for row in own}
        same = [part for part in parts if all(part[0].get(*item) == item[1] for item in hash_of.items())]
        if not same:
            parts.append(({}, []))
            same = parts[-1:]
        same[0][0].update(hash_of)
        same[0][1].extend(own)
    parts.sort(key=lambda part: -len(part[1]))
    return {hashlib.sha256(repr(sorted(of.items())).encode()).hexdigest()[:8]: own for of, own in parts}


def require_slice(groups: Mapping[TableKey, Group], name: str) -> None:
    """Raise `UserError` where no run has the slice."""
    if not groups and name != ALL:
        raise UserError(
            f"--slice {name}: no run here has that slice of its targets under the protocol paired; "
            "pe-bench eval RUN... adds recall and novel without scoring again; --key-tokens-of JUDGE adds key"
        )


def with_recall(table: Table, recall: Table | None) -> Table:
    """Return the table with that of the slice `recall`, whose lines are in its own order."""
    if recall is None or not recall.lines:
        return table
    place = {line.label: number for number, line in enumerate(table.lines)}
    lines = sorted(recall.lines, key=lambda line: place.get(line.label, len(place)))
    return replace(table, recall=replace(recall, lines=tuple(lines), asked=table.asked, ranked_at=None))
