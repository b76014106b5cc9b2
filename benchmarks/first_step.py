"""Measure how soon a run shows its first step: `python benchmarks/first_step.py [--repeats 9] [OVERRIDES]`.

It runs `pe-bench train encoding=rope` in its own terminal up to the first step, interrupts it, then times
`import torch`, and prints the median and the range of both. One start comes first and is not counted,
because it may have to read the data.
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
    """Return the seconds from the start of the command to its first step. Raise `RuntimeError` if none."""
    start, output, taken = time.perf_counter(), b"", None
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "encoding=rope", f"results_dir={folder}", *overrides]
        process, terminal = pty.fork()
        if process == 0:
            os.execv(sys.executable, [sys.executable, "-m", "pe_bench", *words])
        with suppress(OSError):  # raised when it closes
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
