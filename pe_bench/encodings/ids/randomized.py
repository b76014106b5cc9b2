r"""Randomized positions: T ids drawn without replacement from 0..max_position-1, in rising order.

Any encoding reads them. One draw serves the whole batch. `scored_with` says which ids are used
outside training: `random` as in training, `arange` (0, 1, 2, ..), or `even` (spread evenly over
the whole range).

$p_0 < p_1 < \dots < p_{T-1} \text{ drawn without replacement from } \{ 0, \dots, M - 1 \}, \quad M =
\text{max\_position}$

Past the training length: defined up to max_position, whose distances training has shown.

Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers",
ACL, arXiv:2305.16843.

One draw serves all layers; the authors' code draws anew in each layer for rotary positions. Its example has
max_position = 2,048 for training lengths up to 40; whether all of the paper's runs do is unverified. We take
16 times the training length. With `real` the ids are T sorted draws from U(0, max_position), as in
arXiv:2602.14050 (RFS): texts of more than max_position tokens have ids too, which are closer together than in
training. The ids are multiples of 1/1024, which float32 holds exactly up to 16,384.
"""

from typing import Literal

import torch
from torch import Tensor

from pe_bench.encodings.base import AtLeast1, LengthError, PositionalEncoding

ScoredWith = Literal["random", "arange", "even"]
IDS_PER_UNIT = 1024  # real ids are multiples of 1 / 1024, so that float32 holds their differences exactly


class Randomized(PositionalEncoding):
    """Options:

    max_position: ids are drawn below this; no less than the longest scored length
    scored_with: ids outside training: random, arange or even
    real: true: ids are real numbers, for encodings that accept them
    """

    claims = frozenset({"shift_invariant"})
    changeable_after_training = frozenset({"scored_with"})

    def __init__(self, max_position: AtLeast1, scored_with: ScoredWith = "random", real: bool = False):
        super().__init__()
        self.real = real
        self.max_position = max_position
        self.scored_with: ScoredWith = scored_with
        if scored_with == "arange":
            self.claims = frozenset({"shift_invariant", "prefix_consistent"})

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        count = tokens.shape[-1]
        if count > self.max_position and not self.real:
            largest = f"train with a max_position of at least {count}"
            raise LengthError(f"max_position={self.max_position} cannot number {count} tokens: {largest}")
        return self._draw("random" if train else self.scored_with, count, generator).to(tokens.device)

    def _draw(self, mode: ScoredWith, count: int, generator: torch.Generator | None) -> Tensor:
        """Return `count` ids [count] in rising order."""
        if mode == "arange":
            return torch.arange(count)
        if mode == "even":
            even = torch.linspace(0, self.max_position - 1, count, dtype=torch.float64)
            return _rounded_to_grid(even) if self.real else even.round().long()
        device = torch.device("cpu") if generator is None else generator.device
        if self.real:
            share = torch.rand(count, dtype=torch.float64, generator=generator, device=device)
            return _rounded_to_grid(self.max_position * share).sort().values
        drawn = torch.randperm(self.max_position, generator=generator, device=device)[:count]
        return drawn.sort().values


def _rounded_to_grid(ids: Tensor) -> Tensor:
    return (IDS_PER_UNIT * ids).floor().div(IDS_PER_UNIT).float()
