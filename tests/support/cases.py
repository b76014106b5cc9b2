"""One case of the conformance suite."""

from collections.abc import Sequence
from functools import cache

from support import wrong_encodings

from pe_bench.inspection.catalogue import shipped
from pe_bench.inspection.check import PROPERTIES, check
from pe_bench.inspection.check.case import OVERRIDES, Case, Finding, find_cases

PROPERTY = {one.name: one for one in PROPERTIES}
LONG = "long_context"  # takes a second: only where it matters


@cache
def shipped_cases() -> dict[str, Case]:
    """Return the case of each encoding of pe-bench, from one configuration."""
    return {each.name: Case(each.name, each.spec, each.examples) for each in shipped(OVERRIDES)}


@cache
def find_case(name: str, overrides: Sequence[str] = ()) -> Case:
    if not overrides and name in shipped_cases():
        return shipped_cases()[name]
    [case] = find_cases([name, *overrides])
    return case


@cache
def find_wrong(name: str) -> Case:
    """Return a case of an encoding that is wrong on purpose."""
    return find_case(f"{wrong_encodings.__file__}:{name}")


def finding(case: Case, name: str) -> Finding:
    return check(case, PROPERTY[name])


def failures(case: Case, slow: bool = False) -> dict[str, str]:
    """Return what is measured of each property that fails; of the slow one too, if it is asked for."""
    findings = {name: finding(case, name) for name in PROPERTY if slow or name != LONG}
    return {name: one.measured for name, one in findings.items() if one.state == "fails"}
