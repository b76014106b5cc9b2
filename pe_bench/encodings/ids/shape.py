r"""Shifted absolute positions (SHAPE): ids k, k + 1, .., with one k ~ U{0, .., max_offset} for each sequence.

Only in training; outside it ids are 0, 1, 2, .. An absolute encoding so learns that a shift of all
positions changes nothing; one that depends on differences, such as rotary positions, is left as it is.

$p' = p + k, \quad k \sim U\{ 0, \dots, \text{max\_offset} \}$

Past the training length: defined, as the encoding that reads the ids; positions below the training
length plus max_offset were seen in training.

Kiyono et al. 2021, "SHAPE: Shifted Absolute Position Embedding for Transformers", EMNLP,
arXiv:2109.05644.

The authors' code for translation draws from 0..499, and numbers from 500 outside training; we number
from 0. Windows here have any training length, and 499 means little beside most, so that our default is
15 times it: ids up to 16 times the training length are seen. What the paper itself sets is unverified.
"""

import torch
from torch import Tensor

from pe_bench.encodings.base import Natural, PositionalEncoding


class SHAPE(PositionalEncoding):
    """Options:

    max_offset: the largest first id in training
    """

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(self, max_offset: Natural):
        super().__init__()
        self.max_offset = max_offset

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        index = torch.arange(tokens.shape[-1], device=tokens.device)
        if not train:
            return index
        device = torch.device("cpu") if generator is None else generator.device
        offset = torch.randint(self.max_offset + 1, (len(tokens), 1), generator=generator, device=device)
        return index + offset.to(index.device)
