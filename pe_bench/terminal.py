"""Lines for the person at the keyboard, and text for whoever reads standard output."""

import os
import sys
from typing import IO


def say(message: str) -> None:
    """A line on standard error: standard output is for results."""
    write_out(f"{message}\n", sys.stderr)


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
