"""Run a command many times in children that die, and print the exit statuses of each kind of crash as JSON.

Usage: crashing.py FOLDER COUNTS ARGUMENTS..., with the number of series of each kind as JSON. A child is a
fork of a process that has run the command once, so that it starts in milliseconds; with one thread there is
no pool to break.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from pe_bench.cli import program
from pe_bench.commands.train import train
from pe_bench.config.compose import compose_config
from pe_bench.config.schema import Config

# What scoring leaves in a run.
SCORED = ("eval.csv", "means.safetensors", "scores", "result.json", "commands.json")


def begin_child(act: Callable[[], object]) -> int:
    """Start a process that does only this. Return its number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return child


def end_of(child: int) -> int:
    """Return the exit status, or minus the number of the signal that killed the child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at(config: Config, folder: Path) -> Config:
    return replace(config, results_dir=str(folder / "results"), cache_dir=str(folder / "cache"))


def crash_at_every_rename(folder: Path, config: Config) -> list[int]:
    """Keep what is on the disk before and after each rename of a run, as kills leave it; then end each."""

    def run() -> None:
        rename, moments = os.replace, 0

        def keep() -> None:
            nonlocal moments
            moments += 1
            shutil.copytree(folder / "000", folder / f"{moments:03}")

        def watched(source, target):
            keep()
            rename(source, target)
            keep()

        os.replace = watched
        train(at(config, folder / "000"))

    (folder / "000").mkdir(parents=True)
    ends = [end_of(begin_child(run))]
    for series in sorted(folder.iterdir())[1:]:
        ends.append(end_of(begin_child(lambda: train(at(config, series)))))  # noqa: B023
    return ends


def kill_until_done(config: Config, drawn: random.Random) -> int:
    """Repeat a run, killed at random moments, each time later, until it finishes."""
    patience = 0.1
    while True:
        child = begin_child(lambda: train(config))
        time.sleep(drawn.uniform(0, patience))
        os.kill(child, signal.SIGKILL)
        status = end_of(child)
        if status != -signal.SIGKILL:
            return status
        patience *= 1.5


def kill_each(folder: Path, config: Config, count: int, unscored: Path) -> list[int]:
    """Let each of these series be killed at random moments until it is done, in scoring a trained run too."""
    drawn, ends = random.Random(0), list[int]()
    for number in range(count):
        series = at(config, folder / f"{number:03}")
        if folder.name == "scoring":
            shutil.copytree(unscored, series.results_dir)
        ends.append(kill_until_done(series, drawn))
    return ends


def main(folder: Path, counts: dict[str, int], arguments: list[str]) -> dict[str, list[int]]:
    warm = folder.with_name("warm")
    program.run([*arguments, f"results_dir={warm / 'results'}", f"cache_dir={warm / 'cache'}"])
    shutil.copytree(warm / "results", warm / "unscored", ignore=shutil.ignore_patterns(*SCORED, "*.csv.*"))
    (warm / "unscored" / "results.csv").unlink()
    config = compose_config(arguments[1:])
    ends = {"renames": crash_at_every_rename(folder / "renames", config)} if "renames" in counts else {}
    for kind in counts.keys() - ends.keys():
        ends[kind] = kill_each(folder / kind, config, counts[kind], warm / "unscored")
    return ends


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # a kill loses nothing that was written
    answer = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    ends = main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
    os.write(answer, json.dumps(ends).encode())
