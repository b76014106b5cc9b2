"""The protocols: the windows that each feeds, and which of their targets are scored.

- `paired`: every length scores the very same target blocks, in parts of at most an eighth of the length; the
  `length` tokens that end with a part are fed, so that target k of T sees length - T + k tokens.
- `nonoverlapping`: the beginnings of documents are cut into windows of `length`, and every next token is
  scored.
- `sliding`: windows of `length` advance by a stride, and only their new tokens are scored.
- `task`: examples of a task, each in a window; of its targets only answers are scored.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pe_bench.data.packed import Data, Split
from pe_bench.runs.scores import NO_BYTES, Scores
from pe_bench.scoring.targets import ScoredText, TargetBlocks, hash_of_half, tokens_in_a_part


@dataclass(frozen=True)
class Needle:
    """A span of a window's document that is to be found in the window, by places in the document.

    target: the first of the targets, in the span. replacement: the span that takes its place; None where it
    stays. others: the starts of spans whose ends are the wrong answers.
    """

    start: int
    target: int
    others: tuple[int, ...]
    replacement: int | None = None


@dataclass(frozen=True)
class Window:
    """A window: `size` tokens of a document from `start` are fed, and targets are scored from `first` on.

    Target n is the token after input n; there are `targets` of them from `first`. With a donor, the first
    `foreign` inputs are another document's: those of `donor` from `donor_start`. With a needle, the window
    ends with the beginning of the needle's span, and the targets are those of the needle.
    """

    document: int
    start: int
    size: int
    first: int
    targets: int
    donor: int = -1
    donor_start: int = 0
    foreign: int = 0
    needle: Needle | None = None

    @property
    def first_target(self) -> int:
        """Return the index of the first target in the document."""
        return self.needle.target if self.needle else self.start + self.first + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.size, self.first, self.targets


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of a task that a plan scores, in place of text."""

    split: Split
    is_answer: np.ndarray  # which targets of each example's window are scored, bool [examples, targets]
    chance: float  # the accuracy of guessing
    number: np.ndarray  # the answer of its example that each target is a part of, [examples, targets]

    def scores(self, nll: np.ndarray, correct: np.ndarray) -> Scores:
        """Return the scores of all targets; one is right if all targets of its answer are correct.

        nll: the loss of each scored target, in the order of the examples. correct: 1 or 0 for each of them.
        """
        document, _ = np.nonzero(self.is_answer)
        pairs = np.stack([document, self.number[self.is_answer]])
        _, answer = np.unique(pairs, axis=1, return_inverse=True)
        wrong = np.bincount(answer, weights=1 - correct)
        right = (wrong[answer] == 0).astype(correct.dtype)
        return Scores(nll, document, np.ones_like(document), right)


@dataclass(frozen=True)
class Plan:
    """Everything that one length scores.

    limit: every layer's attention is limited to so many tokens, for the control `window`. offset: how much
    later than in the text all positions are, for the control `offset`. blocks: the target blocks of
    the paired protocol. depth: the depth of a probe's span. examples: the examples of a task.
    """

    protocol: str
    length: int
    windows: list[Window]
    target_hash: str
    stride: int | None = None
    stride_rule: str = ""  # half of each length, or the number that eval.stride gives
    control: str = "none"
    limit: int | None = None
    offset: int = 0
    depth: float | None = None
    blocks: TargetBlocks | None = field(default=None, compare=False, repr=False)  # `target_hash` is theirs
    examples: Examples | None = field(default=None, compare=False, repr=False)

    @property
    def targets(self) -> int:
        """Return the number of scored targets."""
        if self.examples is not None:
            return int(self.examples.is_answer.sum())
        return sum(window.targets for window in self.windows)

    @property
    def context_mean(self) -> float:
        """Return the mean number of tokens that a scored target sees."""
        contexts = 0.0
        for window in self.windows:
            fewest = window.first + 1
            most = window.first + window.targets
            contexts += window.targets * (fewest + most) / 2
        return contexts / sum(window.targets for window in self.windows)

    @property
    def target_tokens(self) -> int | None:
        """Return the size of a target block; None under the protocols that have none."""
        return None if self.blocks is None else self.blocks.target_tokens

    @property
    def chance(self) -> float | None:
        """Return the accuracy of guessing among the answers; None where there are none."""
        if self.examples is not None:
            return self.examples.chance
        needle = self.windows[0].needle if self.windows else None
        return None if needle is None else 1 / (1 + len(needle.others))

    @property
    def documents(self) -> int:
        return len({window.document for window in self.windows})


def paired_plan(blocks: TargetBlocks, length: int) -> Plan:
    """Return windows that each score a part of a block, as large as the length allows."""
    size = tokens_in_a_part(blocks.target_tokens, length)
    first = length - size - 1
    windows = []
    for document, end in zip(blocks.document.tolist(), blocks.end.tolist(), strict=True):
        for after in range(blocks.target_tokens - size, -1, -size):
            windows.append(Window(document, end - after - length, length, first, size))
    return Plan("paired", length, windows, blocks.hash, blocks=blocks)


def nonoverlapping_plan(data: Data, text: ScoredText, length: int) -> Plan:
    windows = []
    for document, tokens in text.pieces:
        last = tokens - 1  # the last token is a target only
        for start in range(0, last, length):
            size = min(length, last - start)
            windows.append(Window(document, start, size, 0, size))
    return Plan("nonoverlapping", length, windows, text_hash(data, text))


def sliding_plan(data: Data, text: ScoredText, length: int, stride: int) -> Plan:
    windows = []
    for document, tokens in text.pieces:
        last = tokens - 1
        windows.append(Window(document, 0, min(length, last), 0, min(length, last)))
        for scored in range(length, last, stride):
            stop = min(scored + stride, last)
            start = stop - length
            windows.append(Window(document, start, length, scored - start, stop - scored))
    return Plan("sliding", length, windows, text_hash(data, text), stride)


def text_hash(data: Data, text: ScoredText) -> str:
    """Hash the targets of both window protocols: every token of the text but the first of each document."""
    words = f"{data.hash}/{','.join(f'{document}:{tokens}' for document, tokens in text.pieces)}"
    return hash_of_half(hashlib.sha256(words.encode()).hexdigest()[:16], text.half)


def batches(windows: list[Window], batch_tokens: int) -> Iterator[list[Window]]:
    """Yield neighbours with one size and one place of their targets, about `batch_tokens` tokens at once."""
    batch: list[Window] = []
    for window in windows:
        if batch and (window.shape != batch[0].shape or (len(batch) + 1) * window.size > batch_tokens):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def inputs(split: Split, batch: list[Window]) -> Tensor:
    """Return the token ids [B, size] of the windows, without donors."""
    rows = [split.document(w.document)[w.start : w.start + w.size] for w in batch]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def with_donors(split: Split, batch: list[Window], tokens: Tensor) -> Tensor:
    """Return the inputs [B, size] with the `foreign` first tokens of each window from another document."""
    swapped = tokens.clone()
    for row, window in enumerate(batch):
        donor = split.document(window.donor)[window.donor_start : window.donor_start + window.foreign]
        swapped[row, : window.foreign] = torch.from_numpy(donor.astype(np.int64))
    return swapped


def targets(split: Split, batch: list[Window]) -> Tensor:
    """Return the token ids [B, targets] of the targets."""
    rows = [split.document(w.document)[w.first_target : w.first_target + w.targets] for w in batch]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def scores_of(plan: Plan, split: Split, nll: np.ndarray, correct: np.ndarray | None = None) -> Scores:
    """Return the scores of a plan's targets in text, each with its document and its number of bytes."""
    assert split.byte_ends is not None, "training documents are not scored"
    sizes = []
    for window in plan.windows:
        index = int(split.starts[window.document]) + window.first_target
        sizes.append(np.diff(split.byte_ends[index - 1 : index + window.targets].astype(np.int64)))
    documents = [window.document for window in plan.windows]
    documents = np.repeat(documents, [window.targets for window in plan.windows])
    if split.loses_text:
        return Scores(nll, documents, np.full(len(documents), NO_BYTES), correct)
    return Scores(nll, documents, np.concatenate(sizes), correct)
