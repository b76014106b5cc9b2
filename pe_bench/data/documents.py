"""A document, and cutting documents to size."""

import codecs
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Document:
    """A name to show, and the bytes of a text, which are valid UTF-8."""

    name: str
    text: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


def read_newlines(text: bytes, newlines: str) -> bytes:
    r"""Return a text with `\n` for every line end and without a byte-order mark; with `keep`, as it is.

    Both come from the machine that wrote the text: a model would learn them and be scored on them.
    """
    if newlines == "keep":
        return text
    return text.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


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
