"""The mark and the colour of each verdict."""

from dataclasses import dataclass

from pe_bench.render.grid import Cell


@dataclass(frozen=True)
class Look:
    """How a verdict is shown.

    colour: on a terminal, where it only repeats the word or its mark. mark: after a number. of_models: before
    the mark of `unclear`, if the verdict is sure for the models that were scored.
    """

    colour: str = ""
    mark: str = ""
    of_models: str = ""


OF_NUMBERS = {
    "improves": Look("cyan", "v", "v"),
    "holds": Look("green", "", "="),
    "degrades": Look("yellow", ">", ">"),
    "fails": Look("bold red", "!", "!"),
    "unclear": Look("magenta", "?"),
    "better": Look("cyan", "b", "b"),
    "same": Look("green"),
    "worse": Look("bold red", "w", "w"),
}
OF_TASKS = {
    "solves": Look("green", "", "="),
    "partial": Look("yellow", ">", ">"),
    "chance": Look("bold red", "!", "!"),
    "finds": Look("green"),
    "partly": Look("yellow"),
}
OF_LINES = {
    "yes": Look("green"),
    "no": Look("yellow"),
    "not learned": Look("", "*"),
    "not claimed": Look("dim"),
    "anchor": Look("dim"),
}
VERDICTS = OF_NUMBERS | OF_TASKS | OF_LINES
NO_LOOK = Look()


def verdict_cell(word: str) -> Cell:
    """Return a cell with the word of a verdict, in its colour."""
    return Cell(word, verdict=word, colour=look_of(word).colour)


def look_of(verdict: str) -> Look:
    """Return the mark and the colour of a verdict; a word that is no verdict has neither."""
    return VERDICTS.get(verdict, NO_LOOK)
