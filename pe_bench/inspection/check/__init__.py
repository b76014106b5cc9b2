"""The conformance suite: the checks of every encoding, pe-bench's own and a person's alike.

Each function of these modules whose docstring says where to look is a check, and its name is the property's.
The docstring begins with what must hold. The function returns what was measured, and raises `FailureError` or
`UnclaimedError`.
"""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

from pe_bench.inspection.check import decoder, layers
from pe_bench.inspection.check.case import SHAPES, Case, Finding, changed_hooks, judge, line_of


class Property(NamedTuple):
    """A property that an encoding must have, or may claim."""

    name: str
    meaning: str  # what must hold, in a sentence
    look: str  # where the fault may be
    check: Callable[[Case], str]  # returns what was measured, as text


def _property(check: Callable[[Case], str]) -> Property:
    """Return the property of a check, as the check's docstring describes it."""
    paragraphs = (inspect.getdoc(check) or "").split("\n\n")
    meaning, look, *_ = (" ".join(text.split()) for text in paragraphs)
    meaning = meaning[0].lower() + meaning[1:].removesuffix(".")
    look = look.removeprefix("Look at: ").removesuffix(".")
    return Property(check.__name__, meaning, look, check)


def _properties(module: ModuleType) -> list[Property]:
    """Return the properties that a module checks, in its order."""
    functions = [value for value in vars(module).values() if inspect.isfunction(value)]
    own = [function for function in functions if function.__module__ == module.__name__]
    checks = [function for function in own if "Look at: " in (function.__doc__ or "")]
    return list(map(_property, checks))


PROPERTIES = (*_properties(decoder), *_properties(layers))
BASICS = PROPERTIES[:3]  # the first that fails ends the check: all others would fail, with wrong advice


def check(case: Case, prop: Property) -> Finding:
    """Check one property, and name the lines of the hooks that may be wrong."""
    finding = judge(prop.check, case)
    if finding.state != "fails" or prop in BASICS:
        return finding
    changed = changed_hooks(case.encoding, SHAPES)
    lines = dict.fromkeys(f"{line_of(part, hook)} {hook}" for part, hook in changed)
    return finding._replace(lines=tuple(lines))


def check_all(case: Case) -> Iterator[tuple[Property, Finding]]:
    """Check the properties in order; a basic property that fails is the last, because the others need it."""
    for prop in PROPERTIES:
        finding = check(case, prop)
        yield prop, finding
        if prop in BASICS and finding.state == "fails":
            return
