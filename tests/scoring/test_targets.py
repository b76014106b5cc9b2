"""Target blocks have their whole context, never overlap, and follow from data and seed."""

import dataclasses

import numpy as np
import pytest

from pe_bench.data.packed import Data, Split, reach, summary
from pe_bench.errors import UserError
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.targets import TargetBlocks, scored_documents, target_blocks, tokens_needed


def split_of(*lengths: int) -> Split:
    """Document d holds 1000 d, 1000 d + 1, ...; every token has 2 bytes."""
    documents = [np.arange(length, dtype=np.uint16) + 1_000 * index for index, length in enumerate(lengths)]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    ends = np.concatenate([2 * np.arange(1, length + 1, dtype=np.uint32) for length in lengths])
    names = [str(index) for index in range(len(lengths))]
    return Split(np.concatenate(documents), starts, names, 2 * sum(lengths), ends)


SPLIT = split_of(400, 90, 100, 250, 103)


def blocks_of(
    split: Split = SPLIT, max_length=100, target_tokens=4, count=20, seed=0, data_hash="x"
) -> TargetBlocks:
    return target_blocks(split, max_length, target_tokens, count, seed, data_hash)


def ends_of(blocks: TargetBlocks, document: int) -> np.ndarray:
    return blocks.end[blocks.document == document]


@pytest.mark.parametrize("count", [1, 3, 4, 20, 77, 10_000])
def test_every_block_has_its_context_and_none_overlap(count):
    blocks = blocks_of(count=count)
    assert (blocks.end >= 100).all() and (blocks.end <= SPLIT.lengths[blocks.document]).all()
    for document in set(blocks.document.tolist()):
        assert (np.diff(ends_of(blocks, document)) >= 4).all()


def test_blocks_are_dealt_round_robin_until_a_document_is_full():
    shares = [int((blocks_of(count=20).document == document).sum()) for document in range(5)]
    assert shares[1] == 0, "shorter than the context"
    assert shares[2] == shares[4] == 1, "full"
    assert sum(shares) == 20 and abs(shares[0] - shares[3]) <= 1
    assert len(set(blocks_of(count=3).document.tolist())) == 3


def test_fewer_blocks_than_asked_for_only_when_there_are_no_more():
    blocks = blocks_of(count=10_000)
    assert len(blocks.end) == (300 // 4 + 1) + 1 + (150 // 4 + 1) + 1


def test_a_smaller_set_is_part_of_every_larger_one():
    whole = blocks_of(count=10_000)
    for count in (1, 2, 3, 7, 20, 77, len(whole.end)):
        small, part = blocks_of(count=count), whole.first(count)
        assert small.hash == part.hash and len(small.end) == count
        assert np.array_equal(small.document, part.document) and np.array_equal(small.end, part.end)
    assert len({blocks_of(count=count).hash for count in range(1, 30)}) == 29


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20, 64, 100])
def test_blocks_are_spread_over_a_document(count):
    """Every stretch of the text has nearly its share of the blocks, at most two off."""
    ends = np.sort(blocks_of(split_of(900), count=count).end - 100)
    for share in (0.25, 0.5, 0.75):
        assert abs(int((ends <= share * 800).sum()) - share * count) <= 2
    assert count > 1 or abs(int(ends[0]) - 400) <= 4, "one block lies in the middle"


@pytest.mark.parametrize(
    ("max_length", "size"), [(100, 4), (100, 96), (512, 64), (511, 64), (64, 64), (9, 128)]
)
def test_every_window_of_every_length_and_part_lies_in_its_document(max_length, size):
    split = split_of(*[tokens_needed(max_length, size) + extra for extra in (0, 1, 200)])
    blocks = blocks_of(split, max_length=max_length, target_tokens=size)
    for length in range(2, max_length + 1):
        assert min(window.start for window in paired_plan(blocks, length).windows) >= 0
    starts = [
        min(window.start for window in paired_plan(blocks, length).windows)
        for length in range(2, max_length + 1)
    ]
    assert min(starts) == 0, "no document has to be longer"


def test_the_set_follows_from_data_seed_and_sizes():
    first, again = blocks_of(), blocks_of()
    assert first.hash == again.hash and np.array_equal(first.end, again.end)
    assert np.array_equal(first.document, again.document)
    changes = [{"data_hash": "y"}, {"max_length": 99}, {"target_tokens": 2}, {"count": 19}]
    assert len({blocks_of(**change).hash for change in changes} | {first.hash}) == 5
    many = split_of(*[110] * 9)
    assert len({tuple(blocks_of(many, count=3, seed=seed).document) for seed in range(10)}) > 5
    assert len({tuple(scored(10_000, seed)) for seed in range(20)}) > 2


def test_too_short_documents_are_refused_with_both_numbers():
    with pytest.raises(UserError, match="has the 500 tokens .*: the longest has 400"):
        blocks_of(max_length=500)
    with pytest.raises(UserError, match="has the 401 tokens .*: the longest has 400"):
        scored_documents(SPLIT, longest=400, token_budget=1_000, seed=0)


def scored(token_budget: int, seed: int = 0, longest: int = 100) -> dict[int, int]:
    """Return how many first tokens of each document are scored, in the order of the choice."""
    text = scored_documents(SPLIT, longest, token_budget, seed)
    return dict(zip(text.document.tolist(), text.tokens.tolist(), strict=True))


def test_a_budget_for_everything_scores_every_long_document_whole():
    assert scored(10_000) == {0: 400, 3: 250, 4: 103}, "100 tokens are not more than 100"
    assert list(scored(1).values()) == [101], "one document, even if the budget is smaller"


def test_a_budget_is_dealt_evenly_over_as_many_documents_as_it_reaches():
    assert scored(303) == {0: 101, 3: 101, 4: 101}
    assert scored(403) == {0: 150, 3: 150, 4: 103}, "what one has no room for goes to the others"
    assert len(scored(302)) == 2 and list(scored(302)) == list(scored(303))[:2]
    for budget in range(101, 900, 7):
        chosen = scored(budget)
        assert (
            budget - 2 <= sum(chosen.values()) <= budget
            or sum(chosen.values()) == 753 < budget
            or (len(chosen) < 3 and sum(chosen.values()) == sum(SPLIT.lengths[list(chosen)]) < budget)
        )
        assert all(101 <= tokens <= SPLIT.lengths[document] for document, tokens in chosen.items())


def test_the_summary_counts_the_documents_that_reach_the_longest_length():
    assert reach(SPLIT, 250) == (2, 1_300)
    assert reach(SPLIT, 1_000) == (0, 0)
    with pytest.raises(ValueError, match="validation"):
        reach(dataclasses.replace(SPLIT, byte_ends=None), 100)
    data = Data("books", "x", "bytes", ("a", "b"), 1, split_of(10, 20), SPLIT)
    assert summary(data, 250) == (
        "books: 2 training documents (0.00 MB), 5 for validation (0.00 MB), "
        "2 of them (0.00 MB) reach 250 tokens"
    )
