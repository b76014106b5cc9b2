"""Encodings against numbers from papers, or from their authors' code, which `pe-bench check` shows too."""

import math

import pytest

from pe_bench.encodings.load import EncodingClass
from pe_bench.inspection.check.case import find_cases
from pe_bench.inspection.check.reference import Entry, error_of, reference_numbers, tolerance_of

ENTRIES = [(name, entry) for name, entries in reference_numbers().items() for entry in entries]
every_entry = pytest.mark.parametrize(("name", "entry"), ENTRIES, ids=lambda value: str(value)[:60])


def class_of(name: str) -> EncodingClass:
    """The class in the file of this name, be it an encoding or a modifier."""
    [case] = find_cases([name])
    return next(part.encoding_class for part in case.spec.parts if part.name == name)


@every_entry
def test_an_encoding_has_its_reference_numbers(name: str, entry: Entry) -> None:
    assert error_of(class_of(name), entry) < tolerance_of(entry)


@every_entry
def test_each_reference_number_can_fail(name: str, entry: Entry) -> None:
    encoding_class = class_of(name)
    for place, number in enumerate(entry["numbers"]):
        moved = [*entry["numbers"]]
        moved[place] = number + 2 * tolerance_of(entry)
        assert error_of(encoding_class, {**entry, "numbers": moved}) > tolerance_of(entry)
    assert error_of(encoding_class, {**entry, "numbers": entry["numbers"][1:]}) == math.inf
