"""A report: the tables of levels and those of probes."""

from collections.abc import Callable
from dataclasses import dataclass

from pe_bench.report.tables.probes import ProbeTable
from pe_bench.report.tables.table import Table
from pe_bench.runs.folder import RunFolder


@dataclass(frozen=True)
class Report:
    """Tables to show.

    probes: of the same runs. others: how many more tables there are. folder_of: what was read of a run, by
    its name. problems: what is left out, and what is not known of a run; the notes of the last table have
    them too.
    """

    tables: list[Table]
    others: int
    folder_of: Callable[[str], RunFolder]
    problems: tuple[str, ...] = ()
    probes: tuple[ProbeTable, ...] = ()
