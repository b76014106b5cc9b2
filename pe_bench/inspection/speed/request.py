"""The arguments of `pe-bench speed`: which encodings, and with which configuration."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import names_in
from pe_bench.config.hydra_main import OVERRIDES_VARIABLE
from pe_bench.config.overrides import check_arguments
from pe_bench.config.parse import parse_config
from pe_bench.errors import require
from pe_bench.inspection.resolve import Subject, subjects
from pe_bench.values import check_type

if TYPE_CHECKING:
    pass


REFERENCE = "nope"


# Sections and keys of the configuration that say how the model is and what it runs on.
SHARED = ("model", "train", "seed", "precision", "threads", "device", "results_dir")


UNUSED = ("data", "tokenizer", "eval", "report", "experiment", "cache_dir")


@dataclass(frozen=True)
class Asked:
    """Encodings, Hydra's overrides, and folders with encodings of a person's own."""

    names: tuple[str, ...]
    arguments: tuple[str, ...]
    directories: tuple[str, ...]
    train: bool
    is_choice: bool = True  # False: all encodings, for none was named

    @property
    def shared(self) -> list[str]:
        """What is of the reference too: neither an encoding's option nor a modifier."""
        return [
            argument
            for argument in self.arguments
            if _section(argument) in SHARED or _is_score_precision(argument)
        ]

    def at(self, length: int) -> list[Subject]:
        """The reference, then the others, each once. Raises `UserError`."""
        reference = self.reference(length)
        others = subjects([*self.names, *self.arguments, *self._of(length)], self.directories)
        each = {one.label: one for one in others} | {reference.label: reference}
        return sorted(each.values(), key=lambda one: one is not reference)

    def reference(self, length: int) -> Subject:
        config = parse_config(self._composed(self._of(length)))
        return Subject(REFERENCE, config, search=tuple(map(Path, self.directories)))

    def _of(self, length: int) -> list[str]:
        """A training step of as many windows of this length as `train.batch_tokens` holds."""
        if not self.train:
            return []
        windows = max(1, self._batch_tokens // length)
        return [f"train.length={length}", f"train.batch_tokens={windows * length}"]

    @cached_property
    def _batch_tokens(self) -> int:
        return check_type(self._composed()["train"]["batch_tokens"], int, "train.batch_tokens")

    def _composed(self, arguments: Sequence[str] = ()) -> dict[str, Any]:
        for folder in self.directories:
            require(Path(folder).is_dir(), f"--config-dir {folder} is not a folder")
        check_arguments(self.shared)
        return compose([f"encoding={REFERENCE}", *self.shared, *arguments], self.directories)


def read_arguments(arguments: Sequence[str], train: bool, directories: Sequence[str]) -> Asked:
    """Without names all encodings are meant. Raises `UserError` for an argument that would change nothing."""
    names = tuple(
        argument for argument in arguments if "=" not in argument or argument.startswith("encoding=")
    )
    options = [argument for argument in arguments if argument not in names]
    for argument in options:
        require(
            _section(argument) not in UNUSED or (_is_score_precision(argument) and not train),
            f"{argument} would be ignored: speed reads random bytes; leave it out",
        )
        require(
            not train or _key(argument) != "train.length",
            f"{argument} would be ignored: with --train each of --lengths is the training length in turn",
        )
    before = os.environ.get(OVERRIDES_VARIABLE, "").split()
    known = names or _all_names(directories)
    return Asked(known, (*before, *options), tuple(directories), train, is_choice=bool(names))


def _is_score_precision(argument: str) -> bool:
    return _key(argument) == "eval.precision"


def _section(argument: str) -> str:
    """`train` of `train.length=128`."""
    return _key(argument).partition(".")[0]


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+~")


def _all_names(directories: Sequence[str]) -> tuple[str, ...]:
    """Every encoding, and those in a person's own folders."""
    names = names_in("encoding")
    return (*names, *sorted(set(names_in("encoding", directories)) - set(names)))


def with_examples(subject: Subject) -> Subject:
    """With a value for each option that its class refuses to do without."""
    from pe_bench.encodings import load

    encoding = load.with_examples(subject.config.encoding, subject.search)
    return replace(subject, config=replace(subject.config, encoding=encoding))
