"""What `pe-bench speed` measures on random bytes: one window as `eval` scores it, or one step of `train`.

Letters: B batch, H query heads, T tokens, K head width.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from filelock import FileLock
from torch import nn

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, Split
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings import LengthError
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, require, text_of
from pe_bench.inspection.resolve import REFERENCE, ResolvedEncoding
from pe_bench.model.attention import REFERENCE as REFERENCE_PATH
from pe_bench.model.attention import choose
from pe_bench.model.checks import describe_user_code_error
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.scorer import Scorer, tokens_without_query
from pe_bench.scoring.targets import TargetBlocks, tokens_in_a_part
from pe_bench.system.files import name_write_errors, write_text
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid
from pe_bench.system.machine import (
    PeakMemory,
    give_back_free_memory,
    is_out_of_memory,
    resolve_precision,
    retain_freed_memory,
)
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.training.trainer import NonFiniteError, Trainer

BYTES = 256
TEXT = 2**16  # tokens from which training windows are drawn, or more where a window is longer
NEVER = 10**9  # steps
REPEATS = 5  # of a pass, at least
MAX_REPEATS = 25
SHORT = 0.5  # seconds: a pass is repeated for so long if that is not more often than `MAX_REPEATS`

# What is measured: of two rows with the same, the later one holds.
KEY = ["encoding", "setting", "model", "length", "pass", "device", "processor", "threads", "dtype"]
# Of the machine and the program, in all rows of a command.
FACTS = ("device", "processor", "threads", "torch", "pe_bench", "date")
# setting: the command's words that are no option of the encoding. batch: windows in one pass. path: of
# attention; those of several layers joined by +. status: ok, undefined, out_of_memory, not_finite or failed,
# with a reason. milliseconds: the median. relative: to the reference, the median of ratios of neighbours in
# time, of which half lie between relative_low and relative_high. peak_memory_mb: above what was held before.
COLUMNS = [
    *("encoding", "setting", "model", "length", "pass", "batch", "path", "status", "reason"),
    *("milliseconds", "tokens_per_second", "relative", "relative_low", "relative_high", "peak_memory_mb"),
    *("gflops_per_second", "repeats", "device", "processor", "threads", "dtype", "torch", "pe_bench", "date"),
]

Row = dict[str, Any]  # one encoding at one length: each column's value, None where there is none


# Passes


class ScoringPass:
    """A pass of the scorer over one window, whose last tokens are the targets."""

    batch = 1

    def __init__(self, config: Config, encoding: EncodingSpec, length: int, device: torch.device):
        data = random_data(length + 1)
        self.device = device
        model = build_decoder(config, data.vocabulary, encoding).to(device).eval()
        block = config.eval.resolved_target_tokens(config.train.length)
        zero, end = np.zeros(1, np.int64), np.array([length + 1])
        targets = tokens_in_a_part(block, length)
        self.plan = paired_plan(TargetBlocks(zero, end, zero, zero, end, length, targets, ""), length)
        window = self.plan.windows[0]
        # Only the targets meet the output's matrix.
        without_target = length - window.targets
        self.flops = flops_of(model, config, length) - without_target * 2 * model.output_weight.numel()
        self.scorer = Scorer(model, data.validation, config.eval)
        # The last layer has queries of the targets alone, which the reference serves.
        layers = config.model.n_layers - (tokens_without_query(window) > 0)
        with torch.no_grad():
            self.path = path_of(model, config, 1, length, dtype_of(config, train=False), layers)

    def __call__(self) -> None:
        self.scorer.score(self.plan)


class TrainingPass:
    """A step of the trainer, of `train.batch_tokens` tokens in windows of `train.length`."""

    def __init__(self, config: Config, encoding: EncodingSpec, length: int, device: torch.device):
        endless = replace(config.train, steps=NEVER, validate_every=NEVER)
        config = replace(config, train=endless)
        data = random_data(max(TEXT, length + 1))
        self.device, self.batch, dtype = device, endless.batch, dtype_of(config, train=True)
        model = build_decoder(config, data.vocabulary, encoding).to(device)
        self.flops = 3 * self.batch * flops_of(model, config, length)  # two backward for each product
        self.trainer = Trainer(config, model, data, device, dtype)
        self.steps = 0
        part, layers = endless.batch // endless.micro_batches, config.model.n_layers
        self.path = path_of(model, config, part, length, dtype, layers)

    def __call__(self) -> None:
        self.trainer.step(self.steps, 0.0)
        self.steps += 1


Pass = ScoringPass | TrainingPass


def dtype_of(config: Config, train: bool) -> torch.dtype:
    """Return the type in which matrices are multiplied."""
    if train:
        return resolve_precision(config.precision, config.device)
    return getattr(torch, config.eval.precision)


def path_of(model: Decoder, config: Config, batch: int, tokens: int, dtype: torch.dtype, layers: int) -> str:
    """Name the paths that the first `layers` choose for a pass, of training where gradients are on."""
    device = model.output_weight.device
    train = torch.is_grad_enabled()
    tokens_BT = torch.zeros(batch, tokens, dtype=torch.long, device=device)
    ids = model.encoding.ids(tokens_BT, train=train, generator=torch.Generator().manual_seed(0))
    shape = (batch, config.model.n_heads, tokens, config.model.d_head)
    q_BHTK = torch.zeros((), dtype=dtype, device=device, requires_grad=train).expand(shape)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        paths = [choose(model.encoding.layer(number), q_BHTK, ids).name for number in range(layers)]
    return "+".join(dict.fromkeys(paths)) or REFERENCE_PATH.name


def flops_of(model: Decoder, config: Config, length: int) -> float:
    """Count the operations of a window's forward pass, in matrix products and in causal attention.

    Each weight takes two for each token, and each pair of a query and a key that it sees four for each
    feature. PyTorch's counter misses compiled kernels. What an encoding adds or hides is not counted.
    """
    linear = {part.weight for part in model.modules() if isinstance(part, nn.Linear)}
    parameters = sum(weight.numel() for weight in linear | {model.output_weight})
    pairs = length * (length + 1) / 2
    width = config.model.n_heads * config.model.d_head
    return 2 * length * parameters + 4 * config.model.n_layers * width * pairs


def random_data(tokens: int) -> Data:
    """Make one document of random bytes for training, which validates too."""
    drawn = np.random.default_rng(0).integers(BYTES, size=tokens).astype(np.uint16)
    split = Split(drawn, np.array([0, tokens]), np.arange(1, tokens + 1, dtype=np.uint32))
    tokenizer = ByteTokenizer()
    names = ("random", "", tokenizer.label, tuple(tokenizer.vocabulary), tokenizer.end_of_text)
    return Data(*names, split, split)


# Measuring


@dataclass(frozen=True)
class Bench:
    """How a command times encodings; `facts` are the columns that its rows share."""

    facts: Mapping[str, Any]
    train: bool
    repeats: int | None
    device: torch.device

    def rows(
        self, subjects: Mapping[int, Sequence[ResolvedEncoding]], watch: Callable[[str], None]
    ) -> Iterator[Row]:
        """Time the subjects of each length; the first of these is the reference, in turns with all others."""
        with suppress(Exception):  # the same pass is about to be measured, and says what is wrong
            length, (first, *_) = next(iter(subjects.items()))
            self._pass(first, length)()  # the first pass loads libraries, which cost no encoding
        for length, each in subjects.items():
            reference: Pass | None = None
            for subject in each:
                watch(f"{length:,} tokens: {subject.label}")
                row, timed = self._row(subject, length, reference)
                if subject is each[0] and timed is not None:
                    reference, row["relative"] = timed, 1.0
                yield row

    def _row(self, subject: ResolvedEncoding, length: int, reference: Pass | None) -> tuple[Row, Pass | None]:
        """Time one encoding; return its row, and the pass if there is one."""
        row: Row = {**dict.fromkeys(COLUMNS), **self.facts, "path": "", "reason": "", "repeats": 0}
        row |= {"encoding": subject.label, "length": length, "model": subject.config.model.name}
        row |= {"pass": "train" if self.train else "score", "status": "ok"}
        row["dtype"] = str(dtype_of(subject.config, self.train)).removeprefix("torch.")
        try:
            timed = self._pass(subject, length)
            row |= {"batch": timed.batch, "path": timed.path}
            peak = peak_of(timed)
            row |= numbers_of(timed, length, *time_pass(timed, reference, self.repeats))
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            status, reason = outcome_of(error)
            return row | {"status": status, "reason": reason}, None
        return row | {"peak_memory_mb": peak}, timed

    def _pass(self, subject: ResolvedEncoding, length: int) -> Pass:
        kind = TrainingPass if self.train else ScoringPass
        return kind(subject.config, subject.spec, length, self.device)


def numbers_of(timed: Pass, length: int, milliseconds: Sequence[float], ratios: Sequence[float]) -> Row:
    median = statistics.median(milliseconds)
    low, relative, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist() if ratios else (None, None, None)
    numbers = {
        "milliseconds": median,
        "tokens_per_second": timed.batch * length / median * 1e3,
        "relative_low": low,
        "relative": relative,
        "relative_high": high,
        "gflops_per_second": timed.flops / median / 1e6,
    }
    rounded = {name: None if value is None else round(value, 4) for name, value in numbers.items()}
    return {"repeats": len(milliseconds), **rounded}


def time_pass(timed: Pass, reference: Pass | None, repeats: int | None) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each pass, and their ratios to a pass of the reference just before."""
    milliseconds, ratios = [], []
    is_step = isinstance(timed, TrainingPass)
    with retain_freed_memory() if is_step else nullcontext():
        if is_step:
            timed()  # the memory that is kept is taken here
        if reference is not None:
            reference()
        began = time.perf_counter()
        while is_due(len(milliseconds), time.perf_counter() - began, repeats):
            before = None if reference is None else _milliseconds(reference)
            milliseconds.append(_milliseconds(timed))
            ratios += [] if before is None else [milliseconds[-1] / before]
    return milliseconds, ratios


def _milliseconds(timed: Pass) -> float:
    _wait_for(timed.device)
    began = time.perf_counter()
    timed()
    _wait_for(timed.device)
    return 1e3 * (time.perf_counter() - began)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_due(done: int, elapsed: float, repeats: int | None) -> bool:
    """Return whether to time one more pass, after `done` passes in `elapsed` seconds."""
    return done < (repeats or REPEATS) or (repeats is None and done < MAX_REPEATS and elapsed < SHORT)


def outcome_of(error: BaseException) -> tuple[str, str]:
    """Return the status and reason of a row without numbers. Raises the error again if it is our fault."""
    reason = " ".join(text_of(error).split())
    if is_out_of_memory(error):
        return "out_of_memory", reason
    if isinstance(error, LengthError | NonFiniteError):
        return ("undefined" if isinstance(error, LengthError) else "not_finite"), reason
    description = describe_user_code_error(error)
    if description is None:
        raise error
    return "failed", description


def peak_of(first: Pass) -> float | None:
    """Measure the megabytes that a first pass needs above what was held before it, such as the weights.

    On a GPU of PyTorch's tensors, else of the whole process; None where the system cannot tell.
    """
    gc.collect()
    give_back_free_memory()
    with PeakMemory(first.device) as before:
        pass
    with PeakMemory(first.device) as peak:
        first()
        _wait_for(first.device)
    return None if peak.mb is None or before.mb is None else max(0.0, round(peak.mb - before.mb, 4))


# The file


def read_rows(path: Path) -> pandas.DataFrame:
    """Return the rows of a file as a table of texts; none without a file. Raises `UserError`."""
    if not path.exists():
        return pandas.DataFrame(columns=COLUMNS, dtype=str)
    try:
        rows = pandas.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): move it away") from error
    odd = ", ".join(sorted({*rows.columns} ^ {*COLUMNS}))
    require(not odd, f"{path} has other columns than this pe-bench writes ({odd}): move it away")
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows to a file, in place of those that measured the same.

    A lock makes the later of two commands read what the other wrote.
    """
    texts = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    with name_write_errors(path), FileLock(path.with_name(path.name + ".lock")):
        every = pandas.concat([read_rows(path), pandas.DataFrame(texts, columns=COLUMNS)])
        write_text(path, every.drop_duplicates(KEY, keep="last").to_csv(index=False))


# The table: the cheapest encoding at the longest length first, with all its lengths

TABLE = ("encoding", "tokens", "attention", "ms", "tokens/s", f"x {REFERENCE}", "spread", "MB")
WORDS = ("encoding", "attention")  # columns of words
OF_PASS = {"score": "scoring one window", "train": "a training step"}
NOTES = (
    f"x {REFERENCE}: median of the ratios to a pass of {REFERENCE} just before",
    "spread: half of these ratios lie within this much of the median",
    f"ms: of {REFERENCE}, the median; of the others, that times their ratio",
    "MB: peak memory above what was in use before the first pass",
)


def line_of(row: Row) -> str:
    """Return the line that shows a row while others are timed."""
    encoding, length, *texts = _texts(row, None)
    return f"{encoding}, {length} tokens: " + (f"{texts[1]} ms ({texts[0]})" if texts[1] else texts[0])


def grid_of(rows: Sequence[Row]) -> Grid:
    """Return the table with its title and notes."""
    columns = [Column(name, name in WORDS, MIN_FOLDED if name in WORDS else 0) for name in TABLE]
    first = rows[0]
    machine = first["processor"] if first["device"] == "cpu" else first["device"]
    threads = f"threads={first['threads']}"
    title = [
        f"{OF_PASS[first['pass']]}, {first['model']} model, random bytes, {first['dtype']}",
        f"{machine}, {threads}, torch {first['torch']}, pe-bench {first['pe_bench']}",
        *filter(None, [" ".join(word for word in first["setting"].split() if word != threads)]),
    ]
    references = {
        row["length"]: row for row in rows if row["encoding"] == REFERENCE and row["status"] == "ok"
    }
    # The cheapest at the longest length comes first, and those without a number there last.
    longest = max(row["length"] for row in rows)
    costs = {row["encoding"]: row["relative"] or math.inf for row in rows if row["length"] == longest}
    ordered = sorted(rows, key=lambda row: (costs[row["encoding"]], row["encoding"], row["length"]))
    cells = [list(map(Cell, _texts(row, references.get(row["length"])))) for row in ordered]
    speeds = [
        f"{REFERENCE}: {number(row['gflops_per_second'])} GFLOP/s at {length:,} tokens"
        for length, row in references.items()
    ]
    reasons = {f"{row['encoding']} at {row['length']:,}: {row['reason']}" for row in rows if row["reason"]}
    return Grid(columns, cells, title, notes=[*NOTES, *speeds[-1:], *sorted(reasons)], keys=2)


def _texts(row: Row, reference: Row | None) -> list[str]:
    """Return a row's cells; its time is that of the reference times the ratio, which load hardly moves."""
    texts = [row["encoding"], f"{row['length']:,}"]
    if row["status"] != "ok":
        return [*texts, row["status"].replace("_", " "), *[""] * 5]
    relative, low, high = (row[name] for name in ("relative", "relative_low", "relative_high"))
    milliseconds = reference["milliseconds"] * relative if reference and relative else row["milliseconds"]
    memory = row["peak_memory_mb"]
    return [
        *(*texts, row["path"], number(milliseconds)),
        f"{row['tokens_per_second'] * row['milliseconds'] / milliseconds:,.0f}",
        "" if relative is None else f"{relative:.2f}",
        "" if low is None else f"{max(relative - low, high - relative) / relative:.0%}",
        "" if memory is None else f"{memory:,.0f}",
    ]


def number(value: float) -> str:
    """Spell a number with three digits, or with all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
