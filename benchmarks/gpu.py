"""All that needs a GPU, in seven and a half minutes on one H100: `benchmarks/gpu.sh [PART...]`.

  agreement    model=small for 100 steps on the CPU and on the GPU: losses side by side, then scores
  correctness  attention on the GPU against float64, for one encoding of each kind of hook
  training     steps at the size of gpt2: tokens/s, and the share of the rate of one large product
  scoring      one text of 65,536 tokens under three encodings
  study        three encodings with 30 million parameters, scored to 16 times the training length

`--long` takes at most 45 minutes and has more of each: 14 encodings in `correctness`, eight in `training`,
all in `scoring`, and in `study` the seven of `pe-bench reproduce gpu`; and in place of `agreement` it has

  together     one run on all GPUs of the machine, by DDP and by FSDP2; skipped where there is one GPU

Each part has a limit, at which it is stopped. A part that is done is not repeated unless it is named. The
last output is a table of each part, and of what a stopped part had found. All results are in results/gpu, or
in $GPU_RESULTS. GPU_TEXT=FOLDER is the study's text. GPU_TOY=1 does everything at a toy size on a CPU.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from interleaved import machine

RESULTS = Path(os.environ.get("GPU_RESULTS", "results/gpu"))
TEXT = os.environ.get("GPU_TEXT", "")
TOY = bool(os.environ.get("GPU_TOY"))
PE_BENCH = ["-m", "pe_bench"]
SECONDS_OF_A_TABLE = 30
GRACE = 10  # seconds from the request to stop until a process is killed
# What a machine with PyTorch, pandas and tokenizers may lack, in wheels of some 2 MB.
WHEELS = (
    "hydra-core>=1.3.2,<1.4",
    "omegaconf>=2.3,<2.4",
    "antlr4-python3-runtime==4.9.*",
    "datasets",
    "dill",
    "multiprocess",
    "platformdirs",
    "filelock",
    ".",
)

HOOKS = {
    "rope": "transform",
    "t5": "distance_bias",
    "fox": "columns",
    "sliding_window": "visible",
    "sink": "null_logit",
    "gated_deltanet": "attend",
}
MORE_HOOKS = [
    *("rope", "alibi", "t5", "fire", "kerple_log", "fox", "local_global", "sink", "sliding_window"),
    *("lm_infinite", "shaw", "cope", "stick_breaking", "key_offset"),
]
TIMED = ["rope", "alibi", "fox", "gated_deltanet"]
MORE_TIMED = ["rope", "alibi", "t5", "fire", "kerple_log", "fox", "local_global"]
STUDIED = ["rope", "alibi", "fox"]


@dataclass(frozen=True)
class Part:
    """Commands of Python that run side by side, and a last one that makes a table of their results.

    show: the lines of the part's table, from the folder of results; by default the output of the last
    command, or of the only one.
    """

    name: str
    seconds: int  # at which the part is stopped
    commands: dict[str, list[str]]
    last: list[str] = field(default_factory=list)
    show: Callable[["Part"], list[str]] | None = None

    @property
    def mark(self) -> Path:
        return RESULTS / f"{self.name}.done"

    def log(self, label: str) -> Path:
        return RESULTS / f"{self.name}-{label}.txt"

    def lines(self) -> list[str]:
        if self.show:
            return self.show(self)
        log = self.log("table" if self.last else next(iter(self.commands)))
        return log.read_text().splitlines() if log.exists() else []


def run_parts(parts: Sequence[Part]) -> dict[str, str]:
    """Run the commands of all these parts side by side; return why a part did not succeed, by its name."""
    commands: dict[Path, list[str]] = {}
    for part in parts:
        part.mark.unlink(missing_ok=True)
        commands |= {part.log(label): words for label, words in part.commands.items()}
    failed = run_side_by_side(commands, max(part.seconds for part in parts))
    reasons: dict[str, str] = {}
    for part in parts:
        own = [failed[part.log(label)] for label in part.commands if part.log(label) in failed]
        if part.last:
            own += run_side_by_side({part.log("table"): part.last}, SECONDS_OF_A_TABLE).values()
        if own:
            reasons[part.name] = "; ".join(own)
        else:
            part.mark.touch()
    return reasons


def run_side_by_side(commands: dict[Path, list[str]], seconds: int) -> dict[Path, str]:
    """Run commands for so long at most; return what failed, by the file of a command's output."""
    end = time.monotonic() + seconds
    processes: dict[Path, subprocess.Popen[bytes]] = {}
    failed: dict[Path, str] = {}
    try:
        for log, words in commands.items():
            with log.open("wb") as output:
                processes[log] = subprocess.Popen(
                    [sys.executable, *words],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        for log, process in processes.items():
            try:
                code = process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                failed[log] = f"stopped at its limit of {seconds} seconds (see {log})"
                continue
            if code:
                failed[log] = f"exit code {code} (see {log})"
    finally:
        stop([process for process in processes.values() if process.poll() is None])
    return failed


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask processes and their children to stop, and kill those that do not."""
    for process in processes:
        os.killpg(process.pid, signal.SIGINT)
    end = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# The parts


def short_parts(tokens: int) -> list[list[Part]]:
    """Return the parts in their order; those in one list measure no time and run side by side."""
    gpu, cpu = ("cpu", "cpu") if TOY else ("cuda", "cpu")
    size = "model=tiny train.batch_tokens=256" if TOY else "model=small"
    runs = {
        "cpu": [f"device={cpu}", "precision=float32"],
        "gpu": [f"device={gpu}", "precision=float32"],
        "gpu-bfloat16": [f"device={gpu}", "precision=bfloat16"],
    }
    steps = 20 if TOY else 100
    common = [
        *(*PE_BENCH, "train", "encoding=rope", *size.split(), f"train.steps={steps}"),
        *("threads=1" if TOY else "threads=6", "eval.targets=32", "eval.controls=none"),
    ]
    agreement = Part(
        "agreement",
        120,
        {name: [*common, *keys, f"results_dir={RESULTS}/agreement/{name}"] for name, keys in runs.items()},
        show=losses_side_by_side,
    )
    hooks = ["rope", "gated_deltanet"] if TOY else list(HOOKS)
    paths = ["--device", gpu, "--lengths", "40" if TOY else "300"]
    correctness = Part(
        "correctness",
        120,
        {name: ["benchmarks/gpu_paths.py", name, *paths] for name in hooks},
        show=rows_of_errors,
    )
    return [
        [agreement, correctness],
        [training_part(["rope"] if TOY else TIMED, 110)],
        [scoring_part(["rope", "fox"] if TOY else STUDIED, 45)],
        [study_part(tokens)],
    ]


def long_parts() -> list[list[Part]]:
    device = "cpu" if TOY else "cuda"
    paths = ["--device", device, "--lengths", "40" if TOY else "300"]
    names = ["rope", "fire"] if TOY else MORE_HOOKS
    correctness = {"all": ["benchmarks/gpu_paths.py", *names, *paths]}
    together = ["benchmarks/several_gpus.py"]
    if TOY:
        toy_run = ["device=cpu", "threads=1", "train.steps=3", "train.batch_tokens=256", "eval.targets=2"]
        together += ["--processes", "2", *toy_run]
    toy_or_gpu = ["--quick", "threads=1"] if TOY else ["device=cuda"]
    study = [*PE_BENCH, "reproduce", "gpu", *toy_or_gpu, "--results-dir", f"{RESULTS}/reproduce"]
    if TEXT:
        study += ["--text", TEXT]
    return [
        [Part("correctness", 8 * 60, correctness)],
        [training_part(["rope"] if TOY else MORE_TIMED, 4 * 60)],
        [scoring_part(["rope", "fox"] if TOY else [], 6 * 60)],
        [Part("together", 5 * 60, {"all": together})],
        [Part("study", 22 * 60, {"all": study})],
    ]


def training_part(names: list[str], seconds: int) -> Part:
    sizes = ["--lengths", "1024", "--product", "8192", "device=cuda", "model=gpt2", "precision=bfloat16"]
    sizes.append("train.batch_tokens=32768")
    if TOY:
        sizes = ["--lengths", "32", "--product", "64", "--repeats", "1", "device=cpu", "threads=1"]
    output = ["--output", f"{RESULTS}/training.csv"]
    return Part("training", seconds, {"all": ["benchmarks/steps.py", *names, *sizes, *output]})


def scoring_part(names: list[str], seconds: int) -> Part:
    sizes = ["--lengths", "65536", "device=cuda", "model=small"]
    if TOY:
        sizes = ["--lengths", "64", "device=cpu", "threads=1"]
    words = [*PE_BENCH, "speed", *names, "--repeats", "1", *sizes, f"results_dir={RESULTS}"]
    return Part("scoring", seconds, {"all": words})


def study_part(tokens: int) -> Part:
    results = f"{RESULTS}/study"
    common = [*PE_BENCH, "train", "model=base", "train.length=512", "train.batch_tokens=32768", "device=cuda"]
    common += [f"train.tokens={tokens}", "train.checkpoint_every=1000", "eval.batch_tokens=65536"]
    common += ["eval.targets=64", "eval.controls=none"]
    names = STUDIED
    if TOY:
        names = ["rope"]
        common = [*PE_BENCH, "train", "experiment=quick", "device=cpu", "threads=1"]
    if TEXT:
        common += ["data=files", f"data.path={TEXT}"]
    runs = {name: [*common, f"encoding={name}", f"results_dir={results}"] for name in names}
    report = [*PE_BENCH, "report", "--results-dir", results]
    return Part("study", 175, runs, last=report)


# Their tables


def losses_side_by_side(part: Part) -> list[str]:
    """Return the losses of each run at each logged step, and then the bits of each scored length."""
    folders = {name: RESULTS / "agreement" / name for name in part.commands}
    lines = ["nats per token at each step, and bits per byte at each length:"]
    lines.append("".join(f"{word:>14}" for word in ("", *folders)))
    losses = {name: columns_of(folder, "train.csv", "step", "loss") for name, folder in folders.items()}
    bits = {
        name: columns_of(folder, "eval.csv", "length", "bits_per_byte") for name, folder in folders.items()
    }
    for kind, table in (("step", losses), ("length", bits)):
        for key in dict.fromkeys(key for column in table.values() for key in column):
            cells = [f"{kind} {int(key):,}", *(column.get(key, "") for column in table.values())]
            lines.append("".join(f"{cell:>14}" for cell in cells))
    return lines


def columns_of(results: Path, file: str, key: str, value: str) -> dict[str, str]:
    """Return a column of the run in a folder of results, by another column; only of the plain rows."""
    found: dict[str, str] = {}
    for path in (results / "runs").glob(f"*/{file}"):
        with path.open() as opened:
            for row in csv.DictReader(opened):
                is_plain = row.get("control", "none") == "none" and row.get("slice", "all") == "all"
                if is_plain and row[value]:
                    found.setdefault(row[key], f"{float(row[value]):.5f}")
    return found


def rows_of_errors(part: Part) -> list[str]:
    """Return the row of each encoding, under one header."""
    lines: list[str] = []
    for name in part.commands:
        log = part.log(name)
        printed = log.read_text().splitlines() if log.exists() else []
        header = [line for line in printed if line.split()[:1] == ["paths"]]
        lines += header if not lines else []
        lines += [line for line in printed if line.startswith(f"{name} ")]
    return lines


def summary(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        lines = part.lines()
        if lines:
            yield f"\n== {part.name}{'' if part.mark.exists() else ' (not finished)'}"
            yield from lines


# The command


def collect_wheels(folder: str) -> int:
    """Collect the wheels that a machine without a package index may lack."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    code = subprocess.run([*pip, *WHEELS], check=False).returncode
    if code == 0:
        print(f"there: python3 -m pip install --no-index --no-deps --target SITE {folder}/*.whl")
        print("and then: PYTHONPATH=SITE benchmarks/gpu.sh")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: those that are not done")
    parser.add_argument("--long", action="store_true", help="the longer form, of at most 45 minutes")
    parser.add_argument("--wheels", metavar="DIR", help="collect wheels for a machine without an index")
    tokens_help = "of the study, for each encoding (default: 8,192,000)"
    parser.add_argument("--tokens", type=int, default=8_192_000, help=tokens_help)
    given = parser.parse_args()
    if given.wheels:
        return collect_wheels(given.wheels)
    stages = long_parts() if given.long else short_parts(given.tokens)
    every = [part for stage in stages for part in stage]
    unknown = set(given.parts) - {part.name for part in every}
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: {', '.join(part.name for part in every)}")
    if TEXT and not Path(TEXT).is_dir():
        parser.error(f"GPU_TEXT={TEXT} is not a folder: name one with texts")
    RESULTS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, interrupt)
    failed = False
    try:
        failed = run_stages(stages, given.parts)
    except KeyboardInterrupt:
        failed = True
        print("gpu.sh: stopped; what is done:", file=sys.stderr)
    finally:
        lines = [machine(), *summary(every)]
        (RESULTS / "summary.txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)
    return int(failed)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run_stages(stages: Sequence[Sequence[Part]], named: Sequence[str]) -> bool:
    """Run the parts that are named, or else those that are not done; return whether one failed."""
    failed = False
    for stage in stages:
        chosen = [part for part in stage if (part.name in named if named else not part.mark.exists())]
        for part in stage:
            if part not in chosen and not named:
                print(f"{part.name}: done already")
        if not chosen:
            continue
        names = " and ".join(part.name for part in chosen)
        print(f"{names}: at most {max(part.seconds for part in chosen)} seconds", flush=True)
        began = time.monotonic()
        reasons = run_parts(chosen)
        seconds = time.monotonic() - began
        for part in chosen:
            print(f"{part.name}: {reasons.get(part.name, 'done')} after {seconds:.0f} s", flush=True)
        failed |= bool(reasons)
    return failed


if __name__ == "__main__":
    sys.exit(main())
