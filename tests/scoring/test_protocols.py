"""The tokens that a protocol scores, and the context of each."""

from collections.abc import Callable

import numpy as np
import pytest
from support.numbered_text import (
    CUTS,
    DATA,
    DOCUMENTS,
    SPLIT,
    TEXT,
    blocks_of,
    bytes_of,
    contexts,
)

from pe_bench.data.packed import Data
from pe_bench.scoring.protocols import (
    Plan,
    Window,
    batches,
    inputs,
    nonoverlapping_plan,
    paired_plan,
    sliding_plan,
    target_bytes,
    target_documents,
    targets,
)
from pe_bench.scoring.targets import ScoredText, tokens_in_a_part


def every_target_but_the_first() -> list[int]:
    return [1_000 * int(d) + place for d in DOCUMENTS for place in range(1, CUTS[int(d)])]


# paired


@pytest.mark.parametrize(("length", "size"), [(2, 1), (8, 1), (13, 1), (16, 2), (31, 2), (32, 4)])
def test_paired_windows_end_with_a_part_of_a_block_and_score_it_whole(length: int, size: int) -> None:
    blocks = blocks_of()
    assert len(blocks.end) == 9
    # Target k of a part sees what is fed before it: the length without the part, and k tokens of it.
    wanted = [
        (1_000 * int(document) + int(end) - 4 + k, length - size + k % size)
        for document, end in zip(blocks.document, blocks.end, strict=True)
        for k in range(4)
    ]
    assert contexts(paired_plan(blocks, length)) == wanted


@pytest.mark.parametrize("block", [1, 3, 12, 64, 100, 128])
def test_every_target_sees_at_least_seven_eighths_of_the_length(block: int) -> None:
    for length in range(8, 3_000, 7):
        size = tokens_in_a_part(block, length)
        assert block % size == 0 and size <= length / 8
        larger = [part for part in range(size + 1, block + 1) if block % part == 0]
        assert all(part > length / 8 for part in larger), "no larger part would do"


# nonoverlapping


@pytest.mark.parametrize("length", [1, 5, 8, 39, 56, 200])
def test_nonoverlapping_scores_every_token_but_the_first_once(length: int) -> None:
    found = contexts(nonoverlapping_plan(DATA, TEXT, length))
    assert [target for target, _ in found] == every_target_but_the_first()
    # Windows begin at multiples of the length: the context grows to it and begins again.
    assert all(seen == (target % 1_000 - 1) % length + 1 for target, seen in found)


# sliding


@pytest.mark.parametrize("length", [1, 8, 13, 39, 56, 200])
@pytest.mark.parametrize("stride", [1, 3, 8, 13])
def test_sliding_scores_every_token_but_the_first_once(length: int, stride: int) -> None:
    stride = min(stride, length)
    found = contexts(sliding_plan(DATA, TEXT, length, stride))
    assert [target for target, _ in found] == every_target_but_the_first()
    for target, seen in found:
        place = target % 1_000
        if place <= length:
            assert seen == place, "the first window has no earlier text"
        else:
            assert length - stride < seen <= length, "later windows score their new tokens only"


# all of them


PLANS: dict[str, Callable[[int], Plan]] = {
    "paired": lambda length: paired_plan(blocks_of(), length),
    "nonoverlapping": lambda length: nonoverlapping_plan(DATA, TEXT, length),
    "sliding": lambda length: sliding_plan(DATA, TEXT, length, length // 2),
}
every_protocol = pytest.mark.parametrize("plan_of", PLANS.values(), ids=PLANS.keys())


@every_protocol
@pytest.mark.parametrize("length", [8, 15, 32])
def test_the_mean_context_is_the_mean_over_targets(plan_of: Callable[[int], Plan], length: int) -> None:
    plan = plan_of(length)
    assert plan.context_mean == pytest.approx(np.mean([seen for _, seen in contexts(plan)]), rel=1e-12)


@every_protocol
def test_equal_hashes_mean_equal_targets(plan_of: Callable[[int], Plan]) -> None:
    plans = [plan_of(length) for length in (8, 15, 32)]
    assert len({plan.target_hash for plan in plans}) == 1
    assert len({tuple(target for target, _ in contexts(plan)) for plan in plans}) == 1


@pytest.mark.parametrize("protocol", ["nonoverlapping", "sliding"])
def test_other_documents_cuts_or_data_have_another_hash(protocol: str) -> None:
    def hash_of(data_hash: str, cuts: dict[int, int]) -> str:
        data = Data("files", data_hash, "bytes", ("a", "b"), 1, SPLIT, SPLIT)
        text = ScoredText(np.array([*cuts]), np.array([*cuts.values()]))
        if protocol == "sliding":
            return sliding_plan(data, text, 8, 4).target_hash
        return nonoverlapping_plan(data, text, 8).target_hash

    texts = [("a", {0: 30, 1: 30}), ("b", {0: 30, 1: 30}), ("a", {0: 30}), ("a", {0: 30, 2: 30})]
    assert len({hash_of(*text) for text in [*texts, ("a", {0: 30, 1: 31})]}) == 5


@every_protocol
def test_every_target_has_its_document_and_its_bytes(plan_of: Callable[[int], Plan]) -> None:
    plan = plan_of(8)
    scored = [divmod(target, 1_000) for target, _ in contexts(plan)]
    assert target_documents(plan.windows).tolist() == [document for document, _ in scored]
    found = target_bytes(SPLIT, plan.windows)
    assert found.dtype == np.int64
    assert found.tolist() == [bytes_of(document, place) for document, place in scored]
    assert plan.documents == len({document for document, _ in scored})


@every_protocol
@pytest.mark.parametrize("batch_tokens", [1, 33, 64, 10_000])
def test_batches_keep_the_order_and_never_mix_shapes(
    plan_of: Callable[[int], Plan], batch_tokens: int
) -> None:
    plan = plan_of(15)
    made = list(batches(plan.windows, batch_tokens))
    assert [window for batch in made for window in batch] == plan.windows
    for batch in made:
        assert len({(window.size, window.first, window.targets) for window in batch}) == 1
        assert len(batch) == 1 or sum(window.size for window in batch) <= batch_tokens


def test_batches_are_as_large_as_they_may_be() -> None:
    windows = [Window(0, start, 8, 0, 8) for start in range(0, 80, 8)]
    assert [len(batch) for batch in batches(windows, 24)] == [3, 3, 3, 1]
    assert [len(batch) for batch in batches(windows, 31)] == [3, 3, 3, 1]
    assert [len(batch) for batch in batches(windows, 7)] == [1] * 10, "one window is always scored"
    assert list(batches([], 24)) == []
    # A batch reads the same outputs of every window.
    windows = [Window(0, 0, 8, 0, 8), Window(0, 2, 8, 6, 2), Window(0, 4, 8, 6, 2), Window(0, 5, 8, 6, 1)]
    assert [len(batch) for batch in batches(windows, 1_000)] == [1, 2, 1]


def test_token_ids_reach_the_model_as_whole_numbers_it_can_index_with() -> None:
    batch = [Window(2, 70, 8, 3, 5)]
    assert inputs(SPLIT, batch).tolist() == [list(range(2_070, 2_078))]
    assert targets(SPLIT, batch).tolist() == [list(range(2_074, 2_079))]
    assert str(inputs(SPLIT, batch).dtype) == str(targets(SPLIT, batch).dtype) == "torch.int64"
