"""Lines for the person at the keyboard, and text for whoever reads standard output."""

import os
import re
import sys
from typing import IO

# What moves a terminal's cursor, colours it, turns the direction of writing or cannot be encoded at all.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def say(message: str) -> None:
    """A line on standard error: standard output is for results."""
    write_out(f"{printable(message)}\n", sys.stderr)


def printable(text: str) -> str:
    """Text that only shows, whoever wrote it: control characters as a program spells them."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


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
