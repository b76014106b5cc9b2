"""Prompts of a checkpoint: text of any size that ends with a question, whose answers are known.

Each kind is one file in `pe_bench/data/prompts`. Its examples have the largest size that fits a length with
the checkpoint's tokenizer. Only the answers are scored, each with the right earlier answers in the input, so
all of them are right exactly when greedy decoding gives them.
"""

import hashlib
import importlib
import math
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pe_bench.data import prompts
from pe_bench.data.task import Example
from pe_bench.data.tokenizer import Tokenizer
from pe_bench.errors import UserError
from pe_bench.values import unknown

FORMAT = 1  # of all prompts: raise it when they change for an equal seed
STREAM = 0x7A5E  # of random numbers, different from those of tasks


class Prompt(NamedTuple):
    """The text up to the first answer, and the answers, which follow it with a space before each."""

    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """One kind of prompt with a checkpoint's tokenizer. begins: whether a token comes before the text."""

    chance: ClassVar[float] = 0.0  # of a guess, to three digits

    name: str
    tokenizer: Tokenizer
    begins: bool

    def __post_init__(self) -> None:
        kinds = [module.name for module in pkgutil.iter_modules(prompts.__path__)]
        if self.name not in kinds:
            raise UserError(unknown(self.name, "--task", kinds))

    @property
    def hash(self) -> str:
        """Return a hash of all that determines prompts: equal hashes and seeds give equal prompts."""
        parts = repr((FORMAT, self.name, self.tokenizer.identity, self.begins))
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def examples_at(self, length: int, count: int, seed: int) -> list[Example]:
        """Return the longest prompts that fit `length` inputs, the same at every call.

        Raises `UserError` where not even the smallest fits.
        """
        return [self._longest(length, [seed, STREAM, length, number]) for number in range(count)]

    def _longest(self, length: int, seed: Sequence[int]) -> Example:
        """Return the example of a seed with the largest size that fits. Raise `UserError` if none does."""
        longest = example = self.shortest(length, seed)
        size = fits = int(_module_of(self.name).LEAST)
        too_large = math.inf
        while True:
            estimate = size * length // (len(example.tokens) - 1)
            size = int(min(max(estimate, fits + 1), too_large - 1))
            if size <= fits:
                return longest
            example = self.example(np.random.default_rng(seed), size)
            if len(example.tokens) - 1 <= length:
                longest, fits = example, size
            else:
                too_large = size

    def shortest(self, length: int, seed: Sequence[int] = (0,)) -> Example:
        """Return an example of the smallest size. Raise `UserError` for a length with no room for it."""
        example = self.example(np.random.default_rng(seed), int(_module_of(self.name).LEAST))
        inputs = len(example.tokens) - 1
        if inputs > length:
            raise UserError(
                f"the shortest prompt of {self.name} has {inputs} tokens with this tokenizer, and "
                f"{length} are too few: give longer --lengths"
            )
        return example

    def example(self, rng: np.random.Generator, size: int) -> Example:
        """Return the tokens of a prompt and its answers, and the number of the answer that each is of."""
        question, answers = _module_of(self.name).prompt(rng, size)
        ends = np.cumsum([len(question), *(1 + len(answer) for answer in answers)])  # all are ASCII
        text = " ".join([question, *answers]).encode()
        [encoded] = self.tokenizer.encode_documents([text], with_ends=True)
        assert encoded.byte_ends is not None
        first = [self.tokenizer.end_of_text] if self.begins else []
        number = np.searchsorted(ends, [*np.zeros_like(first), *encoded.byte_ends])
        return Example(np.array([*first, *encoded.ids], np.int64), number > 0, number)


def _module_of(name: str) -> Any:
    return importlib.import_module(f"{prompts.__name__}.{name}")
