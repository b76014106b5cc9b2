"""Training windows: uniform random crops inside one document, a pure function of the seed and the step."""

import numpy as np
import torch

from pe_bench.data.packed import Split
from pe_bench.errors import UserError

STREAM = 0xDA7A  # keeps these draws apart from others that use the same seed


class TrainingWindows:
    """The crops of `length + 1` tokens of a split, each drawn with equal chance.

    Documents shorter than a crop are joined by the end-of-text id, so that nothing is lost. The split
    itself is kept; only the joined documents are copied. Raises `UserError`, which names the `side`,
    when the whole split is shorter than one crop.
    """

    def __init__(self, split: Split, length: int, end_of_text: int, side: str = "training") -> None:
        self.size = length + 1
        joined = _documents_to_join(split.lengths, self.size)
        self.joint = _join(split, joined, end_of_text)
        if len(self.joint) < self.size and len(joined) == len(split.lengths):
            raise UserError(
                f"the {side} documents have {len(self.joint)} tokens together, and one window of "
                f"train.length={length} needs {self.size}: use more text, or a shorter train.length"
            )
        self.tokens = split.tokens
        alone = np.setdiff1d(np.arange(len(split.lengths)), joined)
        # One more "document", the joint one, comes last.
        self.starts = np.append(split.starts[alone], 0)
        lengths = np.append(split.lengths[alone], len(self.joint))
        self.crops_through = np.cumsum(np.maximum(lengths - length, 0))

    def batch(self, count: int, seed: int, step: int) -> torch.Tensor:
        """Return int64 [count, length + 1], equal for equal arguments, whatever was drawn before."""
        generator = np.random.default_rng([seed, STREAM, step])
        drawn = generator.integers(0, self.crops_through[-1], size=count)
        document = np.searchsorted(self.crops_through, drawn, side="right")
        crops_before = np.append(0, self.crops_through)[document]
        begin = self.starts[document] + drawn - crops_before
        windows = np.empty((count, self.size), np.int64)
        last = len(self.starts) - 1
        for row in range(count):
            source = self.joint if document[row] == last else self.tokens
            windows[row] = source[begin[row] : begin[row] + self.size]
        return torch.from_numpy(windows)


def _documents_to_join(lengths: np.ndarray, size: int) -> np.ndarray:
    """Return the indices of documents under `size`, and of longer ones until all together reach it."""
    order = np.argsort(lengths, kind="stable")
    joint_lengths = np.cumsum(lengths[order] + 1) - 1
    short = int(np.searchsorted(lengths[order], size))
    enough = int(np.searchsorted(joint_lengths, size)) + 1
    return np.sort(order[: max(short, enough)]) if short else np.empty(0, np.int64)


def _join(split: Split, documents: np.ndarray, end_of_text: int) -> np.ndarray:
    """Return the documents one after another with the end-of-text id between them."""
    between = np.array([end_of_text], split.tokens.dtype)
    parts = [part for document in documents for part in (between, split.document(int(document)))]
    return np.concatenate(parts[1:]) if parts else np.empty(0, split.tokens.dtype)
