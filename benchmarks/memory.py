"""Measure seconds and memory of scoring one long text: `python benchmarks/memory.py [NAMES]`.

Each encoding and length has its own process. Its memory is the peak above what the process held once the
model was built. The model has its initial weights, the text is random bytes, and every token is scored. NAMES
are encodings, by default all, and overrides, as in `rope alibi model=base`.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from pe_bench.config.groups import config_dir
from pe_bench.inspection.resolve import resolve
from pe_bench.model.decoder import build_decoder
from pe_bench.system.machine import PeakMemory

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="NAMES", help="encodings and overrides (default model: small)"
    )
    parser.add_argument("--lengths", default="32768", help="separated by commas (default: 32768)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="default: as many as PyTorch takes"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args()
    if given.child:
        print(json.dumps(measured(given.arguments, int(given.lengths), given.threads)))
        return
    names = [argument for argument in given.arguments if "=" not in argument] or every_encoding()
    options = ["model=small", *(argument for argument in given.arguments if "=" in argument)]
    print(
        f"{'encoding':20} {'length':>7} {'seconds':>8} {'MB above':>9}   {given.threads} threads, {options}"
    )
    for name in names:
        for length in given.lengths.split(","):
            print(line(name, length, in_a_process(name, length, options, given.threads)), flush=True)


def every_encoding() -> list[str]:
    return sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))


def in_a_process(name: str, length: str, options: list[str], threads: int) -> dict[str, Any]:
    """Return the result of `measured`, or the error that prevented it."""
    command = [sys.executable, str(Path(__file__)), name, *options, "--lengths", length, "--child"]
    done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]}
    return json.loads(done.stdout)


def line(name: str, length: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{name:20} {length:>7} {found['error']}"
    return f"{name:20} {length:>7} {found['seconds']:8.1f} {found['megabytes']:9.0f}"


def reaching(arguments: list[str], length: int) -> list[str]:
    """Return the overrides with a position for every token. Tables use their last row past their end."""
    (subject,) = resolve(arguments)
    encoding = subject.config.encoding
    modifiers = [name for name, part in encoding.get("modifiers", {}).items() if "max_position" in part]
    clamped = ["encoding.overflow=clamp"] if encoding.get("overflow") == "error" else []
    return [*arguments, *clamped, *(f"encoding.modifiers.{name}.max_position={length}" for name in modifiers)]


@torch.no_grad()
def measured(arguments: list[str], length: int, threads: int) -> dict[str, float]:
    """Return the seconds of scoring every token of a text, and the peak in megabytes above the start."""
    torch.set_num_threads(threads)
    (subject,) = resolve(reaching(arguments, length))
    vocabulary = [chr(byte) for byte in range(256)]
    model = build_decoder(subject.config, vocabulary)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(vocabulary), (1, length + 1), generator=generator)
    with PeakMemory(CPU) as before:
        start = time.perf_counter()
    with PeakMemory(CPU) as after:
        ids = model.encoding.ids(tokens[:, :-1], train=False, generator=generator)
        nll = model.nll(model.hidden(tokens[:, :-1], ids)[0], tokens[0, 1:])
    if not nll.isfinite().all():
        sys.exit("the scores are not finite")
    if before.mb is None or after.mb is None:
        sys.exit("this system does not report how much memory a process holds")
    return {"seconds": time.perf_counter() - start, "megabytes": after.mb - before.mb}


if __name__ == "__main__":
    main()
