"""Compare one run in several processes, with DDP and with FSDP2, with one process: losses and seconds.

python benchmarks/several_gpus.py --processes 8              # NCCL, on as many GPUs
python benchmarks/several_gpus.py --processes 2 device=cpu   # gloo
"""

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

RUN = ["encoding=t5", "train.steps=50", "train.log_every=1", "train.batch_tokens=8192", "eval.lengths=[128]"]
WAYS = {"one process": [], "ddp": [], "fsdp": ["train.sharding=fsdp"]}


def last_steps(run: Path) -> list[dict[str, str]]:
    with (run / "train.csv").open() as file:
        return list(csv.DictReader(file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="", help="default: as many as there are GPUs")
    chosen, overrides = parser.parse_known_args()
    processes = int(chosen.processes or torch.cuda.device_count())
    if processes < 2:
        print("fewer than two GPUs: nothing to compare")
        return 0
    folder = Path(tempfile.mkdtemp())
    losses = {}
    for way, words in WAYS.items():
        count = [] if way == "one process" else [f"train.processes={processes}"]
        command = [sys.executable, "-m", "pe_bench", "train", *RUN, "precision=float32", *overrides]
        results = folder / way.replace(" ", "-")
        subprocess.run([*command, *count, *words, f"results_dir={results}"], check=True, capture_output=True)
        (run,) = (results / "runs").iterdir()
        steps = last_steps(run)
        losses[way] = [float(step["loss"]) for step in steps]
        pairs = zip(losses[way], losses["one process"], strict=True)
        apart = max(abs(one - other) / other for one, other in pairs)
        print(f"{way}: {float(steps[-1]['seconds']):.1f} s, losses differ by at most {apart:.1e}")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
