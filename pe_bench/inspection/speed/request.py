"""The arguments of `pe-bench speed`: which encodings, and with which configuration."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import names_in
from pe_bench.config.hydra_main import WORDS_VARIABLE
from pe_bench.config.overrides import check_words
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
    """Encodings, Hydra's words, and folders with encodings of a person's own."""

    names: tuple[str, ...]
    words: tuple[str, ...]
    directories: tuple[str, ...]
    train: bool
    is_choice: bool = True  # False: all encodings, for none was named

    @property
    def shared(self) -> list[str]:
        """What is of the reference too: neither an encoding's option nor a modifier."""
        return [word for word in self.words if _section(word) in SHARED or _is_score_precision(word)]

    def at(self, length: int) -> list[Subject]:
        """The reference, then the others, each once. Raises `UserError`."""
        reference = self.reference(length)
        others = subjects([*self.names, *self.words, *self._of(length)], self.directories)
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

    def _composed(self, words: Sequence[str] = ()) -> dict[str, Any]:
        for folder in self.directories:
            require(Path(folder).is_dir(), f"--config-dir {folder} is not a folder")
        check_words(self.shared)
        return compose([f"encoding={REFERENCE}", *self.shared, *words], self.directories)


def read_words(words: Sequence[str], train: bool, directories: Sequence[str]) -> Asked:
    """Without names all encodings are meant. Raises `UserError` for a word that would change nothing."""
    names = tuple(word for word in words if "=" not in word or word.startswith("encoding="))
    options = [word for word in words if word not in names]
    for word in options:
        require(
            _section(word) not in UNUSED or (_is_score_precision(word) and not train),
            f"{word} would be ignored: speed reads random bytes; leave it out",
        )
        require(
            not train or _key(word) != "train.length",
            f"{word} would be ignored: with --train each of --lengths is the training length in turn",
        )
    before = os.environ.get(WORDS_VARIABLE, "").split()
    known = names or _all_names(directories)
    return Asked(known, (*before, *options), tuple(directories), train, is_choice=bool(names))


def _is_score_precision(word: str) -> bool:
    return _key(word) == "eval.precision"


def _section(word: str) -> str:
    """`train` of `train.length=128`."""
    return _key(word).partition(".")[0]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _all_names(directories: Sequence[str]) -> tuple[str, ...]:
    """Every encoding, and those in a person's own folders."""
    names = names_in("encoding")
    return (*names, *sorted(set(names_in("encoding", directories)) - set(names)))


def with_examples(subject: Subject) -> Subject:
    """With a value for each option that its class refuses to do without."""
    from pe_bench.encodings import load

    encoding = load.with_examples(subject.config.encoding, subject.search)
    return replace(subject, config=replace(subject.config, encoding=encoding))
