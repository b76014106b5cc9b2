"""What a person sees while a run works: a bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pe_bench.terminal import say
from pe_bench.train import Step

LINES_PER_RUN = 5  # where there is no terminal to redraw


class Bar(Protocol):
    """What shows how far something is; `line` is said where nothing can be redrawn."""

    def show(self, done: float, text: str, line: str | None = None) -> None: ...


# Of a name and what it counts to.
Bars = Callable[[str, int], AbstractContextManager[Bar]]


@contextmanager
def training_progress(
    bars: Bars, name: str, total_steps: int, batch_tokens: int
) -> Iterator["TrainingProgress"]:
    with bars(name, total_steps) as bar:
        yield TrainingProgress(bar, total_steps, batch_tokens)


@contextmanager
def scoring_progress(bars: Bars, name: str, total: int) -> Iterator["ScoringProgress"]:
    """`total` is the number of lengths that may have to be scored."""
    with bars(name, total) as bar:
        yield ScoringProgress(bar)


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


class TrainingProgress:
    """Shows loss, tokens per second and the time left after each step."""

    def __init__(self, bar: Bar, total_steps: int, batch_tokens: int):
        self.bar, self.total, self.batch_tokens = bar, total_steps, batch_tokens
        self.started: tuple[int, float] | None = None

    def __call__(self, step: Step) -> None:
        now = time.perf_counter()
        if self.started is None:
            # The first step warms up, and a resumed run does not begin at zero.
            self.started = (step.step, now)
        first, since = self.started
        speed = (step.step - first) * self.batch_tokens / max(now - since, 1e-9) if step.step > first else 0.0
        left = (self.total - step.step) * self.batch_tokens / speed if speed else 0.0
        text = f"step {step.step} of {self.total}  loss {step.loss:.3f}"
        if speed:
            text += f"  {speed:,.0f} tokens/s  {duration(left)} left"
        due = step.step * LINES_PER_RUN // self.total > (step.step - 1) * LINES_PER_RUN // self.total
        self.bar.show(step.step, text, text if due else None)


class ScoringProgress:
    """Counts finished lengths, and the share of the one that is being scored."""

    def __init__(self, bar: Bar):
        self.bar = bar
        self.finished = 0

    def __call__(self, protocol: str, length: int, share: float) -> None:
        self.finished += share == 1.0
        done = self.finished + (share if share < 1.0 else 0.0)
        text = f"scoring, {protocol}, length {length:,}"
        self.bar.show(done, text, f"{protocol}, length {length:,} scored" if share == 1.0 else None)


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
