"""Encodings as `show` resolves them."""

from functools import cache

from pe_bench.cli.completion import complete_word
from pe_bench.inspection.resolve import ResolvedEncoding, resolve

NAMES = [argument.removeprefix("encoding=") for argument in complete_word("encoding=")]
# A person's own encoding.
ROOT_BIAS = """
import torch
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    claims = frozenset({"shift_invariant", "prefix_consistent", "decaying"})

    def __init__(self, n_heads: int, strength: float = 0.5):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.full((n_heads,), strength))

    def distance_bias(self, distance):
        return -self.strength[:, None] * distance.sqrt()
"""
SMALL = ("model.d_model=16", "model.n_heads=2", "model.d_head=8", "model.d_ff=8", "train.length=16")


@cache
def one(*arguments: str) -> ResolvedEncoding:
    (found,) = resolve(arguments)
    return found
