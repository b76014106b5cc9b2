"""The arguments of `pe-bench speed`: which encodings, and with which configuration."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import encoding_names
from pe_bench.config.hydra_main import OVERRIDES_VARIABLE
from pe_bench.config.override import parse_override
from pe_bench.config.overrides import check_overrides
from pe_bench.config.parse import parse_config
from pe_bench.errors import require
from pe_bench.inspection.resolve import ResolvedEncoding, resolve, split_arguments
from pe_bench.values import check_type

REFERENCE = "nope"
SCORE_PRECISION = "eval.precision"
# Sections and keys that say how the model is and what it runs on, and those without effect.
SHARED = ("model", "train", "seed", "precision", "threads", "device", "results_dir")
UNUSED = ("data", "tokenizer", "eval", "report", "experiment", "cache_dir")


@dataclass(frozen=True)
class Request:
    """Encodings to time, overrides, and folders with encodings of a person's own."""

    names: tuple[str, ...]
    overrides: tuple[str, ...]
    search: tuple[Path, ...]
    train: bool
    is_choice: bool = True  # False: all encodings, because none was named

    @property
    def shared(self) -> list[str]:
        """Return the overrides that the reference gets too: no option of an encoding and no modifier."""
        return [text for text in self.overrides if _is_shared(text)]

    def at(self, length: int) -> list[ResolvedEncoding]:
        """Resolve the reference, then the others, each once. Raises `UserError`."""
        reference = self.reference(length)
        others = resolve([*self.names, *self.overrides, *self._train_overrides(length)], self.search)
        by_label = {encoding.label: encoding for encoding in others} | {reference.label: reference}
        return sorted(by_label.values(), key=lambda encoding: encoding is not reference)

    def reference(self, length: int) -> ResolvedEncoding:
        values = self._compose_reference(self._train_overrides(length))
        return ResolvedEncoding(REFERENCE, parse_config(values, self.search))

    def _train_overrides(self, length: int) -> list[str]:
        """Return, with --train, the keys of a step of as many windows as `train.batch_tokens` holds."""
        if not self.train:
            return []
        windows = max(1, self._batch_tokens // length)
        return [f"train.length={length}", f"train.batch_tokens={windows * length}"]

    @cached_property
    def _batch_tokens(self) -> int:
        return check_type(self._compose_reference()["train"]["batch_tokens"], int, "train.batch_tokens")

    def _compose_reference(self, overrides: Sequence[str] = ()) -> dict[str, Any]:
        check_overrides(self.shared, self.search)
        return compose([f"encoding={REFERENCE}", *self.shared, *overrides], self.search)


def read_request(arguments: Sequence[str], train: bool, search: Sequence[Path]) -> Request:
    """Read the arguments; no name means all encodings. Raises `UserError` for one without effect."""
    names, overrides = split_arguments(arguments)
    for text in overrides:
        override = parse_override(text)
        is_precision = override.key == SCORE_PRECISION and not train
        reason = "--train scores nothing" if override.key == SCORE_PRECISION else "speed reads random bytes"
        require(override.section not in UNUSED or is_precision, f"{text} has no effect: {reason}; remove it")
        require(
            not train or override.key != "train.length",
            f"{text} has no effect: with --train each of --lengths is the training length in turn; remove it",
        )
    before = os.environ.get(OVERRIDES_VARIABLE, "").split()
    found = tuple(names or encoding_names(search))
    return Request(found, (*before, *overrides), tuple(search), train, is_choice=bool(names))


def _is_shared(text: str) -> bool:
    override = parse_override(text)
    return override.section in SHARED or override.key == SCORE_PRECISION


def with_examples(resolved: ResolvedEncoding) -> ResolvedEncoding:
    """Add an example for each option that the encoding's class requires."""
    return replace(resolved, config=replace(resolved.config, encoding=resolved.spec.with_examples().values))
