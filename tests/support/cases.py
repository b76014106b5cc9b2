"""One case of the conformance suite."""

from collections.abc import Sequence

from pe_bench.inspection.check.case import Case, find_cases


def find_case(name: str, overrides: Sequence[str] = ()) -> Case:
    [case] = find_cases([name, *overrides])
    return case
