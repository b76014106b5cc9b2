"""The passes that `speed` times, on random bytes: one window as `eval` scores it, or one step of `train`.

Letters: B batch, H query heads, T tokens, K head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, Split
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.model.attention import choose
from pe_bench.model.attention.paths import REFERENCE
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.scorer import Scorer, tokens_without_query
from pe_bench.scoring.targets import TargetBlocks, tokens_in_a_part
from pe_bench.system.machine import resolve_precision, retain_freed_memory
from pe_bench.training.optimizer import make_optimizer
from pe_bench.training.trainer import Trainer

BYTES = 256
TEXT = 2**16  # tokens from which training windows are drawn, or more where a window is longer
NEVER = 10**9  # steps


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

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Prepare the process for many such passes in a row."""
        yield


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
        optimizer = make_optimizer(model, endless, device)
        self.flops = 3 * self.batch * flops_of(model, config, length)  # two backward for each product
        self.trainer = Trainer(config, model, optimizer, data, device, self.dtype)
        self.steps = 0
        part, layers = endless.batch // endless.micro_batches, config.model.n_layers
        self.path = path_of(model, config, part, length, device, self.dtype, train=True, layers=layers)

    def run(self) -> None:
        self.trainer.step(self.steps, 0.0)
        self.steps += 1

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with retain_freed_memory():
            self()
            yield


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
