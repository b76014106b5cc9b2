"""From rows and scores to tables, and tables as text, markup and a data frame.

select.py       which rows are shown, what sets lines apart, how they are compared
tables.py       which rows may stand together, and the table of them
strides.py      by which rule the windows of the sliding protocol advanced
target_sets.py  which set of targets stands for a length that was scored on several
lines.py        the rows of one encoding, its seeds together
cells.py        one encoding at one length: seeds averaged, and the change
differences.py  paired differences from the files of scores
use.py          what the controls say of the context
verdicts.py     verdicts over a whole table, break points, differences from a baseline
order.py        in which order lines stand
notes.py        the lines under a table
legend.py       what its words mean
text.py         a table for a terminal or a pipe
markup.py       Markdown and LaTeX
export.py       the long data frame
"""

from pe_bench.report.cells import Cell
from pe_bench.report.export import to_frame
from pe_bench.report.lines import Line, Position
from pe_bench.report.markup import to_latex, to_markdown
from pe_bench.report.select import Selection
from pe_bench.report.tables import Table, build_tables, run_table
from pe_bench.report.text import render, show

__all__ = [
    "Cell",
    "Line",
    "Position",
    "Selection",
    "Table",
    "build_tables",
    "render",
    "run_table",
    "show",
    "to_frame",
    "to_latex",
    "to_markdown",
]
