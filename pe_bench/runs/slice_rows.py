"""The rows of slices: derived from those of all targets, from their means, and from no new score."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pe_bench.errors import RunError
from pe_bench.runs.means import Means
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import perplexity_of
from pe_bench.runs.slices import KeptSlices


def rows_of_slice(
    rows: Iterable[Row], name: str, slices: KeptSlices, means_of: Callable[[Row], Means]
) -> Iterator[Row]:
    """Yield the rows of one slice of a run, for its rows of all targets; none for a set without the slice.

    A length without a number has a row without one. means_of: of a row of the slice; where it raises
    `RunError`, the scores are lost or damaged, and there is no row.
    """
    documents: dict[str, int] = {}
    empty: list[Row] = []
    for row in rows:
        mask = slices.of(row.target_hash).get(name)
        if mask is None or not mask.any():
            continue
        of_slice = replace(
            row,
            slice=name,
            judge=slices.judge(row.target_hash, name),
            slice_hash=slices.hash_of(row.target_hash, name),
            targets=int(mask.sum()),
        )
        if row.bits_per_byte is None:
            empty.append(of_slice)
            continue
        try:
            means = means_of(of_slice)
        except RunError:
            continue
        documents[row.target_hash] = means.documents
        yield _with_numbers(of_slice, means)
    for row in empty:
        if row.target_hash in documents:
            yield replace(row, documents=documents[row.target_hash])


def _with_numbers(row: Row, means: Means) -> Row:
    assert means.sizes is not None, "the means of a slice have the sizes of its clusters"
    nll = means.level * math.log(2) * float(means.sizes.sum()) / row.targets
    return replace(
        row,
        nll=nll,
        perplexity=perplexity_of(nll),
        bits_per_byte=means.level,
        documents=means.documents,
    )
