"""Encodings as `show` resolves them."""

from pe_bench.cli.completion import complete_word
from pe_bench.inspection.resolve import ResolvedEncoding, resolve

NAMES = [argument.removeprefix("encoding=") for argument in complete_word("encoding=")]
SMALL = ("model.d_model=16", "model.n_heads=2", "model.d_head=8", "model.d_ff=8", "train.length=16")


def one(*arguments: str) -> ResolvedEncoding:
    (found,) = resolve(arguments)
    return found
