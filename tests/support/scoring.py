"""An untrained model with random documents, and its scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pe_bench.config.schema import Config, DataConfig, EvalConfig, ModelConfig, TrainConfig
from pe_bench.data.packed import Data, Split
from pe_bench.encodings import LayerEncoding
from pe_bench.encodings.base import Layers, PositionalEncoding, Side
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.decoder import Decoder
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row
from pe_bench.scoring.plans import make_plans
from pe_bench.scoring.rows import evaluate
from pe_bench.scoring.scorer import ScoreWatcher

SIZE = ModelConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, d_head=8, d_ff=24)
TRAIN_LENGTH, BLOCK, VOCABULARY = 8, 4, 11
EVAL = EvalConfig(
    lengths=[8, 12, 24],
    max_length=24,
    targets=7,
    target_tokens=BLOCK,
    tokens=130,
    batch_tokens=60,
    controls="none",
)
PROTOCOLS = {
    "paired": EVAL,
    "nonoverlapping": replace(EVAL, protocol="nonoverlapping"),
    "sliding": replace(EVAL, protocol="sliding", stride=5),
    "sliding by half": replace(EVAL, protocol="sliding"),
}
every_protocol = pytest.mark.parametrize("evaluation", PROTOCOLS.values(), ids=PROTOCOLS.keys())


def bytes_of(token: int) -> int:
    return 1 + token % 3


def data_of(*lengths: int) -> Data:
    """Return random tokens of one to three bytes each."""
    generator = np.random.default_rng(0)
    documents = [generator.integers(0, VOCABULARY, length).astype(np.uint16) for length in lengths]
    ends = [np.cumsum([bytes_of(int(token)) for token in document]) for document in documents]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    byte_ends = np.concatenate(ends).astype(np.uint32)
    split = Split(np.concatenate(documents), starts, byte_ends)
    return Data("files", "da7a0123", "odd", tuple(map(str, range(VOCABULARY))), VOCABULARY - 1, split, split)


DATA = data_of(60, 20, 45, 31)


def trained_model(
    run: Path, encoding: PositionalEncoding | LayerEncoding | None = None, data: Data = DATA
) -> Job:
    """Return an untrained model with weights large enough to make its scores differ."""
    if encoding is None or isinstance(encoding, LayerEncoding):
        encoding = Layers([encoding or RoPE(SIZE.d_head)])
    generator = torch.Generator().manual_seed(0)
    model = Decoder(SIZE, data.vocab_size, Composition(encoding, {}, SIZE.n_layers), generator).eval()
    train = TrainConfig(length=TRAIN_LENGTH, steps=3, batch_tokens=16)
    run.mkdir(exist_ok=True)
    label = "mine option=2"
    return Job(
        config=Config({"name": "mine"}, model=SIZE, data=DataConfig(name="files"), train=train, seed=5),
        folder=run,
        setting="5e7710",
        label=label,
        scored_with=label,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        threads=1,
        data=data,
        model=model,
        tokens_per_second=1234.56,
    )


def scored(
    trained: Job,
    evaluation: EvalConfig = EVAL,
    watch: ScoreWatcher = lambda plan, share: None,
) -> list[Row]:
    config = replace(trained.config, eval=evaluation)
    asked = replace(trained, config=config)
    return evaluate(asked, make_plans(config, evaluation, trained.data), watch)


def fed(trained: Job) -> list[tuple[int, ...]]:
    """Record the shapes of all batches that the model gets from this call on."""
    shapes: list[tuple[int, ...]] = []
    trained.model.embedding.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    return shapes


class Hungry(NoPE):
    """An encoding that runs out of memory from 12 tokens on, until it is fed."""

    error: Exception | None = None

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        if self.error is not None and keys.x.shape[-2] >= 12:
            raise self.error
        return queries.x, keys.x
