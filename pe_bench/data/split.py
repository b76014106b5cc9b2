"""The split into training and validation documents, which follows from their text, not from chance.

A validation document is left out if the training text has too many of its 48-byte windows.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pe_bench.data.sources import Document, character_boundary
from pe_bench.errors import require
from pe_bench.system.cost import count

MIN_WHOLE_DOCUMENTS = 5  # if there are fewer documents, each is cut in two
PIECE_BYTES = 16_384  # a piece of a document has two thirds of it or more, so that long windows fit
WINDOW_BYTES = 48
MAX_OVERLAP = 0.3  # the largest share of a validation document's windows that may be in the training text
# Above this many training windows only every 2nd, 4th, ... is kept, so that memory and time stay small.
KEPT_WINDOWS = 2_000_000
HASHED_CHUNK_BYTES = 1 << 20  # a long text is hashed in parts, at 8 bytes for each byte of text
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def split_corpus(
    documents: list[Document], validation: list[Document] | None, fraction: float, least: int = 1
) -> tuple[list[Document], list[Document]]:
    """Return the training and the validation documents, without copies and without overlap.

    validation: the source's own validation documents. fraction: of the documents, for validation if the
    source has none; 1 leaves no training documents, as for a Hugging Face model. least: the number of
    validation documents below which documents are cut into pieces. Raises `UserError` for an empty split,
    except without training documents by `fraction` 1.
    """
    train = _without_copies(documents)
    if fraction == 1 and validation is None:
        return [], train
    if validation is not None:
        held_out = _without_copies(validation)
    else:
        train = _in_pieces(train, math.ceil(least / fraction))
        split = _cut_each if len(train) < MIN_WHOLE_DOCUMENTS else _hold_out_by_size
        train, held_out = split(train, fraction)
    kept = without_overlap(held_out, train)
    sizes = f"{len(train)} training and {len(held_out)} validation documents"
    require(bool(train), f"{sizes}: use more documents, or a smaller data.validation_fraction")
    require(bool(held_out), f"{sizes}: use more text")
    message = (
        f"{sizes}, and training has more than {MAX_OVERLAP:.0%} of each one's {WINDOW_BYTES}-byte windows"
    )
    require(bool(kept), f"{message}: use more varied text, or name other text by data.validation_path")
    return train, kept


def _without_copies(documents: Sequence[Document]) -> list[Document]:
    """Return the documents; of several with the same text, the last in the place of the first."""
    return list({document.sha256: document for document in documents}.values())


def describe_split(
    documents: Sequence[Document], train: Sequence[Document], validation: Sequence[Document]
) -> str:
    """Return a note on documents that were cut for the split; empty if no document was cut."""
    names = {document.name for document in documents}
    is_cut = any(document.name not in names for document in (*train, *validation))
    if not is_cut or not train:
        return ""
    way_out = "data.validation_path=FILE names other text to validate on"
    amount = count(len(documents), "document")
    if any(document.name.endswith("%:]") for document in validation):
        cut = {document.name.rpartition("[")[0] for document in train}
        if not cut <= names:
            return f"{amount}, cut into {len(cut)} pieces, of which the end of each is validated; {way_out}"
        if len(documents) == 1:
            return f"{amount}, cut in two: its end is validated; {way_out}"
        return f"{amount}, each cut in two: the end of each is validated; {way_out}"
    pieces = len(train) + len(validation)
    verb = "is" if len(validation) == 1 else "are"
    return f"{amount}, cut into {pieces} pieces, of which {len(validation)} {verb} validated; {way_out}"


def _in_pieces(documents: list[Document], wanted: int) -> list[Document]:
    """Cut long documents into equal pieces, for at least `wanted` documents if there is enough text."""
    if len(documents) >= wanted:
        return documents
    total = sum(len(document.text) for document in documents)
    size = max(PIECE_BYTES, total // wanted)
    pieces: list[Document] = []
    for document in documents:
        text = document.text
        if len(text) < 2 * PIECE_BYTES:
            pieces.append(document)
            continue
        parts = math.ceil(len(text) / size)
        even_ends = [round(len(text) * number / parts) for number in range(parts + 1)]
        ends = [character_boundary(text, end) for end in even_ends]
        for number, (begin, end) in enumerate(pairwise(ends), start=1):
            name = document.name if parts == 1 else f"{document.name}[{number}/{parts}]"
            pieces.append(Document(name, text[begin:end]))
    return _without_copies([piece for piece in pieces if piece.text])


def _hold_out_by_size(documents: list[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Hold out the document with the smallest sha256 of each 1/fraction documents of similar size."""
    # From the longest down, so that documents beyond the last stratum are short.
    by_size = sorted(documents, key=lambda document: (-len(document.text), document.sha256))
    hashes = [document.sha256 for document in by_size]
    strata = math.floor(len(documents) * fraction + 1e-9)
    ends = [round(stratum / fraction) for stratum in range(max(1, strata) + 1)]
    chosen = {min(hashes[begin:end]) for begin, end in pairwise(ends)}
    train = [document for document in documents if document.sha256 not in chosen]
    return train, [document for document in documents if document.sha256 in chosen]


def _cut_each(documents: list[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Cut every document in two: its last `fraction` is for validation."""
    percent = f"{100 * (1 - fraction):g}%"
    train, validation = [], []
    for document in documents:
        name, text = document.name, document.text
        cut = character_boundary(text, round(len(text) * (1 - fraction)))
        train.append(Document(f"{name}[:{percent}]", text[:cut]))
        validation.append(Document(f"{name}[{percent}:]", text[cut:]))
    return _without_empty(train), _without_empty(validation)


def _without_empty(documents: Sequence[Document]) -> list[Document]:
    return [document for document in documents if document.text]


def without_overlap(validation: Sequence[Document], training: Sequence[Document]) -> list[Document]:
    """Return the validation documents that share at most 30 % of their windows with training documents.

    Copies of training documents are left out, also if they are shorter than a window.
    """
    total = sum(len(document.text) for document in training)
    rate = 1 << (total // KEPT_WINDOWS).bit_length()
    parts = [np.empty(0, np.uint64)]
    parts += [_sampled_hashes(document.text, rate) for document in training]
    hashes = np.sort(np.concatenate(parts))
    copies = {document.sha256 for document in training}
    others = [document for document in validation if document.sha256 not in copies]
    return [document for document in others if _share_in_training(document.text, hashes, rate) <= MAX_OVERLAP]


def window_hashes(text: bytes) -> np.ndarray:
    """Return a uint64 hash of each 48-byte window, [max(0, len(text) - 47)].

    Hashes of 3 bytes are combined to hashes of 6, 12, 24 and 48 bytes, in a pass over the text each.
    """
    if len(text) < WINDOW_BYTES:
        return np.empty(0, np.uint64)
    values = np.frombuffer(text, np.uint8).astype(np.uint64)
    pairs = values[:-2] << np.uint64(16) | values[1:-1] << np.uint64(8)
    hashes = pairs | values[2:]
    for width in (3, 6, 12, 24):
        scaled = hashes[:-width] * HASH_MULTIPLIER
        hashes = scaled + hashes[width:]
        # The high bits of a product are spread over the low bits too.
        hashes = (hashes ^ hashes >> np.uint64(32)) * HASH_MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _sampled_hashes(text: bytes, rate: int) -> np.ndarray:
    """Return the hashes of windows that are divisible by `rate`, so that both splits keep equal windows."""
    overlap = WINDOW_BYTES - 1
    sampled = []
    for start in range(0, len(text), HASHED_CHUNK_BYTES):
        hashes = window_hashes(text[start : start + HASHED_CHUNK_BYTES + overlap])
        is_kept = hashes & np.uint64(rate - 1) == 0
        sampled.append(hashes[is_kept])
    return np.concatenate(sampled)


def _share_in_training(text: bytes, trained: np.ndarray, rate: int) -> float:
    """Return the share of a text's sampled windows that occur in the training text, 0 to 1.

    trained: the sorted hashes of the training text. rate: as in `_sampled_hashes`.
    """
    hashes = np.sort(_sampled_hashes(text, rate))  # sorted, the search is five times as fast
    if not len(hashes) or not len(trained):
        return 0.0
    indices = np.searchsorted(trained, hashes)
    nearest = trained[np.minimum(indices, len(trained) - 1)]
    return float(np.mean(nearest == hashes))
