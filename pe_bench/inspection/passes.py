"""How `speed` measures passes on random bytes: one window as `eval` scores it, or one step of `train`.

Letters: B batch, H query heads, T tokens, K head width.
"""

import gc
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, Split
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings import LengthError
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import text_of
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.inspection.speed import Row
from pe_bench.model.attention import REFERENCE, choose
from pe_bench.model.checks import describe_user_code_error
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.scorer import Scorer, tokens_without_query
from pe_bench.scoring.targets import TargetBlocks, tokens_in_a_part
from pe_bench.system.machine import (
    PeakMemory,
    environment,
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
LONG = 20.0  # seconds: none begins after so long, though there be fewer than `REPEATS`
FACTS = ("device", "processor", "threads", "torch", "pe_bench", "date")  # of the machine, in all rows


class Pass(ABC):
    """A pass that can be repeated; `path` is the one that attention takes, `flops` its operations."""

    batch: int = 1
    dtype: torch.dtype
    path: str
    flops: float
    device: torch.device

    def __call__(self) -> None:
        self.run()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @abstractmethod
    def run(self) -> None: ...


class ScoringPass(Pass):
    """A pass of the scorer over one window, whose last tokens are the targets."""

    def __init__(self, config: Config, encoding: EncodingSpec, length: int, device: torch.device):
        data = random_data(length + 1)
        self.device, self.dtype = device, dtype_of(config, train=False)
        model = build_decoder(config, data.vocabulary, encoding).to(device).eval()
        block = config.eval.resolved_target_tokens(config.train.length)
        zero, end = np.zeros(1, np.int64), np.array([length + 1])
        targets = tokens_in_a_part(block, length)
        self.plan = paired_plan(TargetBlocks(zero, end, zero, zero, end, length, targets, ""), length)
        window = self.plan.windows[0]
        # Only the targets meet the output's matrix.
        without_target = length - window.targets
        self.flops = flops_of(model, config, length) - without_target * 2 * model.output_weight.numel()
        self.scorer = Scorer(model, data.validation, device, config.eval, [self.plan], lambda *_: None)
        layers = config.model.n_layers - (tokens_without_query(window) > 0)
        with torch.no_grad():
            self.path = path_of(model, config, 1, length, device, self.dtype, train=False, layers=layers)

    def run(self) -> None:
        self.scorer.score(self.plan)


class TrainingPass(Pass):
    """A step of the trainer, of `train.batch_tokens` tokens in windows of `train.length`."""

    def __init__(self, config: Config, encoding: EncodingSpec, length: int, device: torch.device):
        assert length == config.train.length
        endless = replace(config.train, steps=NEVER, validate_every=NEVER)
        config = replace(config, train=endless)
        data = random_data(max(TEXT, length + 1))
        self.device, self.dtype, self.batch = device, dtype_of(config, train=True), endless.batch
        model = build_decoder(config, data.vocabulary, encoding).to(device)
        self.flops = 3 * self.batch * flops_of(model, config, length)  # two backward for each product
        self.trainer = Trainer(config, model, data, device, self.dtype)
        self.steps = 0
        part, layers = endless.batch // endless.micro_batches, config.model.n_layers
        self.path = path_of(model, config, part, length, device, self.dtype, train=True, layers=layers)

    def run(self) -> None:
        self.trainer.step(self.steps, 0.0)
        self.steps += 1


def dtype_of(config: Config, train: bool) -> torch.dtype:
    """Return the type in which matrices are multiplied."""
    if train:
        return resolve_precision(config.precision, config.device)
    return getattr(torch, config.eval.precision)


def path_of(
    model: Decoder,
    config: Config,
    batch: int,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
    train: bool,
    layers: int,
) -> str:
    """Name the paths that attention chooses in the first `layers`, for queries like the pass's.

    In scoring the last layer has queries of the targets alone, which the reference serves. Whether a gradient
    is needed follows from the mode that this is called in.
    """
    tokens_BT = torch.zeros(batch, length, dtype=torch.long, device=device)
    ids = model.encoding.ids(tokens_BT, train=train, generator=torch.Generator().manual_seed(0))
    shape = (batch, config.model.n_heads, length, config.model.d_head)
    q_BHTK = torch.zeros((), dtype=dtype, device=device, requires_grad=train).expand(shape)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        paths = [choose(model.encoding.layer(number), q_BHTK, ids).name for number in range(layers)]
    return "+".join(dict.fromkeys(paths)) or REFERENCE.name


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
    split = Split(drawn, np.array([0, tokens]), ["random"], tokens, np.arange(1, tokens + 1, dtype=np.uint32))
    tokenizer = ByteTokenizer()
    names = ("random", "", tokenizer.label, tuple(tokenizer.vocabulary), tokenizer.end_of_text)
    return Data(*names, split, split)


# Measuring


@dataclass(frozen=True)
class Bench:
    """The facts that all rows of a command share."""

    setting: str
    train: bool
    repeats: int | None
    device: torch.device
    threads: int

    @cached_property
    def facts(self) -> dict[str, Any]:
        facts = environment(self.device, self.threads)
        return {name: facts[name] for name in FACTS}

    def rows(
        self, subjects: Mapping[int, Sequence[ResolvedEncoding]], watch: Callable[[str], None]
    ) -> Iterator[Row]:
        """Time the subjects of each length; the first of these is the reference, in turns with all others."""
        with suppress(Exception):  # the same pass is about to be measured, and says what is wrong
            length, (first, *_) = next(iter(subjects.items()))
            self._pass(first, length)()  # the first pass loads libraries, which cost no encoding
        for length, (first, *compared) in subjects.items():
            watch(f"{length:,} tokens: {first.label}")
            row, reference = self.row(first, length)
            yield row if reference is None else replace(row, relative=1.0)
            for subject in compared:
                watch(f"{length:,} tokens: {subject.label}")
                yield self.row(subject, length, reference)[0]

    def row(
        self, subject: ResolvedEncoding, length: int, reference: Pass | None = None
    ) -> tuple[Row, Pass | None]:
        """Time one encoding; return its row, and the pass if there is one."""
        kind, model = "train" if self.train else "score", subject.config.model.name
        dtype = str(dtype_of(subject.config, self.train)).removeprefix("torch.")
        row = Row(subject.label, self.setting, model, length, kind, dtype=dtype, **self.facts)
        try:
            timed = self._pass(subject, length)
            row = replace(row, batch=timed.batch, path=timed.path)
            memory = peak_of(timed)
            milliseconds, ratios = time_pass(timed, reference, self.repeats)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            status, reason = outcome_of(error)
            return replace(row, status=status, reason=reason), None
        median, (low, middle, high) = statistics.median(milliseconds), quartiles(ratios)
        numbers = {
            "milliseconds": median,
            "tokens_per_second": timed.batch * length / median * 1e3,
            "relative": middle,
            "relative_low": low,
            "relative_high": high,
            "peak_memory_mb": memory,
            "gflops_per_second": timed.flops / median / 1e6,
        }
        rounded = {name: None if value is None else round(value, 4) for name, value in numbers.items()}
        return replace(row, repeats=len(milliseconds), **rounded), timed

    def _pass(self, subject: ResolvedEncoding, length: int) -> Pass:
        kind = TrainingPass if self.train else ScoringPass
        return kind(subject.config, subject.spec, length, self.device)


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
    began = time.perf_counter()
    timed()
    return 1e3 * (time.perf_counter() - began)


def is_due(done: int, elapsed: float, repeats: int | None) -> bool:
    """Return whether to time one more pass, after `done` passes in `elapsed` seconds."""
    if repeats is not None:
        return done < repeats
    if done == 0 or elapsed > LONG:
        return done == 0
    return done < REPEATS or (done < MAX_REPEATS and elapsed < SHORT)


def quartiles(ratios: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the median between the quartiles, which need two numbers."""
    if len(ratios) < 2:
        return None, ratios[0] if ratios else None, None
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


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

    On a GPU of PyTorch's tensors, else of the whole process; None where the system cannot tell. What a first
    pass loads and later ones find is counted too, and is a few megabytes.
    """
    gc.collect()
    give_back_free_memory()
    with PeakMemory(first.device) as before:
        pass
    with PeakMemory(first.device) as peak:
        first()
    return None if peak.mb is None or before.mb is None else max(0.0, peak.mb - before.mb)
