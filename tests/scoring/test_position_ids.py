"""The position ids that scoring draws."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.scoring import (
    EVAL,
    scored,
    trained_model,
)
from torch import Tensor

from pe_bench.encodings.ids.randomized import Randomized, ScoredWith

torch.set_num_threads(1)


class Recorded(Randomized):
    def __init__(self, scored_with: ScoredWith = "random") -> None:
        super().__init__(max_position=64, scored_with=scored_with)
        self.drawn: list[Tensor] = []

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        self.drawn.append(ids)
        return x + ids.unsqueeze(-1) / 64


@pytest.mark.usefixtures("unprobed")
def test_drawn_ids_are_the_same_for_every_batch_and_every_call(tmp_path: Path) -> None:
    found = []
    for name, batch_tokens in (("one", 24), ("two", 10_000)):
        encoding = Recorded()
        rows = scored(trained_model(tmp_path / name, encoding), replace(EVAL, batch_tokens=batch_tokens))
        drawn = {len(ids): ids for ids in encoding.drawn}
        assert all(torch.equal(ids, drawn[len(ids)]) for ids in encoding.drawn)
        assert len(encoding.drawn) > 3 or name == "two"
        assert not torch.equal(drawn[24], torch.arange(24)), "they are drawn as in training"
        found.append((drawn, rows))
    (first, rows), (second, others) = found
    assert all(torch.equal(first[length], second[length]) for length in (8, 12, 24))
    for one, other in zip(rows, others, strict=True):
        assert one.nll == pytest.approx(other.nll, abs=1e-6)


def test_scoring_uses_its_own_ids_where_training_has_others(tmp_path: Path) -> None:
    encoding = Recorded("arange")
    scored(trained_model(tmp_path / "run", encoding))
    assert [ids for ids in encoding.drawn if not torch.equal(ids, torch.arange(len(ids)))] == []
