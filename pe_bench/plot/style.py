"""Colours, strokes, sizes and names: a line has the same colour and mark in every picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TypeVar
from zlib import crc32

# Okabe and Ito's colours, which colour-blind people can tell apart, without the yellow that white swallows.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#000000", "#D55E00")
MARKERS = ("P", "<", "o", ">", "s", "D", "v", "^")  # without the cross, which marks a break point
STROKES = ("-", "--", ":")
COMMON = ("rope", "alibi", "sinusoidal", "t5", "nope", "kerple_log", "learned")  # compared most often
SALT = 178926  # chosen by trial, so that these get different colours
DASHES = (0, (4, 3))
GREY = "0.35"  # of text and marks beside the data
PALE = "0.83"  # of the other curves drawn under one
RULE = "#e5e5e5"  # of the grid

WIDTH = 9.0  # inches, of the page
LEFT = 0.75  # inches, left of the panels
FONT = 11  # points
NOTE_FONT = 9.5  # points
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
MAX_LINE = 80  # characters of a note

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Style:
    """The colour, marker and stroke of a line."""

    colour: str
    marker: str
    stroke: str


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Return a style for each label, no two alike, with the colour and marker that follow from its name.

    Where there are colours enough, of labels that would share one the later in alphabetical order get the
    next, but for the encodings that are compared most often, which keep theirs everywhere; a colour that is
    used again comes with another stroke and marker.
    """
    styles: dict[str, Style] = {}
    ordered = sorted(set(labels), key=lambda label: (label not in COMMON, label))
    for label in ordered:
        number = crc32(f"{SALT}{label}".encode())
        colours = [style.colour for style in styles.values()]
        taken = colours if len(ordered) <= len(COLOURS) else []
        colour = _least_used(COLOURS, taken, number % len(COLOURS))
        stroke = STROKES[colours.count(colour) % len(STROKES)]
        of_colour = [style for style in styles.values() if style.colour == colour]
        # What is drawn in the same stroke counts first, what is only of the same colour after it.
        used = [style.marker for style in of_colour if style.stroke == stroke] * len(ordered)
        used += [style.marker for style in of_colour]
        marker = _least_used(MARKERS, used, number // len(COLOURS) % len(MARKERS))
        styles[label] = Style(colour, marker, stroke)
    return styles


def _least_used(choices: Sequence[Choice], used: Sequence[Choice], first: int) -> Choice:
    """Return the choice that was used least, the earliest from number `first` on."""
    return min([*choices[first:], *choices[:first]], key=used.count)


def fitting(labels: Sequence[str], characters: int) -> dict[str, str]:
    """Return each label within so many characters, without its middle or without what others share."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(_without_middle(label, characters), []).append(label)
    return {
        label: short if len(group) == 1 else _from_difference(label, group, characters)
        for short, group in alike.items()
        for label in group
    }


def wrapped(sentences: Iterable[str], width: int = MAX_LINE) -> str:
    """Return the sentences in lines of at most `width` characters."""
    return fill(" ".join(sentences), width, break_long_words=False)


def _without_middle(label: str, characters: int) -> str:
    if len(label) <= characters:
        return label
    end = characters // 3
    return label[: characters - end - 1].rstrip() + ELLIPSIS + label[-end:].lstrip()


def _from_difference(label: str, group: Sequence[str], characters: int) -> str:
    """Return the label's beginning, and the words that are not in all of its group."""
    common = set.intersection(*(set(other.split()) for other in group))
    rest = " ".join(word for word in label.split() if word not in common)[1 - characters :]
    return label[: max(0, characters - len(rest) - 1)].rstrip() + ELLIPSIS + rest
