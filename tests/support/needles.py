"""Models whose answers to a probe are known, and texts for it."""

from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from support.scoring import trained_model
from torch import Tensor
from torch.nn import functional

from pe_bench.config.schema import EvalConfig
from pe_bench.data.packed import Data, Split
from pe_bench.encodings.base import Layers
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.nope import NoPE
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row
from pe_bench.scoring.needles import Probe
from pe_bench.scoring.rows import evaluate

VOCABULARY = 64
STRENGTH = 9.0  # logits between the token that is copied and all others
LOOKED_UP = 6  # tokens


def probe_data(documents: int, tokens: int) -> Data:
    """Return documents of random tokens, each of one byte."""
    drawn = np.random.default_rng(0).integers(0, VOCABULARY, documents * tokens).astype(np.uint16)
    starts = np.arange(documents + 1, dtype=np.int64) * tokens
    ends = np.tile(np.arange(1, tokens + 1, dtype=np.uint32), documents)
    split = Split(drawn, starts, ends)
    return Data("files", "da7a0123", "odd", tuple(map(str, range(VOCABULARY))), VOCABULARY - 1, split, split)


class Copying(LanguageModel):
    """A model that continues as the text did after the last earlier occurrence of the last few tokens."""

    n_layers, vocab_size, device = 2, VOCABULARY, torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.encoding = Composition(Layers([NoPE()]), {}, 2)

    def hidden(self, tokens_BT: Tensor, ids: Tensor, window: int | None = None, first: int = 0) -> Tensor:
        return torch.stack([self._logits(tokens.tolist(), first) for tokens in tokens_BT])

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return functional.cross_entropy(hidden_ND, targets_N, reduction="none")

    def likeliest(self, hidden_ND: Tensor) -> Tensor:
        return hidden_ND.argmax(-1)

    def changed(self, *changes: object) -> Self:
        return self  # it has no attention to change

    def _logits(self, tokens: list[int], first: int) -> Tensor:
        follower: dict[tuple[int, ...], int] = {}
        logits = torch.zeros(len(tokens), VOCABULARY)
        for end in range(LOOKED_UP, len(tokens)):
            follower[tuple(tokens[end - LOOKED_UP : end])] = tokens[end]
            copied = follower.get(tuple(tokens[end + 1 - LOOKED_UP : end + 1]))
            if copied is not None:
                logits[end, copied] = STRENGTH
        return logits[first:]


class Ignorant(Copying):
    """A model to which all tokens are equally likely."""

    def _logits(self, tokens: list[int], first: int) -> Tensor:
        return torch.zeros(len(tokens) - first, VOCABULARY)


class Remembering(Copying):
    """A model to which the tokens of the window are likelier, in any order: it finds no span."""

    def _logits(self, tokens: list[int], first: int) -> Tensor:
        counts = functional.one_hot(torch.tensor(tokens), VOCABULARY).cumsum(0).float()
        return (1 + counts).log()[first:]


class AtTheEnd(Copying):
    """A model that copies only what lies in the second half of the window."""

    def _logits(self, tokens: list[int], first: int) -> Tensor:
        half = len(tokens) // 2
        return super()._logits([*range(half), *tokens[half:]], first)


def scored_probe(
    run: Path,
    probe: Probe,
    model: LanguageModel | None = None,
    data: Data | None = None,
    trained: Job | None = None,
    batch_tokens: int = 1024,
) -> list[Row]:
    """Score needles with a model, by default one of random weights, and return the rows."""
    data = data or probe_data(24, 500)
    trained = trained or trained_model(run, data=data)
    trained = trained if model is None else replace(trained, model=model)
    config = replace(trained.config, eval=EvalConfig(batch_tokens=batch_tokens))
    trained = replace(trained, config=config)
    return evaluate(trained, probe.plans(config, config.eval, data), lambda *shown: None)
