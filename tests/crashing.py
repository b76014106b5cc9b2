"""Runs a command many times in children that die, and prints what each series came to, as JSON.

Usage: crashing.py FOLDER renames|kills COUNT -- WORDS. A child is a fork of a process that has run
the command once, so that it starts in milliseconds; with one thread there is no pool to break.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from pe_bench import cli
from pe_bench.config import Config, parse_config
from pe_bench.experiment import run_experiment
from pe_bench.hydra_app import compose

DIED = 9


def run_child(config: Config, die_at: int | None = None, kill_after: float | None = None) -> int:
    """The exit status of one run: it may die at a rename (odd: before it, even: after), or be killed."""
    child = os.fork()
    if child == 0:
        if die_at is not None:
            die_at_rename(die_at)
        status = 1
        try:
            run_experiment(config)
            status = 0
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at_rename(number: int) -> None:
    rename, seen = os.replace, 0

    def dying(source, target):
        nonlocal seen
        seen += 1
        if number == 2 * seen - 1:
            os._exit(DIED)
        rename(source, target)
        if number == 2 * seen:
            os._exit(DIED)

    os.replace = dying


def at(config: Config, folder: Path) -> Config:
    return replace(config, results_dir=str(folder / "results"), cache_dir=str(folder / "cache"))


def crash_at_every_rename(folder: Path, config: Config, count: int) -> list[int]:
    """Series n dies at point n and then runs to its end; stops where no point n is left."""
    ends = []
    for number in range(1, count + 1):
        series = at(config, folder / f"{number:03}")
        if run_child(series, die_at=number) != DIED:
            break
        ends.append(run_child(series))
    return ends


def kill_at_random_moments(folder: Path, config: Config, count: int) -> list[int]:
    """Each series is killed again and again, each time later, until it has come to its end."""
    drawn, ends = random.Random(0), []
    for number in range(1, count + 1):
        series, patience = at(config, folder / f"{number:03}"), 0.2
        while (status := run_child(series, kill_after=drawn.uniform(0, patience))) == -signal.SIGKILL:
            patience *= 1.5
        ends.append(status)
    return ends


if __name__ == "__main__":
    folder, kind, count, _, *words = sys.argv[1:]
    torch.set_num_threads(1)
    answer = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warm = Path(folder).with_name("warm")
    cli.run([*words, f"results_dir={warm / 'results'}", f"cache_dir={warm / 'cache'}"])
    config = parse_config(compose(words[1:]))
    series = {"renames": crash_at_every_rename, "kills": kill_at_random_moments}[kind]
    os.write(answer, json.dumps(series(Path(folder), config, int(count))).encode())
