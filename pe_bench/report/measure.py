"""The quantity of a table's levels: bits per byte of text, or the share of examples that are right."""

from dataclasses import dataclass

from pe_bench.runs.rows import TASK


@dataclass(frozen=True)
class Measure:
    """A quantity. name: in a row of details; unit: on an axis; meaning: in a title."""

    name: str
    unit: str
    meaning: str
    higher_is_better: bool = False


BITS = Measure("bits/byte", "bits per byte", "bits per byte (lower is better)")
EXACT = Measure(
    "exact",
    "exact match",
    "exact match: the share of examples all of whose answers are right (higher is better)",
    higher_is_better=True,
)


def measure_of(protocol: str) -> Measure:
    return EXACT if protocol == TASK else BITS
