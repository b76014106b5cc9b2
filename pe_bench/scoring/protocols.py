"""The protocols: their windows, and the targets that are scored in each.

- `paired`: every length scores the very same target blocks, in parts of at most an eighth of the length; the
  `length` tokens that end with a part are fed, so that target k of T sees length - T + k tokens.
- `nonoverlapping`: the beginnings of documents are cut into windows of `length`, and every next token is
  scored.
- `sliding`: windows of `length` advance by a stride, and only their new tokens are scored.
- `task`: examples of a task, each in a window; only the targets of its answers are scored.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pe_bench.data.packed import Data, Split
from pe_bench.runs.scores import NO_BYTES, Scores
from pe_bench.scoring.targets import ScoredText, TargetBlocks, tokens_in_a_part, with_half_prefix


@dataclass(frozen=True)
class Needle:
    """A span that is to be found in a window. All places are indices of tokens in the document."""

    start: int
    target: int  # the first target, within the span
    others: tuple[int, ...]  # the starts of spans whose ends are the wrong answers
    replacement: int | None = None  # the start of the span that takes its place; None if it stays


@dataclass(frozen=True)
class Window:
    """A window: `size` tokens of a document from `start` are fed, and some next tokens are scored."""

    document: int
    start: int
    size: int
    first: int  # the input before the first target: target n is the token after input n
    targets: int  # the number of targets
    donor: int = -1  # another document, whose tokens replace the first inputs
    donor_start: int = 0  # the first of these tokens
    foreign: int = 0  # the number of these tokens
    needle: Needle | None = None  # the window then ends with the cue, and the targets are the needle's

    @property
    def first_target(self) -> int:
        """Return the index of the first target in the document."""
        if self.needle is not None:
            return self.needle.target
        return self.start + self.first + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the sizes that windows of one batch share: fed tokens, first target, number of targets."""
        return self.size, self.first, self.targets


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of a task that a plan scores, in place of text."""

    split: Split
    is_answer: np.ndarray  # which targets of each example's window are scored, bool [examples, targets]
    chance: float  # the accuracy of guessing
    number: np.ndarray  # the answer of its example that each target is a part of, [examples, targets]

    def scores(self, nll: np.ndarray, correct: np.ndarray) -> Scores:
        """Return the scores of all targets; a target counts as right if its whole answer is correct.

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
    """The windows that are scored at one length, under one protocol and control."""

    protocol: str
    length: int
    windows: list[Window]
    target_hash: str
    stride: int | None = None  # the stride of the sliding protocol, in tokens
    stride_rule: str = ""  # half of each length, or the number that eval.stride gives
    control: str = "none"
    limit: int | None = None  # the tokens that every layer's attention sees, for the control `window`
    offset: int = 0  # added to all positions, for the control `offset`
    depth: float | None = None  # the depth of a probe's needle
    # The target blocks of the protocol `paired`, with the same hash.
    blocks: TargetBlocks | None = field(default=None, compare=False, repr=False)
    # The examples of a task.
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
        """Return the size of a target block; None under protocols without target blocks."""
        return None if self.blocks is None else self.blocks.target_tokens

    @property
    def chance(self) -> float | None:
        """Return the accuracy of guessing among the answers; None for a plan without answers."""
        if self.examples is not None:
            return self.examples.chance
        needle = self.windows[0].needle if self.windows else None
        if needle is None:
            return None
        return 1 / (1 + len(needle.others))

    @property
    def documents(self) -> int:
        return len({window.document for window in self.windows})


def paired_plan(blocks: TargetBlocks, length: int) -> Plan:
    """Return the plan whose windows each score a part of a block, as large as the length allows."""
    size = tokens_in_a_part(blocks.target_tokens, length)
    first = length - size - 1
    windows = []
    for document, end in blocks.places:
        for after in range(blocks.target_tokens - size, -1, -size):
            windows.append(Window(document, end - after - length, length, first, size))
    return Plan("paired", length, windows, blocks.hash, blocks=blocks)


def nonoverlapping_plan(data: Data, text: ScoredText, length: int) -> Plan:
    """Return the plan of a text in adjacent windows of `length` tokens; all next tokens are targets."""
    windows = []
    for document, tokens in text.beginnings:
        last = tokens - 1  # the last token is a target only
        for start in range(0, last, length):
            size = min(length, last - start)
            windows.append(Window(document, start, size, 0, size))
    return Plan("nonoverlapping", length, windows, text_hash(data, text))


def sliding_plan(data: Data, text: ScoredText, length: int, stride: int) -> Plan:
    """Return the plan of a text in windows that advance by `stride` tokens; new tokens are targets."""
    windows = []
    for document, tokens in text.beginnings:
        last = tokens - 1
        size = min(length, last)
        windows.append(Window(document, 0, size, 0, size))
        for scored in range(length, last, stride):
            stop = min(scored + stride, last)
            start = stop - length
            windows.append(Window(document, start, length, scored - start, stop - scored))
    return Plan("sliding", length, windows, text_hash(data, text), stride)


def text_hash(data: Data, text: ScoredText) -> str:
    """Return the hash of the targets of both window protocols: all tokens but the first of each document."""
    beginnings = ",".join(f"{document}:{tokens}" for document, tokens in text.beginnings)
    digest = hashlib.sha256(f"{data.hash}/{beginnings}".encode()).hexdigest()
    return with_half_prefix(digest[:16], text.half)


def batches(windows: list[Window], batch_tokens: int) -> Iterator[list[Window]]:
    """Yield batches of neighbouring windows of one shape, of about `batch_tokens` tokens."""
    batch: list[Window] = []
    for window in windows:
        is_full = (len(batch) + 1) * window.size > batch_tokens
        if batch and (is_full or window.shape != batch[0].shape):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def inputs(split: Split, batch: list[Window]) -> Tensor:
    """Return the token ids [B, size] of the windows, without donors."""
    return _stack_as_ids(
        [_document_tokens(split, window.document, window.start, window.size) for window in batch]
    )


def _document_tokens(split: Split, document: int, start: int, size: int) -> np.ndarray:
    return split.document(document)[start : start + size]


def _stack_as_ids(rows: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def with_donors(split: Split, batch: list[Window], tokens: Tensor) -> Tensor:
    """Return the inputs [B, size] with the `foreign` first tokens of each window from another document."""
    swapped = tokens.clone()
    for row, window in enumerate(batch):
        donor = _document_tokens(split, window.donor, window.donor_start, window.foreign).astype(np.int64)
        swapped[row, : window.foreign] = torch.from_numpy(donor)
    return swapped


def targets(split: Split, batch: list[Window]) -> Tensor:
    """Return the token ids [B, targets] of the targets."""
    return _stack_as_ids(
        [_document_tokens(split, window.document, window.first_target, window.targets) for window in batch]
    )


def scores_of(plan: Plan, split: Split, nll: np.ndarray, correct: np.ndarray | None = None) -> Scores:
    """Return the scores of a plan's targets in text, each with its document and its number of bytes."""
    assert split.byte_ends is not None, "training documents are not scored"
    sizes = []
    for window in plan.windows:
        index = int(split.starts[window.document]) + window.first_target
        byte_ends = split.byte_ends[index - 1 : index + window.targets]
        sizes.append(np.diff(byte_ends.astype(np.int64)))
    counts = [window.targets for window in plan.windows]
    documents = np.repeat([window.document for window in plan.windows], counts)
    if split.loses_text:
        return Scores(nll, documents, np.full(len(documents), NO_BYTES), correct)
    return Scores(nll, documents, np.concatenate(sizes), correct)
