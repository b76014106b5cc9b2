"""What a person sees while a run works: a bar on a terminal, a line now and then elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pe_bench.system.terminal import say

LINES_PER_RUN = 5  # where there is no terminal to redraw


class Bar(Protocol):
    """What shows how far something is; `line` is said where nothing can be redrawn."""

    def show(self, done: float, text: str, line: str | None = None) -> None: ...


# Of a name and what it counts to.
Bars = Callable[[str, int], AbstractContextManager[Bar]]


class TerminalBar:
    """A progress bar, or lines where standard error is not a terminal."""

    def __init__(self, name: str, total: int, progress: Progress | None):
        self.name, self.total, self.progress = name, total, progress
        self.task = progress.add_task(name, total=total, text="") if progress else None

    def show(self, done: float, text: str, line: str | None = None) -> None:
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=done, text=text)
        elif line is not None:
            say(f"{self.name}: {line}")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[TerminalBar]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield TerminalBar(name, total, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        yield TerminalBar(name, total, progress)
