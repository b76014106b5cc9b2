"""Measure how soon a run shows its first step: `python benchmarks/first_step.py [--repeats 9] [OVERRIDES]`.

It starts `pe-bench train encoding=rope` in a terminal of its own until the first step is shown, ends it with
Ctrl-C, and prints the seconds of each start beside those of importing PyTorch just after it. A first start,
which may still have to read the data, is not counted.
"""

import argparse
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from statistics import median

from interleaved import machine

FIRST_STEP = re.compile(rb"step\s+[1-9]\d*( of|/)")
IMPORT = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"


def seconds_to_first_step(overrides: list[str]) -> float:
    """Return the seconds from the start of the command to its first step. Raise `RuntimeError` without it."""
    start, output, taken = time.perf_counter(), b"", None
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "encoding=rope", f"results_dir={folder}", *overrides]
        process, terminal = pty.fork()
        if process == 0:
            os.execv(sys.executable, [sys.executable, "-m", "pe_bench", *words])
        with suppress(OSError):  # which is how a terminal ends
            while not FIRST_STEP.search(output):
                output += os.read(terminal, 4096)
            taken = time.perf_counter() - start
            os.kill(process, signal.SIGINT)
            while os.read(terminal, 4096):
                pass
        os.waitpid(process, 0)
        os.close(terminal)
    if taken is None:
        raise RuntimeError(output.decode(errors="replace"))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="default: 9")
    parser.add_argument("overrides", nargs="*", help="of `pe-bench train`")
    given = parser.parse_args()
    seconds_to_first_step(given.overrides)
    steps, imports = [], []
    for _ in range(given.repeats):
        steps.append(seconds_to_first_step(given.overrides))
        imports.append(float(subprocess.check_output([sys.executable, "-c", IMPORT])))
    print(machine())
    for name, seconds in (("first step", steps), ("import torch", imports)):
        print(f"{name:12}  median {median(seconds):.2f} s, from {min(seconds):.2f} to {max(seconds):.2f}")


if __name__ == "__main__":
    main()
