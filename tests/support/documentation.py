"""The commands and files that a page of documentation shows, to be run unchanged."""

import re
import subprocess
from pathlib import Path

from pe_bench.cli.program import run
from pe_bench.config.compose import OVERRIDES_VARIABLE

SHORT = (
    "model.d_model=16 model.n_layers=1 model.n_heads=2 model.d_ff=16 train.tokens=8192 "
    "train.batch_tokens=2048 train.warmup_steps=2 train.validation_tokens=2048 eval.targets=6 "
    "eval.max_length=512 eval.lengths=[64,256] threads=1"
)

VERDICTS = (0, 3, 4)  # the exit codes of `try`
# What shortens a command that has no keys for it.
LESS = {
    "try": ["--minutes", "0.01"],
    "probe": ["--windows", "6"],
    "speed": ["--repeats", "1"],
    "explain": ["--targets", "6"],
}


def commands(page: str) -> list[tuple[str, int]]:
    """Return the lines of a page's shell blocks, without comments, each with its expected exit code."""
    blocks = re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]
    return [(line.split("  #")[0].strip(), int("# exit code 1" in line)) for line in lines]


def run_all(page: str, folder: Path, monkeypatch, capsys) -> str:
    """Write the files of a page into `folder` and run its commands there. Return what they printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(OVERRIDES_VARIABLE, SHORT)
    for path, text in re.findall(r"`([\w/]+\.py)`:\n+```\w*\n(.*?)```", page, flags=re.DOTALL):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    printed = ""
    for command, expected in commands(page):
        if command.startswith("pe-bench "):
            typed = command.replace("seed=0,1,2", "seed=0")
            words = subprocess.run(["bash", "-c", f"printf '%s\\0' {typed}"], capture_output=True, check=True)
            _, *arguments = words.stdout.decode().split("\0")[:-1]
            shorter = [] if "--list" in arguments else LESS.get(arguments[0], [])  # --list trains nothing
            code = run([*arguments, *shorter])
            output = capsys.readouterr()
            is_right = code == expected or (arguments[0] == "try" and code in VERDICTS)
            assert is_right, f"{command}\n{output.err}"
            printed += output.out + output.err
    return printed
