"""Tables on a terminal or in a pipe: in the short form, or with all details."""

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.text import Text

from pe_bench.report.details_text import render_details
from pe_bench.report.short_text import render_short
from pe_bench.report.tables.table import Table
from pe_bench.system.terminal import width_of, write_out

ASCII = {"·": "-", "…": "~", "≤": "<=", "±": "+-"}  # where a stream cannot be written to in more


def show(
    tables: Sequence[Table], console: Console | None = None, *, hint: str = "", details: bool = False
) -> None:
    """Print tables on the console, standard output by default, each in the short form or with its details.

    A pipe gets as many columns as the short form has at most, and no blanks at the ends of lines.
    """

    def print_all(console: Console) -> None:
        for index, table in enumerate(tables):
            if index:
                console.print()
            if details:
                console.print(render_details(table, console.width), highlight=False)
            else:
                print_lines(render_short(table, console.width, hint), console)

    print_captured(print_all, console)


def print_captured(print_all: Callable[[Console], None], console: Console | None) -> None:
    """Let `print_all` print on a console, and write that at once in signs that its stream can take."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = width_of(console.file)
    with console.capture() as captured:
        print_all(console)
    write_out(_written(captured.get(), console), console.file)


def print_lines(lines: Iterable[Text], console: Console) -> None:
    console.print(Text("\n").join(lines), highlight=False, soft_wrap=True)


def _written(text: str, console: Console) -> str:
    text = text if console.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        text = text.translate(str.maketrans(ASCII))
    return text
