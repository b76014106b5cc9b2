"""Time and memory of scoring a checkpoint, against transformers with PyTorch's fused attention.

    python benchmarks/checkpoints.py 8192 32768 --window 1024
    python benchmarks/checkpoints.py 2048 8192 --precision bfloat16
    python benchmarks/checkpoints.py 2048 8192 --precision bfloat16 --model FOLDER

Without `--model`, a random model of 110 million parameters is made in a temporary folder. Each measurement
has a process of its own: one window, and the NLL of its last 32 targets. The two ways take turns. Printed are
the medians of all rounds, and the most memory that a process held while it scored, weights and libraries
included. `--window` is for a model with sliding-window layers, for which transformers makes a mask of length
x length.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from pe_bench.hf.library import quiet
from pe_bench.hf.opened import open_hf_model
from pe_bench.hf.source import TOKENIZER, Source, begin_of_text, load_config
from pe_bench.system.machine import PeakMemory

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
    "tie_word_embeddings": True,
}
WAYS = ("transformers", "pe-bench")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lengths", type=int, nargs="+")
    parser.add_argument("--model", help="a folder with a Hugging Face model")
    parser.add_argument("--window", type=int)
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    dtype = getattr(torch, asked.precision)
    if asked.child:
        torch.set_num_threads(asked.threads)
        print(json.dumps(measure(Path(asked.child[0]), asked.child[1], asked.lengths[0], dtype)))
        return
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{versions}, {asked.threads} threads, {asked.precision}")
    with tempfile.TemporaryDirectory() as folder:
        if asked.model is None:
            write_model(Path(folder), asked.window, asked.layers)
        print(f"{'length':>8} {'way':>14} {'seconds':>9} {'cpu s':>9} {'MB':>8} {'nll':>10}")
        for length in asked.lengths:
            rounds = [
                {way: run_child(asked.model or folder, way, length, asked) for way in WAYS}
                for _ in range(asked.rounds)
            ]
            for way in WAYS:
                found = {name: median(one[way][name] for one in rounds) for name in rounds[0][way]}
                numbers = f"{found['seconds']:>9.1f} {found['cpu']:>9.1f} {found['mb']:>8.0f}"
                print(f"{length:>8} {way:>14} {numbers} {found['nll']:>10.5f}", flush=True)


def run_child(folder: str, way: str, length: int, asked: argparse.Namespace) -> dict[str, float]:
    options = ["--threads", str(asked.threads), "--precision", asked.precision]
    child = [sys.executable, __file__, str(length), *options, "--child", folder, way]
    done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def write_model(folder: Path, window: int | None, layers: int) -> None:
    settings = {**SIZES, "num_hidden_layers": layers, "model_type": "mistral", "sliding_window": window}
    with quiet() as transformers:
        config = transformers.AutoConfig.for_model(**settings)
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@torch.no_grad()
def measure(folder: Path, way: str, length: int, dtype: torch.dtype) -> dict[str, float]:
    """Return seconds, the most memory that the process held, and the mean NLL of the targets."""
    source = Source(f"hf:{folder}", folder)
    tokens = torch.randint(SIZES["vocab_size"], (1, length + 1), generator=torch.Generator().manual_seed(0))
    begin = begin_of_text(source) if (folder / TOKENIZER).exists() else []
    tokens[0, : len(begin)] = torch.tensor(begin)
    targets = tokens[0, -TARGETS:]
    make = ours if way == "pe-bench" else theirs
    score = make(source, tokens, targets, dtype, begin)
    with PeakMemory(torch.device("cpu")) as peak:
        start, cpu = time.perf_counter(), time.process_time()
        nll = score()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "mb": peak.mb or 0.0, "nll": float(nll.mean())}


def ours(
    source: Source, tokens: Tensor, targets: Tensor, dtype: torch.dtype, begin: Sequence[int]
) -> Callable[[], Tensor]:
    model = open_hf_model(source, load_config(source), 4_096, begin, dtype, plain=False).model
    length = tokens.shape[1] - 1

    def score() -> Tensor:
        hidden = model.hidden(tokens[:, :-1], torch.arange(length), None, length - TARGETS)
        return model.nll(hidden[0], targets)

    return score


def theirs(
    source: Source, tokens: Tensor, targets: Tensor, dtype: torch.dtype, _: Sequence[int]
) -> Callable[[], Tensor]:
    with quiet() as transformers:
        load = transformers.AutoModelForCausalLM.from_pretrained
        loaded = load(source.folder, attn_implementation="sdpa", dtype=dtype)
    model = loaded.eval()

    def score() -> Tensor:
        logits = model(tokens[:, :-1], use_cache=False, logits_to_keep=TARGETS).logits
        return torch.nn.functional.cross_entropy(logits[0].float(), targets, reduction="none")

    return score


if __name__ == "__main__":
    main()
