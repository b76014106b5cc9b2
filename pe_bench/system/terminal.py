"""Lines and progress for the person at the keyboard, and text from outside, escaped for what shows it.

`one_line` is for terminals, pages and pictures, which escape markup themselves. What a table says is on one
line from the start (`in_one_line`), and each kind of document then escapes what it would take for a mark.
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

FORMULA = ("=", "+", "-", "@")  # begin what a spreadsheet computes
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
    """Return text with escapes for all that does not show: controls, marks of direction, zero-width ones.

    Line breaks and tabs stay.
    """
    if text.isprintable():
        return text

    def shown(sign: str) -> str:
        return sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1]

    return "".join(map(shown, text))


def one_line(text: str) -> str:
    """Return text on one line, with escapes for all that does not show."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def csv_cell(value: Any) -> Any:
    """Return a value of which a spreadsheet computes nothing; what is not known is empty."""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


def markdown(text: str) -> str:
    """Return text in which nothing is a mark for GitHub, or a tag of HTML."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN_SIGN.sub(r"\\\g<0>", text)


def latex(text: str) -> str:
    """Return text in which nothing is a command, nor an argument of the line break above it."""
    escaped = _LATEX_SIGN.sub(lambda sign: LATEX_SIGNS[sign[0]], one_line(text))
    return "{}" + escaped if escaped.startswith(("[", "*")) else escaped


def in_one_line(value: Any) -> Any:
    """Return a value with each text in it on one line, however deep in dataclasses, lists and dicts."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, (tuple, list)):
        items = [in_one_line(inner) for inner in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {in_one_line(key): in_one_line(inner) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: new for name, old in fields.items() if (new := in_one_line(old)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    return value


# What moves a terminal's cursor, colours it, turns the direction of writing or cannot be encoded at all.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

PIPED_WIDTH = 100  # columns of what a file or another program reads
COMMAND = re.compile(r"pe-bench(?: [^\s;,`]+)+(?=[;`]|$)")  # in a sentence: up to its end or a semicolon
NO_BREAK = "\u00a0"  # a blank that no line is broken at


def say(message: str) -> None:
    """Write a message on standard error: standard output is for results.

    It is wrapped on a terminal, and one line in a file, which is easier to search.
    """
    text = printable(message)
    if sys.stderr.isatty():
        text = wrap(text, width_of(sys.stderr), hanging=2)
    write_out(f"{text}\n", sys.stderr)


def width_of(stream: IO[str]) -> int:
    """Return the columns that COLUMNS says, else those of a stream's terminal, else `PIPED_WIDTH`."""
    with suppress(OSError, ValueError):
        # Of this stream, not of standard output as shutil's function has it: that may go to a file.
        if (columns := os.environ.get("COLUMNS")) or stream.isatty():
            return max(0, int(columns or os.get_terminal_size(stream.fileno()).columns)) or PIPED_WIDTH
    return PIPED_WIDTH


def wrap(text: str, width: int, hanging: int = 0) -> str:
    """Break each line between words; what follows is indented like the line, and by `hanging` more.

    A word that is longer than the width, such as a path, stays whole. A command that fits in a line stays in
    one: from two it could not be copied.
    """
    return "\n".join(_wrap_line(line, width, hanging) for line in text.split("\n"))


def _wrap_line(line: str, width: int, hanging: int) -> str:
    if len(line) <= width:
        return line.rstrip()
    indent = " " * (len(line) - len(line.lstrip(" ")) + hanging)
    unbroken = COMMAND.sub(lambda command: _unbroken(command[0], width - len(indent)), line)
    filled = textwrap.fill(
        unbroken, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace(NO_BREAK, " ")


def _unbroken(command: str, width: int) -> str:
    return command.replace(" ", NO_BREAK) if len(command) < width else command


def write_out(text: str, file: IO[str] | None = None) -> None:
    """Write to a stream, standard output by default, and flush it; the first alone of a run's processes does.

    Where its reader is gone, as in `pe-bench report | head -3`, the rest goes nowhere, without a word.
    """
    if rank() > 0:
        return
    stream: IO[str] = file or sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # What is still buffered is flushed once more when Python ends, and that must not fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


# Progress

LINES_PER_RUN = 5  # where there is no terminal to redraw
BAR_CELLS = 10


class Bar(Protocol):
    """A display of how far something is; `line` is printed where nothing can be redrawn."""

    def show(self, done: float, text: str, line: str | None = None) -> None: ...


# Makes one from a name and the number that it counts to.
Bars = Callable[[str, int], AbstractContextManager[Bar]]


@dataclasses.dataclass
class TerminalBar:
    """A progress bar of rich's, or lines where standard error is not a terminal."""

    name: str
    total: int
    progress: Any = None

    def show(self, done: float, text: str, line: str | None = None) -> None:
        if self.progress is not None:
            self.progress.update(0, bar=bar_text(done / max(1, self.total)), text=text)
        elif line is not None:
            say(f"{self.name}: {line}")


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[TerminalBar]:
    """Show a bar while this context is entered, and lines where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    if not sys.stderr.isatty():  # whatever FORCE_COLOR says: a notebook's cell cannot move the cursor
        yield TerminalBar(name, total)
        return
    fields = ("{task.description}", "{task.fields[bar]}", "{task.fields[text]}")
    with Progress(*fields, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(name, bar=bar_text(0.0), text="")
        yield TerminalBar(name, total, progress)


def bar_text(share: float) -> str:
    """Draw a share from 0 to 1 in `BAR_CELLS` characters, which show without colours too."""
    full = round(min(1.0, share) * BAR_CELLS)
    return "━" * full + "·" * (BAR_CELLS - full)


def duration(seconds: float) -> str:
    """Spell a time in the two units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
