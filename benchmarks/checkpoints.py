"""Time and memory of scoring a checkpoint, against transformers with PyTorch's fused attention.

    python benchmarks/checkpoints.py 8192 32768 --window 1024

A random model of 100 million parameters is made in a temporary folder. Each measurement has a process of its
own: one window, and the NLL of its last 32 targets. `--window` is for a model with sliding-window layers, for
which transformers makes a mask of length x length.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from pe_bench.checkpoints.load import load_config, quiet
from pe_bench.checkpoints.opened import open_checkpoint
from pe_bench.checkpoints.source import Source
from pe_bench.system.memory import PeakMemory

TARGETS = 32
SIZES = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2_048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "max_position_embeddings": 4_096,
}
WAYS = ("transformers", "pe-bench")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lengths", type=int, nargs="+")
    parser.add_argument("--window", type=int)
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(Path(asked.child[0]), asked.child[1], asked.lengths[0])))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), asked.window, asked.layers)
        print(f"{'length':>8} {'way':>14} {'seconds':>9} {'MB':>8} {'nll':>10}")
        for length in asked.lengths:
            for way in WAYS:
                child = [sys.executable, __file__, str(length), "--child", folder, way]
                done = subprocess.run(child, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                numbers = f"{found['seconds']:>9.1f} {found['mb']:>8.0f} {found['nll']:>10.5f}"
                print(f"{length:>8} {way:>14} {numbers}", flush=True)


def write_model(folder: Path, window: int | None, layers: int) -> None:
    settings = {**SIZES, "num_hidden_layers": layers, "model_type": "mistral", "sliding_window": window}
    with quiet() as transformers:
        config = transformers.AutoConfig.for_model(**settings)
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@torch.no_grad()
def measure(folder: Path, way: str, length: int) -> dict[str, float]:
    """Return seconds, the most memory that the process held, and the mean NLL of the targets."""
    source = Source(str(folder), folder)
    config = load_config(source)
    tokens = torch.randint(SIZES["vocab_size"], (1, length + 1), generator=torch.Generator().manual_seed(0))
    targets = tokens[0, -TARGETS:]
    device = torch.device("cpu")
    if way == "pe-bench":
        model = open_checkpoint(source, config, 4_096, None, torch.float32, plain=False).model
        with PeakMemory(device) as peak:
            start = time.perf_counter()
            hidden = model.hidden(tokens[:, :-1], torch.arange(length), None, length - TARGETS)
            nll = model.nll(hidden[0], targets)
            seconds = time.perf_counter() - start
    else:
        with quiet() as transformers:
            loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
        with PeakMemory(device) as peak:
            start = time.perf_counter()
            logits = loaded.eval()(tokens[:, :-1], use_cache=False, logits_to_keep=TARGETS).logits
            nll = torch.nn.functional.cross_entropy(logits[0].float(), targets, reduction="none")
            seconds = time.perf_counter() - start
    return {"seconds": seconds, "mb": peak.mb or 0.0, "nll": float(nll.mean())}


if __name__ == "__main__":
    main()
