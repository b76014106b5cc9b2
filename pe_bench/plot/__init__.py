"""Tables as one picture: bits per byte against context length and, where scored, against position.

figure.py   the whole picture, and the file it is written to
charts.py   what a table has to show: its curves, without how they look
panel.py    few curves in one panel, named where they end
grid.py     many curves, a small panel for each
axes.py     limits and ticks, alike for both
marks.py    curves, bands and marks, alike for both
style.py    colours, strokes, sizes
placing.py  places in inches and points, and apart from each other
words.py    names that fit, numbers, notes
"""

from pe_bench.plot.figure import UNDATED, draw, picture_format, plot_tables
from pe_bench.plot.placing import spread_apart
from pe_bench.plot.style import COLOURS, STROKES

__all__ = ["COLOURS", "STROKES", "UNDATED", "draw", "picture_format", "plot_tables", "spread_apart"]
