"""Interleaved timing: calls alternate, so that other work on the machine slows all of them alike."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import torch
from rich.console import Console
from rich.table import Table

from pe_bench.system.machine import environment

Seconds = dict[str, list[float]]


def interleaved(
    calls: Mapping[str, Callable[[], object]], repeats: int, warm_up: int, of_processor: bool = False
) -> Seconds:
    """Return the seconds of each call in each round, without the first `warm_up` rounds.

    Every second round runs backwards. `of_processor` measures this process's time on the processor, over all
    its threads, in place of wall-clock time.
    """
    clock = time.process_time if of_processor else time.perf_counter
    names = list(calls)
    found: Seconds = {name: [] for name in names}
    for number in range(-warm_up, repeats):
        for name in names if number % 2 == 0 else reversed(names):
            began = clock()
            calls[name]()
            if number >= 0:
                found[name].append(clock() - began)
    return found


def ratio(seconds: Seconds, over: str, under: str) -> str:
    """Return the ratio of the medians and, in brackets, the middle half of the ratios of single rounds."""
    if over not in seconds or under not in seconds:
        return ""
    above, below = seconds[over], seconds[under]
    of_rounds = [a / b for a, b in zip(above, below, strict=True)]
    low, _, high = statistics.quantiles(of_rounds, n=4, method="inclusive")
    return f"{statistics.median(above) / statistics.median(below):.2f} ({low:.2f}-{high:.2f})"


def machine(*libraries: str) -> str:
    """Return two lines: the machine, and the versions that ran on it."""
    here = environment(torch.device("cpu"), torch.get_num_threads())
    threads = "1 thread" if here["threads"] == 1 else f"{here['threads']} threads"
    versions = [f"{name} {here[name]}" for name in ("pe_bench", "git", "python", "torch") if here[name]]
    versions += [f"{name} {version(name)}" for name in libraries]
    return f"{here['processor']}, {here['cores']} cores, {threads}, {here['platform']}\n{', '.join(versions)}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    """Print the first `left` columns as text, the others as numbers. Without a terminal, nothing is cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console() if sys.stdout.isatty() else Console(width=240)
    console.print(table)


def add_usual_options(parser: argparse.ArgumentParser, repeats: int) -> None:
    """Add the options that every comparison of times has."""
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"default: {repeats}")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and text (default: 0)")
    description = "measure processor time, for a busy machine; use it with --threads 1"
    parser.add_argument("--cpu-time", action="store_true", help=description)
