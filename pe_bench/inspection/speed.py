"""The time and memory of an encoding: `pe-bench speed` scores a window of random bytes as `eval` would.

Letters: B batch, H query heads, T tokens, K head width.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
import pandas
import torch

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, Split
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings.base import LengthError
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.inspection.resolve import REFERENCE, ResolvedEncoding
from pe_bench.model.attention import choose_path
from pe_bench.model.checks import describe_user_code_error
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.render.grid import MIN_FOLDED, Cell, Column, Grid
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.scorer import Scorer
from pe_bench.scoring.targets import TargetBlocks, tokens_in_a_part
from pe_bench.system.files import name_write_errors, write_text
from pe_bench.system.machine import PeakMemory, is_out_of_memory
from pe_bench.system.signals import INTERRUPTIONS

BYTES = 256
REPEATS = 5  # the least number of repeats of a pass
MAX_REPEATS = 25
SHORT_SECONDS = 0.5  # seconds, for which a pass is repeated, but at most `MAX_REPEATS` times

# Columns that tell measurements apart: of two rows with the same values, the later row is kept.
ROW_KEY_COLUMNS = [
    "encoding",
    "setting",
    "model",
    "length",
    "pass",
    "device",
    "processor",
    "threads",
    "dtype",
]
# Columns on the machine and the program, in all rows of a command.
MACHINE_COLUMNS = ("device", "processor", "threads", "torch", "pe_bench", "date")
# setting: the command's words without the encoding's options. batch: windows in one pass. path: the attention
# path; the paths of several layers are joined by +. status: ok, undefined, out_of_memory or failed, with a
# reason. relative: the median ratio of a pass to the reference's pass just before; half of the ratios lie
# between relative_low and relative_high. milliseconds: the median for the reference; for another encoding,
# the reference's milliseconds times `relative`, because load hardly moves a ratio. peak_memory_mb: the
# highest memory in use, less the memory in use before the pass.
COLUMNS = [
    *("encoding", "setting", "model", "length", "pass", "batch", "path", "status", "reason"),
    *("milliseconds", "tokens_per_second", "relative", "relative_low", "relative_high", "peak_memory_mb"),
    *("repeats", "device", "processor", "threads", "dtype", "torch", "pe_bench", "date"),
]

SpeedRow = dict[str, Any]  # one encoding at one length: each column's value, None where there is none


class TimedPass(Protocol):
    """A function to be timed: a call computes `batch` windows."""

    batch: int  # windows
    path: str  # the name of the attention path

    def __call__(self) -> object: ...


class ScoringPass:
    """A pass of the scorer over one window, whose last tokens are the targets."""

    batch = 1

    def __init__(self, config: Config, encoding: EncodingSpec, length: int, device: torch.device):
        data = random_data(length + 1)
        model = build_decoder(config, data.vocabulary, encoding).to(device).eval()
        zero = np.zeros(1, np.int64)
        end = np.array([length + 1])
        targets = tokens_in_a_part(config.eval.resolved_target_tokens(config.train.length), length)
        blocks = TargetBlocks(zero, end, zero, zero, end, length, targets, "")
        self.plan = paired_plan(blocks, length)
        self.scorer = Scorer(model, data.validation, config.eval)
        with torch.no_grad():
            self.path = path_of(model, config, 1, length, getattr(torch, config.eval.precision))

    def __call__(self) -> None:
        self.scorer.score(self.plan)


def path_of(model: Decoder, config: Config, batch: int, tokens: int, dtype: torch.dtype) -> str:
    """Name the attention paths that the layers choose; with gradients on, for a training step."""
    device = model.output_weight.device
    train = torch.is_grad_enabled()
    tokens_BT = torch.zeros(batch, tokens, dtype=torch.long, device=device)
    generator = torch.Generator().manual_seed(0)
    ids = model.encoding.ids(tokens_BT, train=train, generator=generator)
    shape = (batch, config.model.n_heads, tokens, config.model.d_head)
    q_BHTK = torch.zeros((), dtype=dtype, device=device, requires_grad=train).expand(shape)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        layers = map(model.encoding.layer, range(config.model.n_layers))
        names = dict.fromkeys(choose_path(layer, q_BHTK, ids).name for layer in layers)
    return "+".join(names)


def random_data(tokens: int) -> Data:
    """Make one document of random bytes, which is both the training and the validation text."""
    drawn = np.random.default_rng(0).integers(BYTES, size=tokens)
    byte_counts = np.arange(1, tokens + 1, dtype=np.uint32)
    split = Split(drawn.astype(np.uint16), np.array([0, tokens]), byte_counts)
    tokenizer = ByteTokenizer()
    names = ("random", "", tokenizer.label, tuple(tokenizer.vocabulary), tokenizer.end_of_text)
    return Data(*names, split, split)


# Measuring


@dataclass(frozen=True)
class Bench:
    """Times encodings on a device."""

    facts: Mapping[str, Any]  # columns that all rows share
    device: torch.device
    repeats: int | None = None  # the number of repeats of a pass; None: chosen by its time
    # Makes the pass of an encoding in windows of a length, which is the third argument.
    make: Callable[[Config, EncodingSpec, int, torch.device], TimedPass] = ScoringPass

    def rows(self, subjects: Sequence[ResolvedEncoding], lengths: Sequence[int]) -> Iterator[SpeedRow]:
        """Yield a row with the time and memory of each subject at each length.

        The first subject is the reference: its passes alternate with another subject's, for the ratio of
        times.
        """
        with suppress(Exception):  # the measured pass raises the same error, which is reported
            self._new_pass(subjects[0], lengths[0])()  # loads libraries, whose time is no encoding's
        for length in lengths:
            reference = None
            reference_milliseconds = 0.0
            for subject in subjects:
                row, timed = self._time_subject(subject, length, reference, reference_milliseconds)
                if subject is subjects[0] and timed is not None:
                    row["relative"] = 1.0
                    reference = timed
                    reference_milliseconds = row["milliseconds"]
                yield row

    def _time_subject(
        self,
        subject: ResolvedEncoding,
        length: int,
        reference: TimedPass | None,
        reference_milliseconds: float,
    ) -> tuple[SpeedRow, TimedPass | None]:
        """Time one encoding; return its row, and its pass unless it failed.

        reference: the pass of the first subject, which alternates with this pass; None for the first subject
        and after its failure. reference_milliseconds: its time; ignored without a reference.
        """
        row: SpeedRow = {**dict.fromkeys(COLUMNS), **self.facts, "path": "", "status": "ok", "reason": ""}
        row |= {"encoding": subject.label, "length": length, "model": subject.config.model.name}
        row["repeats"] = 0
        try:
            timed = self._new_pass(subject, length)
            row |= {"batch": timed.batch, "path": timed.path}
            peak = peak_of(timed, self.device)
            times = time_pass(timed, reference, self.repeats, self.device)
            numbers = numbers_of(*times, reference_milliseconds, timed.batch * length)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            status, reason = outcome_of(error)
            return row | {"status": status, "reason": reason}, None
        return row | {"peak_memory_mb": peak, **numbers}, timed

    def _new_pass(self, subject: ResolvedEncoding, length: int) -> TimedPass:
        return self.make(subject.config, subject.spec, length, self.device)


def time_pass(
    timed: TimedPass, reference: TimedPass | None, repeats: int | None, device: torch.device
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each repeat of `timed`, and its ratio to a pass of `reference` just before.

    There are no ratios without a reference. repeats: None chooses their number by the time that they take.
    """
    milliseconds: list[float] = []
    ratios: list[float] = []
    if reference is not None:
        reference()
    began = time.perf_counter()

    def has_enough_passes() -> bool:
        count = len(milliseconds)
        if repeats is not None or count < REPEATS:
            return count >= (repeats or REPEATS)
        seconds = time.perf_counter() - began
        return count >= MAX_REPEATS or seconds >= SHORT_SECONDS

    while not has_enough_passes():
        before = None if reference is None else _time_once(reference, device)
        milliseconds.append(_time_once(timed, device))
        if before:
            ratios.append(milliseconds[-1] / before)
    return milliseconds, ratios


def _time_once(timed: TimedPass, device: torch.device) -> float:
    """Return the milliseconds of one call of a pass."""
    wait_for(device)
    began = time.perf_counter()
    timed()
    wait_for(device)
    return 1e3 * (time.perf_counter() - began)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished all work that was given to it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def numbers_of(
    milliseconds: Sequence[float], ratios: Sequence[float], reference_milliseconds: float, tokens: int
) -> SpeedRow:
    """Return the columns with a row's numbers: times, speeds, ratios to the reference.

    tokens: the tokens of a pass. reference_milliseconds: the time of the reference's pass.
    """
    usual = median(milliseconds)
    relatives: dict[str, float | None] = dict.fromkeys(("relative_low", "relative", "relative_high"))
    if ratios:
        low, relative, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
        usual = reference_milliseconds * relative
        relatives = {"relative_low": low, "relative": relative, "relative_high": high}
    numbers = {"milliseconds": usual, "tokens_per_second": 1e3 * tokens / usual, **relatives}
    row: SpeedRow = {"repeats": len(milliseconds)}
    for name, value in numbers.items():
        row[name] = None if value is None else round(value, 4)
    return row


def outcome_of(error: BaseException) -> tuple[str, str]:
    """Return the status and reason of a row without numbers. Raises an error of pe-bench's own code again."""
    reason = " ".join(str(error).split())
    if is_out_of_memory(error):
        return "out_of_memory", reason
    if isinstance(error, LengthError):
        return "undefined", reason
    description = describe_user_code_error(error)
    if description is None:
        raise error
    return "failed", description


def peak_of(first: TimedPass, device: torch.device) -> float | None:
    """Measure the megabytes that a first pass needs above the memory in use, such as the weights.

    The memory is that of PyTorch's tensors on a GPU, else of the whole process; None if it is not known.
    """
    gc.collect()
    with PeakMemory(device) as before:
        pass
    with PeakMemory(device) as peak:
        first()
        wait_for(device)
    if peak.mb is None or before.mb is None:
        return None
    return max(0.0, round(peak.mb - before.mb, 4))


def write_rows(path: Path, rows: Sequence[SpeedRow]) -> None:
    """Add rows to a CSV file; a row replaces an earlier row with equal values in `ROW_KEY_COLUMNS`."""
    texts = []
    for row in rows:
        text = dict.fromkeys(COLUMNS, "")
        for name, value in row.items():
            if value is not None:
                text[name] = str(value)
        texts.append(text)
    every = pandas.DataFrame(texts, columns=COLUMNS)
    with name_write_errors(path):
        if path.exists():
            every = pandas.concat([pandas.read_csv(path, dtype=str, keep_default_na=False), every])
        write_text(path, every.drop_duplicates(ROW_KEY_COLUMNS, keep="last").to_csv(index=False))


# The table: the cheapest encoding at the longest length first, with all its lengths

TABLE_HEADINGS = ("encoding", "tokens", "attention", "ms", "tokens/s", f"x {REFERENCE}", "spread", "MB")
TEXT_HEADINGS = ("encoding", "attention")  # columns of words
PASS_TEXTS = {"score": "scoring one window", "train": "a training step"}
NOTES = (
    f"x {REFERENCE}: median of the ratios to a pass of {REFERENCE} just before",
    "spread: half of these ratios lie within this much of the median",
    f"ms: of {REFERENCE}, the median; of the others, that times their ratio",
    "MB: peak memory above what was in use before the first pass",
)


def grid_of(rows: Sequence[SpeedRow]) -> Grid:
    """Return the table with its title and notes."""
    first = rows[0]
    machine = first["processor"] if first["device"] == "cpu" else first["device"]
    title = [
        "{}, {model} model, random bytes, {dtype}".format(PASS_TEXTS[first["pass"]], **first),
        "{}, threads={threads}, torch {torch}, pe-bench {pe_bench}".format(machine, **first),
    ]
    if first["setting"]:
        title.append(first["setting"])
    # The cheapest at the longest length comes first, an encoding without a number there last.
    longest = max(row["length"] for row in rows)
    at_longest = [row for row in rows if row["length"] == longest]
    costs = {row["encoding"]: row["relative"] or math.inf for row in at_longest}

    def table_order(row: SpeedRow) -> tuple[float, str, int]:
        return costs[row["encoding"]], row["encoding"], row["length"]

    columns: list[Column] = []
    for name in TABLE_HEADINGS:
        column = Column(name)
        if name in TEXT_HEADINGS:
            column = Column(name, is_left=True, least=MIN_FOLDED)
        columns.append(column)
    failed = [row for row in rows if row["reason"]]
    reasons = {"{encoding} at {length:,}: {reason}".format(**row) for row in failed}
    cells = [list(map(Cell, texts_of(row))) for row in sorted(rows, key=table_order)]
    notes = [*NOTES, *sorted(reasons)]
    return Grid(columns, cells, title, notes=notes, keys=2)


def texts_of(row: SpeedRow) -> list[str]:
    """Return the texts of a row of the table."""
    texts = [row["encoding"], f"{row['length']:,}"]
    if row["status"] != "ok":
        empty = [""] * 5
        return [*texts, row["status"].replace("_", " "), *empty]
    texts += [row["path"], three_digits(row["milliseconds"])]
    texts.append(f"{row['tokens_per_second']:,.0f}")
    relative = row["relative"]
    spread = ""
    if row["relative_low"] is not None and row["repeats"] > 1:
        below = relative - row["relative_low"]
        above = row["relative_high"] - relative
        spread = f"{max(below, above) / relative:.0%}"
    memory = row["peak_memory_mb"]
    texts.append("" if relative is None else f"{relative:.2f}")
    texts.append(spread)
    texts.append("" if memory is None else f"{memory:,.0f}")
    return texts


def three_digits(value: float) -> str:
    """Write a number with three digits, a number from 100 on with all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
