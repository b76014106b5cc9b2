"""Lines for the person at the keyboard, and text for whoever reads standard output."""

import os
import re
import sys
import textwrap
from contextlib import suppress
from typing import IO

from pe_bench.system.outside_text import printable

# What moves a terminal's cursor, colours it, turns the direction of writing or cannot be encoded at all.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

PIPED_WIDTH = 100  # columns of what a file or another program reads
UNKNOWN_WIDTH = 80  # columns of a terminal that does not say
COMMAND = re.compile(r"pe-bench(?: [^\s;,`]+)+(?=[;`]|$)")  # in a sentence: up to its end or a semicolon
NO_BREAK = "\u00a0"  # a blank that no line is broken at


def say(message: str, *, unbroken: bool = False) -> None:
    """Write a message on standard error: standard output is for results.

    A terminal gets it broken between words, a file in one line, which can be searched. `unbroken` leaves
    the line as it is: broken by us, a command cannot be copied.
    """
    text = printable(message)
    if sys.stderr.isatty() and not unbroken:
        text = wrap(text, width_of(sys.stderr), hanging=2)
    write_out(f"{text}\n", sys.stderr)


def width_of(stream: IO[str]) -> int:
    """Return the columns that COLUMNS says, else those of a stream's terminal, else `PIPED_WIDTH`."""
    with suppress(KeyError, ValueError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    if not stream.isatty():
        return PIPED_WIDTH
    with suppress(OSError):
        if (columns := os.get_terminal_size(stream.fileno()).columns) > 0:
            return columns
    return UNKNOWN_WIDTH


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
    whole = COMMAND.sub(lambda found: _unbroken(found[0], width - len(indent)), line)
    filled = textwrap.fill(
        whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace(NO_BREAK, " ")


def _unbroken(command: str, width: int) -> str:
    return command.replace(" ", NO_BREAK) if len(command) < width else command


def write_out(text: str, file: IO[str] | None = None) -> None:
    """Write to a stream, standard output by default, and flush it.

    Where its reader is gone, as in `pe-bench report | head -3`, the rest goes nowhere, without a word.
    """
    stream: IO[str] = file or sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # What is still buffered is flushed once more when Python ends, and that must not fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
