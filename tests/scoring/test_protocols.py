"""The tokens that a protocol scores, and the context of each."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.numbered_text import CUTS, DATA, SPLIT, TEXT, blocks_of, bytes_of, contexts, split_of

from pe_bench.config.compose import compose_config
from pe_bench.config.schema import EvalConfig, Half
from pe_bench.data.packed import Split
from pe_bench.scoring.protocols import (
    Plan,
    batches,
    nonoverlapping_plan,
    paired_plan,
    scores_of,
    sliding_plan,
)
from pe_bench.scoring.stages import SEARCH_BLOCKS, blocks_to_search_on
from pe_bench.scoring.targets import TargetBlocks, scored_documents, target_blocks

EVERY_TARGET_BUT_THE_FIRST = [
    1_000 * document + place for document in CUTS for place in range(1, CUTS[document])
]


def test_paired_windows_end_with_a_part_of_a_block_and_score_it_whole() -> None:
    blocks = blocks_of()
    assert len(blocks.end) == 9
    for length, size in [(2, 1), (13, 1), (16, 2), (31, 2), (32, 4)]:
        # Target k of a part sees what is fed before it: the length without the part, and k tokens of it.
        expected = [
            (1_000 * int(document) + int(end) - 4 + k, length - size + k % size)
            for document, end in zip(blocks.document, blocks.end, strict=True)
            for k in range(4)
        ]
        assert contexts(paired_plan(blocks, length)) == expected


@pytest.mark.parametrize("length", [1, 8, 39, 56, 200])
def test_nonoverlapping_scores_every_token_but_the_first_once(length: int) -> None:
    found = contexts(nonoverlapping_plan(DATA, TEXT, length))
    assert [target for target, _ in found] == EVERY_TARGET_BUT_THE_FIRST
    # Windows begin at multiples of the length: the context grows to it and begins again.
    assert all(seen == (target % 1_000 - 1) % length + 1 for target, seen in found)


@pytest.mark.parametrize("length", [1, 8, 13, 39, 56, 200])
@pytest.mark.parametrize("stride", [1, 3, 13])
def test_sliding_scores_every_token_but_the_first_once(length: int, stride: int) -> None:
    stride = min(stride, length)
    found = contexts(sliding_plan(DATA, TEXT, length, stride))
    assert [target for target, _ in found] == EVERY_TARGET_BUT_THE_FIRST
    for target, seen in found:
        place = target % 1_000
        if place <= length:
            assert seen == place, "the first window has no earlier text"
        else:
            assert length - stride < seen <= length, "later windows score their new tokens only"


PLANS: dict[str, Callable[[int], Plan]] = {
    "paired": lambda length: paired_plan(blocks_of(), length),
    "nonoverlapping": lambda length: nonoverlapping_plan(DATA, TEXT, length),
    "sliding": lambda length: sliding_plan(DATA, TEXT, length, length // 2),
}
every_protocol = pytest.mark.parametrize("plan_of", PLANS.values(), ids=PLANS.keys())


@every_protocol
def test_a_plan_has_the_documents_bytes_and_contexts_of_its_targets(plan_of: Callable[[int], Plan]) -> None:
    plans = [plan_of(length) for length in (8, 15, 32)]
    assert len({plan.target_hash for plan in plans}) == 1
    assert len({tuple(target for target, _ in contexts(plan)) for plan in plans}) == 1
    for plan in plans:
        scored = [divmod(target, 1_000) for target, _ in contexts(plan)]
        assert plan.context_mean == pytest.approx(np.mean([seen for _, seen in contexts(plan)]), rel=1e-12)
        scores = scores_of(plan, SPLIT, np.zeros(len(scored)))
        assert scores.document.tolist() == [document for document, _ in scored]
        assert scores.bytes.tolist() == [bytes_of(*target) for target in scored]
        assert plan.documents == len({document for document, _ in scored})
        for batch_tokens in (1, 33, 10_000):
            made = list(batches(plan.windows, batch_tokens))
            assert [window for batch in made for window in batch] == plan.windows
            for batch in made:
                assert len({(window.size, window.first, window.targets) for window in batch}) == 1
                assert len(batch) == 1 or sum(window.size for window in batch) <= batch_tokens


# Target blocks have their whole context, never overlap, and follow from data and seed

SPLIT_TARGETS = split_of(400, 90, 100, 250, 103)


def chosen_blocks(split: Split = SPLIT_TARGETS, **changes) -> TargetBlocks:
    usual = {"max_length": 100, "target_tokens": 4, "count": 20, "seed": 0, "data_hash": "x"}
    return target_blocks(split, **{**usual, **changes})


@pytest.mark.parametrize("count", [1, 4, 20, 10_000])
def test_every_block_has_its_context_and_none_overlap(count):
    blocks = chosen_blocks(count=count)
    assert (blocks.end >= 100).all() and (blocks.end <= SPLIT_TARGETS.lengths[blocks.document]).all()
    for document in set(blocks.document.tolist()):
        assert (np.diff(blocks.end[blocks.document == document]) >= 4).all()
    shares = [int((blocks.document == document).sum()) for document in range(5)]
    if count == 20:  # dealt round-robin until a document is full
        assert shares[1] == 0 and shares[2] == shares[4] == 1 and abs(shares[0] - shares[3]) <= 1
    assert len(blocks) == min(count, (300 // 4 + 1) + 1 + (150 // 4 + 1) + 1)


def test_a_smaller_set_is_part_of_every_larger_one():
    whole = chosen_blocks(count=10_000)
    for count in (1, 2, 7, 77, len(whole.end)):
        small, part = chosen_blocks(count=count), whole.chosen(whole.turn < count)
        assert small.hash == part.hash and len(small.end) == count
        assert np.array_equal(small.document, part.document) and np.array_equal(small.end, part.end)


def test_the_set_follows_from_data_seed_and_sizes():
    first = chosen_blocks()
    assert first.hash == chosen_blocks().hash
    changes = [{"data_hash": "y"}, {"max_length": 99}, {"target_tokens": 2}, {"count": 19}]
    assert len({chosen_blocks(**change).hash for change in changes} | {first.hash}) == 5
    for name in ("document", "end"):
        moved = replace(first, **{name: getattr(first, name) + 1})
        assert moved.hash != first.hash, name
    many = split_of(*[110] * 9)
    assert len({tuple(chosen_blocks(many, count=3, seed=seed).document) for seed in range(10)}) > 5
    assert len({tuple(scored(10_000, seed)) for seed in range(20)}) > 2


def scored(token_budget: int, seed: int = 0) -> dict[int, int]:
    """Return how many first tokens of each document are scored, in the order of the choice."""
    return dict(scored_documents(SPLIT_TARGETS, 100, token_budget, seed).beginnings)


def test_a_budget_is_dealt_evenly_over_as_many_documents_as_it_reaches():
    assert scored(10_000) == {0: 400, 3: 250, 4: 103}, "100 tokens are not more than 100"
    assert list(scored(1).values()) == [101], "one document, even if the budget is smaller"
    assert scored(303) == {0: 101, 3: 101, 4: 101}
    assert scored(403) == {0: 150, 3: 150, 4: 103}, "what one has no room for goes to the others"
    assert len(scored(302)) == 2 and list(scored(302)) == list(scored(303))[:2]
    for budget in range(303, 753, 7):
        assert budget - 2 <= sum(scored(budget).values()) <= budget


def test_halves_of_the_documents_share_none_and_are_all_at_every_length() -> None:
    split = split_of(*range(100, 300, 10))
    for length in (90, 150):
        documents = {
            half: {document for document, _ in scored_documents(split, length, 10**6, seed, half).beginnings}
            for half, seed in (("first", 0), ("second", 1), ("both", 2))
        }
        assert documents["first"] and documents["second"] and not documents["first"] & documents["second"]
        assert documents["first"] | documents["second"] == documents["both"]
        blocks = target_blocks(split, length, 4, 50, seed=0, data_hash="x", half="first")
        assert set(blocks.document.tolist()) <= documents["first"]


@pytest.mark.parametrize("half", ["both", "first"])
def test_options_are_searched_on_blocks_that_no_run_is_scored_on(half: Half) -> None:
    split = split_of(*[200] * 20)
    evaluation = EvalConfig(targets=30, target_tokens=4, max_length=64, half=half)
    config = replace(compose_config(["encoding=rope", "train.length=16"]), eval=evaluation)
    searched = blocks_to_search_on(config, split, "x", 32)
    scored = target_blocks(split, 64, 4, 30, evaluation.seed, "x", half)
    places = [set(zip(blocks.document, blocks.end, strict=True)) for blocks in (searched, scored)]
    assert len(searched) == SEARCH_BLOCKS and len(scored) == 30 and not places[0] & places[1]
    halved = target_blocks(split, 64, 4, 10**6, evaluation.seed, "x", half)
    assert set(searched.document) <= set(halved.document)
