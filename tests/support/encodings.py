"""Encodings that represent all others in the short form of the tests."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side

# Encodings that act through different hooks: tests that take minutes over all encodings run on these in CI.
ONE_OF_A_KIND = ("learned", "rope", "yarn", "alibi", "fox", "shaw", "cope", "irope", "t5", "streaming")


def one_of_a_kind(names: Iterable[str], kinds: Sequence[str] = ONE_OF_A_KIND) -> list[Any]:
    """Return the names as parameters; all but `kinds` are for `scripts/test --full`."""
    return [name if name in kinds else pytest.param(name, marks=pytest.mark.full) for name in names]


def turned_sides(
    encoding: LayerEncoding,
    q: Tensor,
    k: Tensor,
    q_position: Tensor,
    k_position: Tensor,
    values: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return queries and keys after `transform`, at these positions."""
    sides = [
        Side(x, x, position, torch.arange(x.shape[-2]), values or {})
        for x, position in ((q, q_position), (k, k_position))
    ]
    return encoding.transform(*sides)
