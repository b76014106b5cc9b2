"""Slices are what a plain reading of their definition gives, whatever the tokenizer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scoring import BLOCK, DATA, EVAL, scored, trained_model

from pe_bench.data.packed import Split
from pe_bench.runs.means import NOVEL, RECALL, SLICES, read_slices
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.slices import MIN_BYTES, text_slices
from pe_bench.scoring.targets import TargetBlocks, target_blocks

TRAIN_LENGTH, LONGEST = 16, 96


def split_of(documents: list[list[int]], bytes_of: list[int]) -> Split:
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    ends = [np.cumsum([bytes_of[token] for token in document]) for document in documents]
    tokens = np.concatenate([np.array(document, np.uint16) for document in documents])
    return Split(tokens, starts, [], 0, np.concatenate(ends).astype(np.uint32))


def repetitive(length: int, seed: int, vocabulary: int = 12) -> list[int]:
    """Return a text in which pieces of different sizes come back, near and far."""
    generator = np.random.default_rng(seed)
    text: list[int] = []
    while len(text) < length:
        begin = int(generator.integers(0, max(1, len(text))))
        copied = text[begin : begin + int(generator.integers(4, 24))]
        text += copied if generator.random() < 0.5 else generator.integers(0, vocabulary, 9).tolist()
    return text[:length]


def blocks_of(split: Split, count: int = 99, target_tokens: int = 8) -> TargetBlocks:
    return target_blocks(split, LONGEST, target_tokens, count, 0, "da7a")


def last_block(split: Split) -> TargetBlocks:
    """Return the last 8 tokens of a single document as a set of one block."""
    none, end = np.zeros(1, np.int64), split.lengths[:1]
    return TargetBlocks(none, end, none, none, end, LONGEST, 8, "da7a")


def by_definition(split: Split, blocks: TargetBlocks, train_length: int) -> tuple[list[bool], list[bool]]:
    """Return which targets are recall and novel by looking at every earlier place of their windows."""
    assert split.byte_ends is not None
    recall, novel = [], []
    for window in paired_plan(blocks, blocks.max_length).windows:
        tokens = split.document(window.document).tolist()
        begin = int(split.starts[window.document])
        sizes = np.diff(split.byte_ends[begin : begin + len(tokens)].astype(int), prepend=0)
        for target in range(window.start + window.size - window.targets, window.start + window.size):
            size = next((n for n in range(1, target + 1) if sizes[target - n : target].sum() >= MIN_BYTES), 0)
            run_up = tokens[target - size : target]
            places = [
                place
                for place in range(window.start + size, target)
                if size and tokens[place - size : place] == run_up
            ]
            source = max(places, default=None)
            novel.append(source is None)
            recall.append(
                source is not None and target - source > train_length and tokens[source] == tokens[target]
            )
    return recall, novel


@pytest.mark.parametrize("bytes_of", [[1] * 12, [1 + token % 5 for token in range(12)], [9] * 150])
def test_slices_are_those_of_their_definition(bytes_of):
    sizes = enumerate((700, 150, 400))
    split = split_of([repetitive(size, seed, len(bytes_of)) for seed, size in sizes], bytes_of)
    blocks = blocks_of(split)
    found = text_slices(split, blocks, TRAIN_LENGTH)
    recall, novel = by_definition(split, blocks, TRAIN_LENGTH)
    assert sum(recall) > 20 and sum(novel) > 20
    assert (found[RECALL].tolist(), found[NOVEL].tolist()) == (recall, novel)


def test_parts_of_a_block_have_windows_of_their_own():
    split = split_of([repetitive(700, seed=4)], [1] * 12)
    blocks = blocks_of(split, target_tokens=32)
    assert paired_plan(blocks, LONGEST).windows[0].targets == 8
    recall, novel = by_definition(split, blocks, TRAIN_LENGTH)
    found = text_slices(split, blocks, TRAIN_LENGTH)
    assert (found[RECALL].tolist(), found[NOVEL].tolist()) == (recall, novel)


def copied_text(distance: int) -> Split:
    """Return a text in which one run of 12 tokens comes back after so many tokens, and nothing else does."""
    run, filling = list(range(12)), iter(range(12, 999))
    between = [next(filling) for _ in range(distance - len(run))]
    before = [next(filling) for _ in range(LONGEST + 20 - distance - len(run))]
    return split_of([[*before, *run, *between, *run]], [1] * 999)


@pytest.mark.parametrize(("distance", "recalled"), [(16, 0), (17, 4), (84, 4)])
def test_a_copy_is_recall_from_one_token_beyond_the_training_length_on(distance, recalled):
    split = copied_text(distance)
    found = text_slices(split, last_block(split), TRAIN_LENGTH)
    assert found[RECALL].sum() == recalled, "the first 8 bytes of a run of 12 are its n-gram"


def test_a_source_before_the_window_is_none():
    split = copied_text(92)
    found = text_slices(split, last_block(split), TRAIN_LENGTH)
    assert not found[RECALL].any() and found[NOVEL].all()


def test_a_smaller_set_has_a_part_of_the_slices_of_a_larger_one():
    split = split_of([repetitive(900, seed=5), repetitive(500, seed=6)], [1] * 12)
    blocks = blocks_of(split)
    part = blocks.first(9)
    kept = np.repeat(blocks.turn < 9, blocks.target_tokens)
    whole, found = (text_slices(split, some, TRAIN_LENGTH) for some in (blocks, part))
    assert all(np.array_equal(found[name], whole[name][kept]) for name in (RECALL, NOVEL))


def test_scoring_keeps_the_slices_of_its_targets(tmp_path: Path) -> None:
    trained = trained_model(tmp_path / "run")
    rows = scored(trained)
    blocks = target_blocks(DATA.validation, 24, BLOCK, EVAL.targets, EVAL.seed, DATA.hash)
    wanted = text_slices(DATA.validation, blocks, trained.config.train.length)
    kept = read_slices(tmp_path / "run")
    assert [*kept] == [rows[0].target_hash] == [blocks.hash]
    assert all(np.array_equal(kept[blocks.hash][name].mask, mask) for name, mask in wanted.items())


def test_nested_sets_that_are_not_asked_for_get_their_slices_too(tmp_path: Path) -> None:
    trained = trained_model(tmp_path / "run")
    smaller = scored(trained, replace(EVAL, targets=3))
    (tmp_path / "run" / SLICES).unlink()
    larger = scored(trained)
    hashes = {smaller[0].target_hash, larger[0].target_hash}
    assert len(hashes) == 2 and read_slices(tmp_path / "run").keys() == hashes
