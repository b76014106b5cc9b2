"""Encodings against numbers from papers, or from their authors' code, which `pe-bench check` shows too."""

import math

import pytest

from pe_bench.encodings.spec import PartSpec
from pe_bench.inspection.check.case import find_cases
from pe_bench.inspection.check.reference import entries_of, error_of, reference_numbers, tolerance_of


@pytest.mark.parametrize("name", reference_numbers())
def test_an_encoding_has_its_reference_numbers_and_each_can_fail(name: str) -> None:
    part, entries = part_of(name), reference_numbers()[name]
    assert [entry for entry in entries if not error_of(part, entry) < tolerance_of(entry)] == []
    for entry in entries:
        for index, number in enumerate(entry["numbers"]):
            moved = [*entry["numbers"]]
            moved[index] = number + 2 * tolerance_of(entry)
            assert error_of(part, {**entry, "numbers": moved}) > tolerance_of(entry)
        assert error_of(part, {**entry, "numbers": entry["numbers"][1:]}) == math.inf


def part_of(name: str) -> PartSpec:
    """The encoding or the modifier of this name."""
    [case] = find_cases([name])
    return next(part for part in case.spec.parts if entries_of(part) == reference_numbers()[name])
