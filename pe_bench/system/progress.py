"""Progress for whoever waits: a bar on a terminal, a line now and then elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from pe_bench.system.terminal import say

LINES_PER_RUN = 5  # where there is no terminal to redraw


BAR_CELLS = 10


class Bar(Protocol):
    """A display of how far something is; `line` is printed where nothing can be redrawn."""

    def show(self, done: float, text: str, line: str | None = None) -> None: ...


# Makes one from a name and the number that it counts to.
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


class PlainBar(ProgressColumn):
    """A bar that shows without colours, too, how far it is."""

    def render(self, task: Task) -> Text:
        return Text(bar_text(task.completed / task.total if task.total else 0.0))


def bar_text(share: float) -> str:
    """Draw a share from 0 to 1 in `BAR_CELLS` characters."""
    full = round(min(1.0, share) * BAR_CELLS)
    return "━" * full + "·" * (BAR_CELLS - full)


def duration(seconds: float) -> str:
    """Spell a time in the two units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[TerminalBar]:
    """Show a bar while this context is entered, and lines where standard error is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield TerminalBar(name, total, None)
        return
    columns = (TextColumn("{task.description}"), PlainBar(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        yield TerminalBar(name, total, progress)
