"""Count the functions of pe-bench, and their files, that a command runs: what a reader of it has to follow.

A function or method with a name counts once. `train` is counted until its first loss, whose
gradient comes next. Beside each stands the count of commit 7715aa8, counted in the same way.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pe_bench

TRAIN = ("train", "encoding=rope", "experiment=quick", "threads=1")
BEFORE = {
    TRAIN: (393, 80),
    ("report",): (309, 52),
    ("report", "--csv", "-"): (273, 50),
    ("list", "runs"): (57, 15),
}
# Each command has a process of its own, so that no import or cache of another spares it a call.
COUNT = """
import os, sys
from inspect import CO_OPTIMIZED

package, command = sys.argv[1], sys.argv[2:]
called = set()

def watch(frame, event, value):
    code = frame.f_code
    # Bodies of classes and modules are not optimized; what has no name is called <lambda> or <genexpr>.
    if code.co_filename.startswith(package) and code.co_flags & CO_OPTIMIZED and "<" not in code.co_name:
        called.add((code.co_filename, code.co_qualname))
    elif event == "call" and code.co_filename.endswith("torch/_tensor.py") and code.co_name == "backward":
        end()

def end():
    sys.setprofile(None)
    text = f"\\n{len(called)} {len({file for file, name in called})}"
    os.write(1, text.encode())
    os._exit(0)

from pe_bench.cli import main
sys.argv = ["pe-bench", *command]
sys.setprofile(watch)
try:
    main()
except SystemExit:
    end()
end()
"""


def count(command: tuple[str, ...], folder: str) -> tuple[int, int]:
    """Return how many functions, in how many files, a command in that folder runs."""
    package = str(Path(pe_bench.__file__).parent)
    process = subprocess.run(
        [sys.executable, "-c", COUNT, package, *command],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    functions, files = process.stdout.splitlines()[-1].split()
    return int(functions), int(files)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for command, (functions_before, files_before) in BEFORE.items():
            functions, files = count(command, folder)
            if command == TRAIN:
                subprocess.run(
                    [sys.executable, "-m", "pe_bench", *TRAIN], cwd=folder, check=True, capture_output=True
                )
            before = f"(before: {functions_before} in {files_before})"
            print(f"{functions:4} functions in {files:2} files {before:22}  pe-bench {' '.join(command)}")


if __name__ == "__main__":
    main()
