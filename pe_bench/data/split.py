"""Which documents are for training and which for validation: decided by their text, not by chance."""

import math
from collections.abc import Iterable

from pe_bench.data.documents import Document, character_boundary
from pe_bench.data.overlap import MAX_SHARE, WINDOW_BYTES, without_overlap
from pe_bench.errors import UserError

FEWEST_DOCUMENTS = 5  # with fewer, each document is cut in two instead


def split_corpus(
    documents: list[Document], validation: list[Document] | None, fraction: float
) -> tuple[list[Document], list[Document]]:
    """Return (training, validation) without copies; `validation` is the source's own, if it has one.

    Raises `UserError` when nothing is left on a side.
    """
    train = _without_copies(documents)
    if validation is not None:
        held_out = _without_copies(validation)
    elif len(train) < FEWEST_DOCUMENTS:
        train, held_out = _cut_each(train, fraction)
    else:
        train, held_out = _stratified(train, fraction)
    kept = without_overlap(held_out, train)
    _check_sides(train, held_out, kept)
    return train, kept


def _without_copies(documents: Iterable[Document]) -> list[Document]:
    first = {}
    for document in documents:
        first.setdefault(document.sha256, document)
    return list(first.values())


def _stratified(documents: list[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Hold out the one with the smallest sha256 of each 1/fraction documents that are next in size."""
    # From the longest down, so that the last stratum lacks only short ones.
    by_size = sorted(documents, key=lambda document: (-len(document.text), document.sha256))
    strata = max(1, math.floor(len(documents) * fraction + 1e-9))
    chosen = set()
    for stratum in range(strata):
        begin, end = round(stratum / fraction), round((stratum + 1) / fraction)
        chosen.add(min(document.sha256 for document in by_size[begin:end]))
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


def _check_sides(train: list[Document], held_out: list[Document], kept: list[Document]) -> None:
    if not train:
        raise UserError(
            f"no training documents are left ({len(held_out)} for validation): "
            "use more documents, or a smaller data.validation_fraction"
        )
    if not held_out:
        raise UserError(f"there are {len(train)} training documents and none for validation: use more text")
    if not kept:
        raise UserError(
            f"each of the {len(held_out)} validation documents is contained in the {len(train)} training "
            f"documents (more than {MAX_SHARE:.0%} of its {WINDOW_BYTES}-byte windows): "
            "use more varied text, or name other text by data.validation_path"
        )
