"""Names shortened to fit, and notes in lines."""

from collections.abc import Iterable, Sequence
from textwrap import fill

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
MAX_LINE = 118  # characters of a note


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
