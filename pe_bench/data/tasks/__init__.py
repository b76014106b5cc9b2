"""A task: examples of any size whose answers are known; each is one file beside this one."""

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

FORMAT = 1  # of all examples: raise it when they change for an equal seed
STREAMS = {"training": 0x7A5C, "validation": 0x7A5D}  # of random numbers, one for each side
BEGIN, SEPARATOR, END, PADDING = "<begin>", "<sep>", "<end>", "<pad>"


class Example(NamedTuple):
    """The token ids of an example, int64 [tokens], and which of them are answers, bool [tokens].

    number: the answer that each is a part of, int64 [tokens]; None where each answer is one token.
    """

    tokens: np.ndarray
    is_answer: np.ndarray
    number: np.ndarray | None = None


@dataclass(frozen=True)
class Task(ABC):
    """A task with its options, which are the fields of its class.

    An example of a larger size is longer. Its first token is never an answer.
    """

    least: ClassVar[int] = 1  # the smallest size

    @property
    @abstractmethod
    def symbols_and_signs(self) -> list[str]:
        """Return the text of every token id but the padding."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Return the accuracy of a model that guesses among the tokens that an answer may be."""

    @property
    def most(self) -> int | None:
        """Return the largest size; None where there is none."""
        return None

    @abstractmethod
    def tokens(self, size: int) -> int:
        """Return the number of tokens of an example."""

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
        """Return a hash of the task and its options: equal hashes, equal examples for a seed."""
        parts = repr((FORMAT, self.name, sorted(asdict(self).items())))
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def examples_at(self, length: int, count: int, seed: int) -> list[Example]:
        """Return the examples to score at a length, of the largest size that fits, the same at every call."""
        rng = np.random.default_rng([seed, STREAMS["validation"], length, 0])
        return [self.example(rng, self.size_at(length)) for _ in range(count)]

    def ids(self, *texts: str) -> list[int]:
        """Return the ids of tokens by their texts."""
        return [self.vocabulary.index(text) for text in texts]

    def size_at(self, length: int) -> int:
        """Return the largest size whose examples a window of `length` inputs holds.

        The last token of an example is a target alone. Raises `UserError` where no size fits, or where the
        length needs a larger size than there is.
        """
        size = self.least
        least = self.tokens(size) - 1
        message = f"length {length} is too short for task={self.name}: its smallest example needs {least}"
        require(least <= length, message)
        while self.tokens(size + 1) <= length + 1:
            size += 1
        most = size if self.most is None else self.most
        message = f"length {length} needs examples of size {size}, and task={self.name} has none above {most}"
        require(size <= most, f"{message}: use shorter lengths, or raise task.symbols")
        return size


def symbol_texts(count: int) -> list[str]:
    """Return the texts of so many symbols: letters where they are enough, else numbers."""
    if count > 26:
        return list(map(str, range(count)))
    return [chr(ord("a") + number) for number in range(count)]


@dataclass(frozen=True)
class StringCopy(Task):
    """A copy of a string: what shows it, a separator, the string alone and its end."""

    symbols: AtLeast2

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

    def shown(self, rng: np.random.Generator, string: np.ndarray) -> np.ndarray:
        """Return the tokens that show the string."""
        return string

    def example(self, rng: np.random.Generator, size: int) -> Example:
        string = self.string(rng, size)
        shown = self.shown(rng, string)
        begin, separator, end = self.ids(BEGIN, SEPARATOR, END)
        tokens = np.array([begin, *shown, separator, *string, end])
        return Example(tokens, np.arange(len(tokens)) > len(shown) + 1)


def build_task(values: Mapping[str, Any]) -> Task:
    """Return the task of a configuration's section `task`. Raises `UserError`."""
    name = str(values.get("name"))
    names = names_in("task")
    require(name in names, unknown(name, "task", names))
    module = importlib.import_module(f"pe_bench.data.tasks.{name}")
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    [task_class] = own
    hints = typing.get_type_hints(task_class, include_extras=True)
    options = [f"task.{field.name}" for field in fields(task_class)]
    typed = {}
    for option in values.keys() - {"name"}:
        require(f"task.{option}" in options, unknown(f"task.{option}", "key", options))
        typed[option] = check_type(values[option], hints[option], f"task.{option}")
    return task_class(**typed)
