"""Names that fit where they stand, numbers as people write them, and notes."""

from collections.abc import Iterable, Sequence
from textwrap import fill

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
LINE = 118  # characters of a note


def fitting(labels: Sequence[str], characters: int) -> dict[str, str]:
    """Each label within so many characters: its middle left out, or what it shares with one alike."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(_without_middle(label, characters), []).append(label)
    return {
        label: short if len(group) == 1 else _from_difference(label, group, characters)
        for short, group in alike.items()
        for label in group
    }


def plain(number: float) -> str:
    """Three digits or more, without powers of ten up to a million."""
    return f"{number:.3g}" if number < 100 or number >= 1e6 else f"{number:.0f}"


def wrapped(sentences: Iterable[str]) -> str:
    """A note in lines of at most `LINE` characters."""
    return fill(" ".join(sentences), LINE, break_long_words=False)


def _without_middle(label: str, characters: int) -> str:
    if len(label) <= characters:
        return label
    end = characters // 3
    return label[: characters - end - 1].rstrip() + ELLIPSIS + label[-end:].lstrip()


def _from_difference(label: str, group: Sequence[str], characters: int) -> str:
    """The label's beginning, and the words that are not in all of its group."""
    common = set.intersection(*(set(one.split()) for one in group))
    own = " ".join(word for word in label.split() if word not in common)[1 - characters :]
    return label[: max(0, characters - len(own) - 1)].rstrip() + ELLIPSIS + own
