"""Tasks: examples of any size with known answers. Each task is one file of this folder."""

import hashlib
import importlib
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pe_bench.config.groups import names_in
from pe_bench.errors import require
from pe_bench.values import AtLeast2, check_type, unknown

EXAMPLES_VERSION = 1  # the version of all examples: raise it when they change for an equal seed
RANDOM_STREAMS = {"training": 0x7A5C, "validation": 0x7A5D}  # streams of random numbers, one for each split
BEGIN, SEPARATOR, END, PADDING = "<begin>", "<sep>", "<end>", "<pad>"


class Example(NamedTuple):
    """The tokens of an example, with marks of its answers."""

    tokens: np.ndarray  # int64 [tokens]
    is_answer: np.ndarray  # bool [tokens]
    number: np.ndarray | None = None  # int64 [tokens], the answer of each token; None: answers of one token


@dataclass(frozen=True)
class Task(ABC):
    """A task; the fields of its class are its options.

    A larger size gives a longer example. The first token of an example is never an answer.
    """

    smallest_size: ClassVar[int] = 1  # the smallest size of an example

    @property
    @abstractmethod
    def symbols_and_signs(self) -> list[str]:
        """Return the text of every token id, except the padding."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Return the accuracy of random guesses among the tokens that an answer may have, 0 to 1."""

    @property
    def largest_size(self) -> int | None:
        """Return the largest size of an example; None for no limit."""
        return None

    @abstractmethod
    def tokens(self, size: int) -> int:
        """Return the number of tokens of an example of this size."""

    @abstractmethod
    def example(self, rng: np.random.Generator, size: int) -> Example:
        """Return an example that depends on the generator's state, the size and the options alone."""

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return (*self.symbols_and_signs, PADDING)

    @property
    def padding(self) -> int:
        return len(self.symbols_and_signs)

    @property
    def hash(self) -> str:
        """Return a hash of the task and its options; equal hashes and seeds give equal examples."""
        parts = repr((EXAMPLES_VERSION, self.name, sorted(asdict(self).items())))
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def examples_at(self, length: int, count: int, seed: int) -> list[Example]:
        """Return examples to score at a length, of the largest size that fits, the same at every call."""
        rng = np.random.default_rng([seed, RANDOM_STREAMS["validation"], length, 0])
        return [self.example(rng, self.size_at(length)) for _ in range(count)]

    def ids(self, *texts: str) -> list[int]:
        """Return the ids of tokens by their texts."""
        return [self.vocabulary.index(text) for text in texts]

    def size_at(self, length: int) -> int:
        """Return the largest size with examples of at most `length` inputs.

        The last token of an example is no input. Raises `UserError` if no size fits, or if the length needs a
        size above `largest_size`.
        """
        size = self.smallest_size
        least = self.tokens(size) - 1
        message = f"length {length} is too short for task={self.name}: its smallest example needs {least}"
        require(least <= length, message)
        while self.tokens(size + 1) <= length + 1:
            size += 1
        most = size if self.largest_size is None else self.largest_size
        needed = f"length {length} needs examples of size {size}"
        way_out = "use shorter lengths, or raise task.symbols"
        require(size <= most, f"{needed}, but the largest of task={self.name} is {most}: {way_out}")
        return size


def symbol_texts(count: int) -> list[str]:
    """Return the texts of `count` symbols: letters for up to 26 symbols, else numbers."""
    if count > 26:
        return list(map(str, range(count)))
    return [chr(ord("a") + number) for number in range(count)]


@dataclass(frozen=True)
class StringCopy(Task):
    """A task to copy a string: tokens with the string, a separator, the string again and an end."""

    symbols: AtLeast2  # the number of symbols

    @property
    def symbols_and_signs(self) -> list[str]:
        return [*symbol_texts(self.symbols), BEGIN, SEPARATOR, END]

    @property
    def chance(self) -> float:
        return 1 / (self.symbols + 1)

    def tokens(self, size: int) -> int:
        return 2 * size + 3

    def string(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return the symbols of a string, int64 [size]."""
        return rng.integers(self.symbols, size=size)

    def tokens_before_separator(self, rng: np.random.Generator, string: np.ndarray) -> np.ndarray:
        """Return the tokens from which the string is copied: its symbols, perhaps among other tokens."""
        return string

    def example(self, rng: np.random.Generator, size: int) -> Example:
        string = self.string(rng, size)
        tokens_before_separator = self.tokens_before_separator(rng, string)
        begin, separator, end = self.ids(BEGIN, SEPARATOR, END)
        tokens = np.array([begin, *tokens_before_separator, separator, *string, end])
        separator_index = len(tokens_before_separator) + 1
        return Example(tokens, np.arange(len(tokens)) > separator_index)


def build_task(values: Mapping[str, Any]) -> Task:
    """Return the task of a configuration's section `task`. Raises `UserError`."""
    name = str(values.get("name"))
    names = names_in("task")
    require(name in names, unknown(name, "task", names))
    module = importlib.import_module(f"pe_bench.data.tasks.{name}")
    values_of_module = vars(module).values()
    [task_class] = [each for each in values_of_module if getattr(each, "__module__", "") == module.__name__]
    hints = typing.get_type_hints(task_class, include_extras=True)
    options = [f"task.{field.name}" for field in fields(task_class)]
    typed = {}
    for option in values.keys() - {"name"}:
        key = f"task.{option}"
        require(key in options, unknown(key, "key", options))
        typed[option] = check_type(values[option], hints[option], key)
    return task_class(**typed)
