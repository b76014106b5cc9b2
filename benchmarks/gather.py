"""Time gathering and reporting over many runs: `python benchmarks/gather.py [--runs 2000]`.

Two sets of run directories are written to a temporary folder, 3 GB each at 2,000 runs: one has a few large
tables, the other many small ones. A command is timed as a user waits for it, from the start of its process to
its end; with `--cpu-time` what counts is the processor time of that process, which other work on the machine
changes little. `gather`, which ends every training, is timed inside this process. The commands alternate, and
medians are over the repeats.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from synthetic_runs import Shape, write_runs

from pe_bench.runs.folder import gather
from pe_bench.system.machine import environment

PLAIN = "report"
PAGE = "page.html"
COMMANDS = {
    PLAIN: ["report"],
    "report --all": ["report", "--all"],
    "report --where": ["report", "--where", "train.lr>0.0005"],
    "report --by": ["report", "--by", "train.lr"],
    "report --html": ["report", "--all", "--html", PAGE],
    "report --plot": ["report", "--plot", "curves.png"],
    "list runs": ["list", "runs"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000, help="run directories in each set (default: 2000)")
    parser.add_argument("--repeats", type=int, default=3, help="timings of each command (default: 3)")
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time")
    given = parser.parse_args()
    if given.runs < 1 or given.repeats < 1:
        parser.error("--runs and --repeats must be whole numbers of at least 1")
    print(_machine())
    for shape in shapes(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{shape.description}: ", end="", flush=True)
            rows = write_runs(Path(folder) / "results", shape)
            print(f"{rows:,} rows, as many score files\n{'':16}median    repeats, in seconds")
            clock = _processor_time if given.cpu_time else time.perf_counter
            for name, seconds in timed(Path(folder), given.repeats, clock).items():
                repeats = "  ".join(f"{taken:.2f}" for taken in seconds)
                print(f"{name:16}{statistics.median(seconds):6.2f}    {repeats}", flush=True)
            print(f"the page has {(Path(folder) / PAGE).stat().st_size / 1e6:.1f} MB")


def shapes(runs: int) -> tuple[Shape, Shape]:
    """Return the two sets. 2,000 runs are 4 tables of 25 lines of 20 seeds, or 500 of one line of 4 seeds."""
    return Shape(4, max(1, runs // 80), min(20, -(-runs // 4))), Shape(max(1, runs // 4), 1, min(4, runs))


def _processor_time() -> float:
    """Return the seconds that this process and its finished children have had of processors."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def timed(folder: Path, repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return the seconds of each command at each repeat. The commands alternate."""
    calls: Mapping[str, Callable[[], object]] = {
        "gather": lambda: gather(folder / "results"),
        **{name: _command(arguments, folder) for name, arguments in COMMANDS.items()},
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            found[name].append(clock() - start)
    return found


def _command(arguments: list[str], folder: Path) -> Callable[[], object]:
    command = [sys.executable, "-m", "pe_bench", *arguments, "--results-dir", "results"]

    def call() -> None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)}: {done.stderr}")

    return call


def _machine() -> str:
    here = environment(torch.device("cpu"), torch.get_num_threads())
    names = ("pe_bench", "git", "python", "processor", "cores", "platform")
    facts = [f"{name} {here[name]}" for name in names if here[name]]
    libraries = [f"{name} {version(name)}" for name in ("numpy", "safetensors", "pandas", "matplotlib")]
    return ", ".join([*facts, *libraries])


if __name__ == "__main__":
    main()
