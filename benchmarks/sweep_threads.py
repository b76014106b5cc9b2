"""Measure what too many threads cost parallel jobs: `sweep_threads.py [--repeats 3] [OVERRIDES]`.

`hydra/launcher=joblib` trains as many runs in parallel as there are cores, once with threads=auto, with which
jobs leave each other their share of the cores, and once with all cores for each job. The two alternate, in
temporary folders. They are compared by the seconds that all jobs spent in training steps. The jobs are seeds
of one run, so the work is the same.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from interleaved import Seconds, machine, print_table, ratio

from pe_bench.system.machine import available_cores

OVERRIDES = ["model=tiny", "train.steps=60", "eval.lengths=[128]", "eval.max_length=128", "eval.targets=2"]


def trained(threads: str, overrides: list[str]) -> float:
    """Train as many runs in parallel as there are cores. Return their seconds of training, summed."""
    seeds = ",".join(map(str, range(available_cores())))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pe_bench", "train", "-m", f"seed={seeds}", f"threads={threads}"]
        launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={available_cores()}"]
        done = subprocess.run(
            [*command, *launcher, f"results_dir={folder}", *OVERRIDES, *overrides],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        results = [json.loads(path.read_text()) for path in Path(folder).glob("runs/*/result.json")]
    return sum(result["train_seconds"] for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="default: 3")
    parser.add_argument("overrides", nargs="*", help="overrides of `pe-bench train`, such as encoding=alibi")
    options = parser.parse_args()
    arms = {"auto": "auto", "all cores each": str(available_cores())}
    seconds: Seconds = {name: [] for name in arms}
    for number in range(options.repeats):
        for name in list(arms) if number % 2 == 0 else reversed(arms):
            seconds[name].append(trained(arms[name], options.overrides))
    print(machine())
    print(
        f"{available_cores()} jobs in parallel, pe-bench train {' '.join([*OVERRIDES, *options.overrides])}"
    )
    rows = [
        [name, f"{sorted(found)[len(found) // 2]:.1f}", ratio(seconds, name, "auto")]
        for name, found in seconds.items()
    ]
    print_table(["threads", "seconds of training, all jobs", "over auto"], rows, left=1)


if __name__ == "__main__":
    main()
