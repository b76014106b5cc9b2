"""Oracles of tasks: they read the texts before an answer, and return what it has to be."""

from collections.abc import Callable
from itertools import pairwise


def majority(before: list[str]) -> str:
    return max("01", key=before.count)


def copied(before: list[str]) -> str:
    string, said = " ".join(before[1:]).split(" <sep>")
    place = len(said.split())
    return [*string.split(), "<end>"][place]


def selected(before: list[str]) -> str:
    return copied([text for text in before if text != "_"])


def recalled(before: list[str]) -> str:
    return before[before.index(before[-1]) + 1]


def read(before: list[str]) -> str:
    written = [bit for instruction, bit in pairwise(before) if instruction == "w"]
    return written[-1]


def indexed(before: list[str]) -> str:
    *string, _, symbol, offset = before[1:]
    return string[string.index(symbol) + int(offset)]


ORACLES: dict[str, Callable[[list[str]], str]] = {
    "majority": majority,
    "copy": copied,
    "copy_unique": copied,
    "selective_copy": selected,
    "mqar": recalled,
    "flip_flop": read,
    "index": indexed,
}
