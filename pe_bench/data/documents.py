"""A document, and cutting documents to size."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Document:
    """A name to show, and the unchanged bytes of the source, which are valid UTF-8."""

    name: str
    text: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


def within_budget(documents: Iterable[Document], byte_budget: int | None) -> Iterator[Document]:
    """Yield documents up to `byte_budget` bytes in total; the last one is cut to fit."""
    left = byte_budget
    for document in documents:
        if left is None:
            yield document
            continue
        if len(document.text) >= left:
            text = document.text[: character_boundary(document.text, left)]
            if text:
                yield Document(document.name, text)
            return
        left -= len(document.text)
        yield document


def character_boundary(text: bytes, position: int) -> int:
    """Return the last place at or before `position` where no UTF-8 character is cut."""
    while 0 < position < len(text) and text[position] & 0xC0 == 0x80:
        position -= 1
    return position
