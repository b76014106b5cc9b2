"""Run a command many times in children that die, and print the result of each series as JSON.

Usage: crashing.py FOLDER KIND,... COUNT,... -- ARGUMENTS. A child is a fork of a process that has run the
command once, so that it starts in milliseconds; with one thread there is no pool to break.
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
from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.experiment import train
from pe_bench.runs.gather import gather

RUNS = 8  # that are gathered
# What scoring leaves in a run.
SCORED = ("eval.csv", "means.safetensors", "scores", "result.json", "commands.json")

Act = Callable[[], object]


def begin_child(act: Act) -> int:
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


def crash_at_every_rename(folder: Path, config: Config, count: int) -> list[int]:
    """Keep what is on the disk before and after each rename of a run, as kills leave it; then end each."""
    begun = at(config, folder / "000")

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
        train(begun)

    (folder / "000").mkdir(parents=True)
    ends = [end_of(begin_child(run))]
    for series in sorted(folder.iterdir())[1:]:
        ends.append(end_of(begin_child(lambda: train(at(config, series)))))  # noqa: B023
    return ends


def kill_until_done(act: Act, drawn: random.Random, patience: float) -> int:
    """Repeat an act, killed at random moments, each time later, until it finishes."""
    while True:
        child = begin_child(act)
        time.sleep(drawn.uniform(0, patience))
        os.kill(child, signal.SIGKILL)
        status = end_of(child)
        if status != -signal.SIGKILL:
            return status
        patience *= 1.5


def kill_each(folder: Path, config: Config, count: int) -> list[int]:
    """Let each of these series be killed at random moments until it is done."""
    prepare, patience = KILLED[folder.name]
    drawn, series = random.Random(0), [at(config, folder / f"{number:03}") for number in range(count)]
    return [kill_until_done(prepare(one), drawn, patience) for one in series]


def begin_scoring(series: Config) -> Act:
    """Copy a run that is trained, without what scoring leaves in it."""
    results = Path(series.results_dir)
    shutil.copytree(finished(series), results, ignore=shutil.ignore_patterns(*SCORED, "*.csv.*"))
    (results / "results.csv").unlink()
    return lambda: train(series)


def begin_gathering(series: Config) -> Act:
    several(finished(series), Path(series.results_dir))
    return lambda: gather(Path(series.results_dir))


def gather_together(folder: Path, config: Config, count: int) -> list[int]:
    """Run processes that each finish a run and gather all runs at the same time."""
    ends = []
    for number in range(count):
        series = at(config, folder / f"{number:03}")
        waiting, results = folder.with_name("waiting") / f"{number:03}", Path(series.results_dir)
        several(finished(series), waiting)
        (results / "runs").mkdir(parents=True)
        children = [begin_child(lambda: finish(run, results)) for run in (waiting / "runs").iterdir()]  # noqa: B023
        ends += [end_of(child) for child in children]
    return ends


def finish(run: Path, results: Path) -> None:
    os.replace(run, results / "runs" / run.name)
    gather(results)


def finished(series: Config) -> Path:
    """Return the results of a run that nothing disturbed, which all series share."""
    undisturbed = at(series, Path(series.results_dir).parents[2] / "undisturbed")
    train(undisturbed)
    return Path(undisturbed.results_dir)


def several(finished: Path, results: Path) -> None:
    """Copy runs under other names."""
    for run in (finished / "runs").iterdir():
        for number in range(RUNS):
            shutil.copytree(run, results / "runs" / f"{run.name}-{number}")


# What is killed, and the most seconds that it may run the first time.
KILLED = {
    "training": (lambda series: lambda: train(series), 0.2),
    "scoring": (begin_scoring, 0.1),
    "gathering": (begin_gathering, 0.02),
}
KINDS = {"renames": crash_at_every_rename, "together": gather_together, **dict.fromkeys(KILLED, kill_each)}

if __name__ == "__main__":
    folder, kind, count, _, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # a kill loses nothing that was written
    answer = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warm = Path(folder).with_name("warm")
    program.run([*arguments, f"results_dir={warm / 'results'}", f"cache_dir={warm / 'cache'}"])
    config = parse_config(compose(arguments[1:]))
    pairs = zip(kind.split(","), map(int, count.split(",")), strict=True)
    ends = {name: KINDS[name](Path(folder) / name, config, times) for name, times in pairs}
    os.write(answer, json.dumps(ends).encode())
