"""The mark and the colour of each verdict."""

from dataclasses import dataclass

from pe_bench.render.grid import Cell


@dataclass(frozen=True)
class Mark:
    """The mark of a verdict and its colour."""

    colour: str = ""  # the colour on a terminal, which only repeats the word or its mark
    text: str = ""  # the sign after a number
    of_models: str = ""  # the sign before the mark of `unclear`, if the verdict is sure for the scored models


NUMBER_VERDICTS = {
    "improves": Mark("cyan", "v", "v"),
    "holds": Mark("green", "", "="),
    "degrades": Mark("yellow", ">", ">"),
    "fails": Mark("bold red", "!", "!"),
    "unclear": Mark("magenta", "?"),
    "better": Mark("cyan", "b", "b"),
    "same": Mark("green"),
    "worse": Mark("bold red", "w", "w"),
}
TASK_VERDICTS = {
    "solves": Mark("green", "", "="),
    "partial": Mark("yellow", ">", ">"),
    "chance": Mark("bold red", "!", "!"),
    "finds": Mark("green"),
    "partly": Mark("yellow"),
}
LINE_VERDICTS = {
    "yes": Mark("green"),
    "no": Mark("yellow"),
    "not learned": Mark("", "*"),
    "not claimed": Mark("dim"),
    "anchor": Mark("dim"),
}
VERDICTS = NUMBER_VERDICTS | TASK_VERDICTS | LINE_VERDICTS
NO_MARK = Mark()


def verdict_cell(word: str) -> Cell:
    """Return a cell with the word of a verdict, in its colour."""
    return Cell(word, verdict=word, colour=mark_of(word).colour)


def mark_of(verdict: str) -> Mark:
    """Return the mark and the colour of a verdict; a word that is no verdict has neither."""
    return VERDICTS.get(verdict, NO_MARK)
