"""A run as a call returns it: its folder on disk, and the scores that the call asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.experiment.score import describe_failures
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import COLUMNS, MAYBE_WHOLE, PROBE, Row

if TYPE_CHECKING:
    import pandas


class Run(RunFolder):
    """A finished run. `print(run)` shows the table that the command prints.

    path: its folder, which is all that a later process needs. config: its configuration, as nested
    dictionaries. validation_loss: the last one of its training, in nats per token.
    """

    def __init__(self, path: Path, scored: Sequence[Row], margin: float, asked: Sequence[int] = ()) -> None:
        """scored: the rows that the call asked for. margin: of verdicts. asked: lengths that were named."""
        super().__init__(path)
        self.scored, self.margin, self.asked = list(scored), margin, tuple(asked)

    @property
    def name(self) -> str:
        """The encoding, the seed and a hash of everything that changes the weights."""
        return self.path.name

    @property
    def scores(self) -> pandas.DataFrame:
        """Return the scores that the call asked for, one a row, with the columns of results.csv."""
        import pandas

        frame = pandas.DataFrame([vars(row) for row in self.scored], columns=list(COLUMNS))
        return frame.astype(dict.fromkeys(MAYBE_WHOLE, "Int64"))

    @property
    def failure(self) -> str:
        """Return which scores a custom encoding's code failed at, and the way out; empty where none did."""
        return describe_failures(self.scored)

    def __repr__(self) -> str:
        failed = f", failure={self.failure!r}" if self.failure else ""
        return f"Run({str(self.path)!r}{failed})"

    def __str__(self) -> str:
        from rich.console import Console

        from pe_bench.report.probes import show_probes
        from pe_bench.report.tables.build import probes_of_rows, run_tables
        from pe_bench.report.text import show

        text = io.StringIO()
        plain = Console(file=text, color_system=None, force_terminal=False, force_jupyter=False)
        if any(row.protocol == PROBE for row in self.scored):  # and then all are
            show_probes(probes_of_rows(self.scored, lambda name: self), plain)
        else:
            show(run_tables(self.scored, self.path, self.margin, self.asked), plain)
        return text.getvalue()
