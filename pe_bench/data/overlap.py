"""The share of a document that the training text holds already, by windows of 48 bytes."""

from collections.abc import Sequence

import numpy as np

from pe_bench.data.documents import Document

WINDOW_BYTES = 48
MAX_SHARE = 0.3
# Above this many training windows only every 2nd, 4th, ... is kept, so that memory and time stay small.
KEPT_WINDOWS = 2_000_000
CHUNK_BYTES = 1 << 20  # a long text is hashed in parts, at 8 bytes for each byte of text
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def without_overlap(validation: Sequence[Document], training: Sequence[Document]) -> list[Document]:
    """Return the validation documents of which at most 30 % is in training, and none as a whole."""
    total = sum(len(document.text) for document in training)
    rate = 1 << max(0, (total // KEPT_WINDOWS).bit_length())
    known = _in_order([_sampled(document.text, rate) for document in training])
    copies = {document.sha256 for document in training}
    return [
        document
        for document in validation
        if document.sha256 not in copies and _share(document.text, known, rate) <= MAX_SHARE
    ]


def window_hashes(text: bytes) -> np.ndarray:
    """Return a uint64 hash of each 48-byte window, [max(0, len(text) - 47)], in a few passes over the text.

    Windows of 3 bytes are joined to 6, 12, 24 and 48, so a pass costs the same for any width.
    """
    if len(text) < WINDOW_BYTES:
        return np.empty(0, np.uint64)
    ones = np.frombuffer(text, np.uint8).astype(np.uint64)
    hashes = ones[:-2] << np.uint64(16) | ones[1:-1] << np.uint64(8) | ones[2:]
    for width in (3, 6, 12, 24):
        hashes = _mix(hashes[:-width] * MULTIPLIER + hashes[width:])
    return hashes


def _mix(values: np.ndarray) -> np.ndarray:
    """Spread what a multiplication leaves in the high bits over the low ones too."""
    values = values ^ values >> np.uint64(32)
    values *= MULTIPLIER
    return values ^ values >> np.uint64(29)


def _sampled(text: bytes, rate: int) -> np.ndarray:
    """Return the windows whose hash is divisible by `rate`: the same choice on both sides."""
    starts = range(0, len(text), CHUNK_BYTES)
    chunks = (window_hashes(text[start : start + CHUNK_BYTES + WINDOW_BYTES - 1]) for start in starts)
    return np.concatenate([chunk[chunk & np.uint64(rate - 1) == 0] for chunk in chunks])


def _in_order(parts: list[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))


def _share(text: bytes, known: np.ndarray, rate: int) -> float:
    hashes = _in_order([_sampled(text, rate)])  # sorted, because that makes the search five times as fast
    if not len(hashes) or not len(known):
        return 0.0
    places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return float(np.mean(known[places] == hashes))
