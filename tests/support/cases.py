"""One case of the conformance suite."""

from collections.abc import Sequence
from functools import cache

from support import wrong_encodings

from pe_bench.inspection.check.case import Case, find_cases


def find_case(name: str, overrides: Sequence[str] = ()) -> Case:
    [case] = find_cases([name, *overrides])
    return case


@cache
def find_wrong(name: str) -> Case:
    """Return a case of an encoding that is wrong on purpose."""
    return find_case(f"{wrong_encodings.__file__}:{name}")
