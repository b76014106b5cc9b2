"""Which documents are for training and which for validation: decided by their text, not by chance.

A validation document of which the training text holds too much already, by windows of 48 bytes, is left out.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pe_bench.data.sources import Document, character_boundary
from pe_bench.errors import require

FEWEST_DOCUMENTS = 5  # with fewer, each document is cut in two instead
LEAST_PIECE = 16_384  # bytes of a piece, so that long windows fit into one
WINDOW_BYTES = 48
MAX_SHARE = 0.3
# Above this many training windows only every 2nd, 4th, ... is kept, so that memory and time stay small.
KEPT_WINDOWS = 2_000_000
CHUNK_BYTES = 1 << 20  # a long text is hashed in parts, at 8 bytes for each byte of text
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def split_corpus(
    documents: list[Document], validation: list[Document] | None, fraction: float, least: int = 1
) -> tuple[list[Document], list[Document]]:
    """Return (training, validation) without copies; `validation` is the source's own, if it has one.

    least: documents are cut into pieces where fewer would be validated. A fraction of 1 leaves nothing for
    training, as a checkpoint needs it. Raises `UserError` when nothing is left on another side.
    """
    train = _without_copies(documents)
    if fraction == 1 and validation is None:
        return [], train
    if validation is not None:
        held_out = _without_copies(validation)
    else:
        train = _in_pieces(train, math.ceil(least / fraction))
        split = _cut_each if len(train) < FEWEST_DOCUMENTS else _stratified
        train, held_out = split(train, fraction)
    kept = without_overlap(held_out, train)
    sizes = f"{len(train)} training and {len(held_out)} validation documents"
    require(bool(train), f"{sizes}: use more documents, or a smaller data.validation_fraction")
    require(bool(held_out), f"{sizes}: use more text")
    message = f"{sizes}, and training has more than {MAX_SHARE:.0%} of each one's {WINDOW_BYTES}-byte windows"
    require(bool(kept), f"{message}: use more varied text, or name other text by data.validation_path")
    return train, kept


def _without_copies(documents: Sequence[Document]) -> list[Document]:
    return list({document.sha256: document for document in documents}.values())


def describe_split(
    documents: Sequence[Document], train: Sequence[Document], validation: Sequence[Document]
) -> str:
    """Return a note on documents that were cut to be split; empty where each is on one side as a whole."""
    names = {document.name for document in documents}
    pieces = sum(document.name not in names for document in (*train, *validation))
    if not pieces or not train:
        return ""
    way_out = "data.validation_path=FILE names other text to validate on"
    if any(document.name.endswith("%:]") for document in validation):
        return f"{len(documents)} documents, each cut in two: the end of each is validated; {way_out}"
    amounts = f"{len(documents)} documents, cut into {len(train) + len(validation)} pieces"
    return f"{amounts}, of which {len(validation)} are validated; {way_out}"


def _in_pieces(documents: list[Document], wanted: int) -> list[Document]:
    """Cut long documents into equal pieces, so that there are as many as wanted if they are long."""
    if len(documents) >= wanted:
        return documents
    size = max(LEAST_PIECE, sum(len(document.text) for document in documents) // wanted)
    pieces: list[Document] = []
    for document in documents:
        text = document.text
        count = math.ceil(len(text) / size) if len(text) >= 2 * LEAST_PIECE else 1
        ends = [character_boundary(text, round(len(text) * end / count)) for end in range(count + 1)]
        for number, (begin, end) in enumerate(pairwise(ends), start=1):
            name = document.name if count == 1 else f"{document.name}[{number}/{count}]"
            pieces.append(Document(name, text[begin:end]))
    return _without_copies([piece for piece in pieces if piece.text])


def _stratified(documents: list[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Hold out the one with the smallest sha256 of each 1/fraction documents that are next in size."""
    # From the longest down, so that the last stratum lacks only short ones.
    by_size = sorted(documents, key=lambda document: (-len(document.text), document.sha256))
    strata = max(1, math.floor(len(documents) * fraction + 1e-9))
    ends = [round(stratum / fraction) for stratum in range(strata + 1)]
    chosen = {min(document.sha256 for document in by_size[slice(*pair)]) for pair in pairwise(ends)}
    train = [document for document in documents if document.sha256 not in chosen]
    return train, [document for document in documents if document.sha256 in chosen]


def _cut_each(documents: list[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Cut every document: its beginning is for training, its last `fraction` for validation."""
    percent = f"{100 * (1 - fraction):g}%"
    train, validation = [], []
    for document in documents:
        text = document.text
        cut = character_boundary(text, round(len(text) * (1 - fraction)))
        train.append(Document(f"{document.name}[:{percent}]", text[:cut]))
        validation.append(Document(f"{document.name}[{percent}:]", text[cut:]))
    return [one for one in train if one.text], [one for one in validation if one.text]


def without_overlap(validation: Sequence[Document], training: Sequence[Document]) -> list[Document]:
    """Return the validation documents of which at most 30 % is in training, and none as a whole."""
    total = sum(len(document.text) for document in training)
    rate = 1 << max(0, (total // KEPT_WINDOWS).bit_length())
    parts = [_sampled(document.text, rate) for document in training]
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
    copies = {document.sha256 for document in training}
    return [
        document
        for document in validation
        if document.sha256 not in copies and _share(document.text, hashes, rate) <= MAX_SHARE
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
        hashes = hashes[:-width] * MULTIPLIER + hashes[width:]
        # What a multiplication leaves in the high bits is spread over the low ones too.
        hashes = (hashes ^ hashes >> np.uint64(32)) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _sampled(text: bytes, rate: int) -> np.ndarray:
    """Return the windows whose hash is divisible by `rate`: the same choice on both sides."""
    starts = range(0, len(text), CHUNK_BYTES)
    chunks = (window_hashes(text[start : start + CHUNK_BYTES + WINDOW_BYTES - 1]) for start in starts)
    return np.concatenate([chunk[chunk & np.uint64(rate - 1) == 0] for chunk in chunks])


def _share(text: bytes, trained: np.ndarray, rate: int) -> float:
    hashes = np.sort(_sampled(text, rate))  # because that makes the search five times as fast
    if not len(hashes) or not len(trained):
        return 0.0
    indices = np.minimum(np.searchsorted(trained, hashes), len(trained) - 1)
    return float(np.mean(trained[indices] == hashes))
