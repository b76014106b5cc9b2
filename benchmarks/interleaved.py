"""Timing several things in turns, so that what else the machine does meets all of them alike."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import torch
from rich.console import Console
from rich.table import Table

from pe_bench.system.versions import environment

Seconds = dict[str, list[float]]


def interleaved(
    calls: Mapping[str, Callable[[], object]], repeats: int, warm_up: int, of_processor: bool = False
) -> Seconds:
    """Seconds of each call in each round; every second goes backwards, and `warm_up` rounds are not kept.

    `of_processor`: those that this process had of it, in all its threads, instead of the clock's.
    """
    clock = time.process_time if of_processor else time.perf_counter
    found: Seconds = {name: [] for name in calls}
    for number in range(-warm_up, repeats):
        for name in list(calls) if number % 2 == 0 else reversed(calls):
            began = clock()
            calls[name]()
            if number >= 0:
                found[name].append(clock() - began)
    return found


def ratio(seconds: Seconds, over: str, under: str) -> str:
    """The ratio of the medians, and in brackets the middle half of the ratios of each round."""
    if over not in seconds or under not in seconds:
        return ""
    above, below = seconds[over], seconds[under]
    of_rounds = [a / b for a, b in zip(above, below, strict=True)]
    low, _, high = statistics.quantiles(of_rounds, n=4, method="inclusive")
    return f"{statistics.median(above) / statistics.median(below):.2f} ({low:.2f}-{high:.2f})"


def machine(*libraries: str) -> str:
    """Two lines: the machine, and what ran on it."""
    here = environment(torch.device("cpu"), torch.get_num_threads())
    threads = "1 thread" if here["threads"] == 1 else f"{here['threads']} threads"
    told = [f"{name} {here[name]}" for name in ("pe_bench", "git", "python", "torch") if here[name]]
    told += [f"{name} {version(name)}" for name in libraries]
    return f"{here['processor']}, {here['cores']} cores, {threads}, {here['platform']}\n{', '.join(told)}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    """The first `left` columns hold words, the others numbers; off a terminal nothing is cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console() if sys.stdout.isatty() else Console(width=240)
    console.print(table)


def add_usual_options(parser: argparse.ArgumentParser, repeats: int) -> None:
    """What every comparison of times has."""
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"default: {repeats}")
    parser.add_argument("--seed", type=int, default=0, help="of weights and text (default: 0)")
    words = "seconds of the processor, not of the clock: where others use it too; one thread"
    parser.add_argument("--cpu-time", action="store_true", help=words)
