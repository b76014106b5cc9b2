"""Names and lengths as notes list them."""

from collections.abc import Iterable, Sequence

MAX_NAMES = 4  # of lines in one note


def few_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def list_lengths(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(lengths)))
