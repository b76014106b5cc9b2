"""Lines and progress on a terminal, and escapes for text from outside.

`one_line` is for terminals, pages and pictures, which escape markup themselves. Texts of a table are put on
one line first (`one_line_texts`); then each kind of document escapes its own markup.
"""

import dataclasses
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, Any, Protocol

from pe_bench.system.signals import rank

FORMULA_SIGNS = ("=", "+", "-", "@")  # first characters of a spreadsheet's formula
LATEX_SIGNS = {
    "->": r"$\rightarrow$",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
}
_LATEX_SIGN = re.compile("|".join(map(re.escape, LATEX_SIGNS)))
_MARKDOWN_SIGN = re.compile(r"[\\*\[|~]|(?<!\w)_|_(?!\w)")  # an underscore within a word marks nothing


def printable(text: str) -> str:
    """Return text with escapes for invisible characters: controls, marks of direction, zero-width characters.

    Line breaks and tabs stay.
    """
    if text.isprintable():
        return text

    def escaped(sign: str) -> str:
        if sign.isprintable() or sign in "\n\t":
            return sign
        return ascii(sign)[1:-1]

    return "".join(map(escaped, text))


def one_line(text: str) -> str:
    """Return text on one line, with escapes for invisible characters."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def csv_cell(value: Any) -> Any:
    """Return a value for a CSV file: texts on one line that no spreadsheet reads as formulas.

    None and NaN become empty; other values stay.
    """
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.startswith(FORMULA_SIGNS) else text
    is_nan = isinstance(value, float) and math.isnan(value)
    return "" if value is None or is_nan else value


def markdown(text: str) -> str:
    """Return text on one line with Markdown's marks and HTML's tags escaped."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN_SIGN.sub(r"\\\g<0>", text)


def escape_latex(text: str) -> str:
    r"""Return text on one line, escaped for LaTeX.

    A leading `[` or `*` is escaped too: else it is read as an argument of the `\\` before it.
    """
    escaped = _LATEX_SIGN.sub(lambda sign: LATEX_SIGNS[sign[0]], one_line(text))
    return "{}" + escaped if escaped.startswith(("[", "*")) else escaped


def one_line_texts(value: Any) -> Any:
    """Apply `one_line` to a value, or to all texts inside a value of dataclasses, tuples, lists and dicts."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, (tuple, list)):
        items = [one_line_texts(inner) for inner in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {one_line_texts(key): one_line_texts(inner) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: new for name, old in fields.items() if (new := one_line_texts(old)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    return value


# Characters that move a terminal's cursor, colour it, turn the direction of writing, or cannot be encoded.
CONTROL_SIGNS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

PIPED_WIDTH = 100  # columns of output to a file or another program
# A command in a sentence: up to the end of the sentence or a semicolon.
COMMAND_TEXT = re.compile(r"pe-bench(?: [^\s;,`]+)+(?=[;`]|$)")
NO_BREAK = "\u00a0"  # a blank at which no line is broken


def say(message: str) -> None:
    """Write a message on standard error, because standard output is for results.

    The message is wrapped on a terminal, and is one line in a file, which is easier to search.
    """
    text = printable(message)
    if sys.stderr.isatty():
        text = wrap(text, width_of(sys.stderr), hanging=2)
    write_out(f"{text}\n", sys.stderr)


def width_of(stream: IO[str]) -> int:
    """Return the width of output in characters: $COLUMNS, else the terminal's, else `PIPED_WIDTH`."""
    with suppress(OSError, ValueError):
        # shutil's function asks standard output, which may go to a file.
        if (columns := os.environ.get("COLUMNS")) or stream.isatty():
            return max(0, int(columns or os.get_terminal_size(stream.fileno()).columns)) or PIPED_WIDTH
    return PIPED_WIDTH


def wrap(text: str, width: int, hanging: int = 0) -> str:
    """Break each line between words; continued lines are indented like the line, and by `hanging` more.

    A word that is longer than the width, such as a path, stays whole. A command that fits in one line is not
    broken, so that it can be copied.
    """
    return "\n".join(_wrap_line(line, width, hanging) for line in text.split("\n"))


def _wrap_line(line: str, width: int, hanging: int) -> str:
    """Break one line between words; the arguments are as in `wrap`."""
    if len(line) <= width:
        return line.rstrip()
    indent = " " * (len(line) - len(line.lstrip(" ")) + hanging)
    unbroken = COMMAND_TEXT.sub(lambda command: _unbreakable_if_short(command[0], width - len(indent)), line)
    filled = textwrap.fill(
        unbroken, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace(NO_BREAK, " ")


def _unbreakable_if_short(command: str, width: int) -> str:
    return command.replace(" ", NO_BREAK) if len(command) < width else command


def write_out(text: str, file: IO[str] | None = None) -> None:
    """Write text to a stream, by default standard output, and flush it, in a run's first process alone.

    If the reader is gone, as in `pe-bench report | head -3`, the text is dropped without an error.
    """
    if rank() > 0:
        return
    stream: IO[str] = file or sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # Python flushes the buffer once more when it ends, which must not fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


# Progress

PROGRESS_LINES_PER_RUN = 5  # the lines of progress that a run prints without a terminal to redraw
BAR_CELLS = 10


class Bar(Protocol):
    """A display of progress."""

    def show(self, done: float, text: str, line: str | None = None) -> None:
        """Show the amount `done`, with `text` beside it.

        line: is printed if the display cannot be redrawn; None prints nothing.
        """
        ...


# Makes a bar from a name and the number at which the work is done.
Bars = Callable[[str, int], AbstractContextManager[Bar]]


@dataclasses.dataclass
class TerminalBar:
    """A progress bar of rich, or lines if standard error is not a terminal."""

    name: str  # before the bar
    total: int  # the amount at which the work is done
    progress: Any = None  # the display of rich; None for lines

    def show(self, done: float, text: str, line: str | None = None) -> None:
        if self.progress is not None:
            share = done / max(1, self.total)
            self.progress.update(0, bar=bar_text(share), text=text)
        elif line is not None:
            say(f"{self.name}: {line}")


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[TerminalBar]:
    """Within the context, show a bar on standard error, or lines if standard error is no terminal.

    name: before the bar. total: the amount at which the work is done.
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    if not sys.stderr.isatty():  # whatever FORCE_COLOR says: a notebook's cell cannot move the cursor
        yield TerminalBar(name, total)
        return
    texts = ("{task.description}", "{task.fields[bar]}", "{task.fields[text]}")
    fields = [TextColumn(text, markup=False) for text in texts]  # a label may have brackets
    with Progress(*fields, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(name, bar=bar_text(0.0), text="")
        yield TerminalBar(name, total, progress)


def bar_text(share: float) -> str:
    """Draw a share from 0 to 1 as a bar of `BAR_CELLS` characters, without colours."""
    full = round(min(1.0, share) * BAR_CELLS)
    return "━" * full + "·" * (BAR_CELLS - full)


def duration(seconds: float) -> str:
    """Write a time in its two largest units: `2 h 05 min`, `3 min 20 s`, `7 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
