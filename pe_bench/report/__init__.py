"""From rows and scores to tables, and tables as text, Markdown and a data frame.

tables.py       which rows may stand together, and the table of them
strides.py      by which rule the windows of the sliding protocol advanced
target_sets.py  which set of targets stands for a length that was scored on several
cells.py        one encoding at one length: seeds averaged, the change, its verdict
notes.py        the lines under a table
text.py         a table for a terminal or a pipe
export.py       Markdown, and the long data frame
"""

from pe_bench.report.cells import Cell
from pe_bench.report.export import to_frame, to_markdown
from pe_bench.report.tables import Line, Table, build_tables, run_table
from pe_bench.report.text import render, show

__all__ = ["Cell", "Line", "Table", "build_tables", "render", "run_table", "show", "to_frame", "to_markdown"]
