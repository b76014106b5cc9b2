"""Slices are what a plain reading of their definition gives, whatever the tokenizer."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scoring import DATA, EVAL, data_of, scored, trained_model
from support.scoring import TRAIN_LENGTH as TRAINED

from pe_bench.config.schema import Config, TrainConfig
from pe_bench.data.packed import Split
from pe_bench.errors import UserError
from pe_bench.runs.rows import Row, read_rows, write_rows
from pe_bench.runs.scores import (
    KEY,
    NOVEL,
    RECALL,
    load_scores,
    read_means,
    save_scores,
    score_file,
    with_level,
)
from pe_bench.scoring.plans import make_plans
from pe_bench.scoring.protocols import Plan, paired_plan
from pe_bench.scoring.slices import MIN_NGRAM_BYTES, key_slices, text_slices
from pe_bench.scoring.targets import TargetBlocks, target_blocks

TRAIN_LENGTH, LONGEST = 16, 96


def split_of(documents: list[list[int]], bytes_of: list[int]) -> Split:
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    ends = [np.cumsum([bytes_of[token] for token in document]) for document in documents]
    tokens = np.concatenate([np.array(document, np.uint16) for document in documents])
    return Split(tokens, starts, np.concatenate(ends).astype(np.uint32))


def repetitive(length: int, seed: int, vocabulary: int = 12) -> list[int]:
    """Return a text in which pieces of different sizes come back, near and far."""
    generator = np.random.default_rng(seed)
    text: list[int] = []
    while len(text) < length:
        begin = int(generator.integers(0, max(1, len(text))))
        copied = text[begin : begin + int(generator.integers(4, 24))]
        text += copied if generator.random() < 0.5 else generator.integers(0, vocabulary, 9).tolist()
    return text[:length]


def by_definition(split: Split, blocks: TargetBlocks, train_length: int) -> tuple[list[bool], list[bool]]:
    """Return which targets are recall and novel by looking at every earlier place of their windows."""
    assert split.byte_ends is not None
    recall, novel = [], []
    for window in paired_plan(blocks, blocks.max_length).windows:
        tokens = split.document(window.document).tolist()
        begin = int(split.starts[window.document])
        sizes = np.diff(split.byte_ends[begin : begin + len(tokens)].astype(int), prepend=0)
        for target in range(window.start + window.size - window.targets, window.start + window.size):
            size = next(
                (n for n in range(1, target + 1) if sizes[target - n : target].sum() >= MIN_NGRAM_BYTES), 0
            )
            run_up = tokens[target - size : target]
            places = range(window.start + size, target) if size else ()
            source = max((place for place in places if tokens[place - size : place] == run_up), default=None)
            novel.append(source is None)
            recall.append(
                source is not None and target - source > train_length and tokens[source] == tokens[target]
            )
    return recall, novel


@pytest.mark.parametrize("bytes_of", [[1] * 12, [1 + token % 5 for token in range(12)], [9] * 150])
def test_slices_are_those_of_their_definition(bytes_of):
    sizes = enumerate((700, 150, 400))
    split = split_of([repetitive(size, seed, len(bytes_of)) for seed, size in sizes], bytes_of)
    blocks = target_blocks(split, LONGEST, 8, 99, 0, "da7a")
    found = text_slices(split, blocks, TRAIN_LENGTH)
    recall, novel = by_definition(split, blocks, TRAIN_LENGTH)
    assert sum(recall) > 20 and sum(novel) > 20
    assert (found[RECALL].tolist(), found[NOVEL].tolist()) == (recall, novel)


@pytest.mark.parametrize(("distance", "recalled"), [(16, 0), (17, 4), (84, 4), (92, 0)])
def test_a_copy_is_recall_from_one_token_beyond_the_training_length_on(distance, recalled):
    run, between, before = range(12), range(12, distance), range(distance, LONGEST + 8)
    split = split_of([[*before, *run, *between, *run]], [1] * 999)  # nothing else comes back
    none, end = np.zeros(1, np.int64), split.lengths[:1]
    last_block = TargetBlocks(none, end, none, none, end, LONGEST, 8, "da7a")
    found = text_slices(split, last_block, TRAIN_LENGTH)
    assert found[RECALL].sum() == recalled, "the first 8 bytes of a run of 12 are its n-gram"
    assert distance != 92 or found[NOVEL].all(), "its source is before the window"


def plans_of(evaluation=EVAL, data=DATA) -> list[Plan]:
    config = Config({"name": "mine"}, train=TrainConfig(length=TRAINED, steps=3, batch_tokens=16))
    return make_plans(config, evaluation, data)


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    scored(trained_model(tmp_path / "judge"))
    return tmp_path / "judge"


def with_nll(judge: Path, nll_at: dict[int, list[float]]) -> Row:
    """Give the first targets of the judge these losses."""
    rows = {row.length: row for row in read_rows(judge / "eval.csv")}
    for length, values in nll_at.items():
        path = score_file(judge, rows[length])
        scores = load_scores(path)
        nll = np.full_like(scores.nll, 3.0)
        nll[: len(values)] = values
        save_scores(path, replace(scores, nll=nll))
    return rows[8]


def test_key_targets_gain_more_than_2_nats_from_far_context_and_cost_less_than_2_with_it(judge):
    row = with_nll(judge, {8: [4.1, 3.9, 4.1, 6.0, 1.0], 24: [1.9, 1.95, 2.1, 3.0, 0.1], 12: [0.0] * 5})
    found = key_slices(judge, plans_of(replace(EVAL, lengths=[8, 12])), 8)
    assert np.flatnonzero(found[row.target_hash][KEY]).tolist() == [0]


def test_a_judge_that_cannot_judge_is_refused(judge):
    other = replace(data_of(60, 60), hash="07e4da7a99")
    way_out = "targets .*: `pe-bench eval judge --lengths 8,16 --max-length 16 --targets 7`"
    for evaluation, data, problem in [
        (EVAL, other, "it needs scores at 8 and 24 on the same targets .*, with the same data and tokenizer"),
        (replace(EVAL, lengths=[8, 16], max_length=16), DATA, f"at 8 and 16 on the same {way_out}"),
        (replace(EVAL, protocol="sliding"), DATA, "--protocol paired alone"),
        (replace(EVAL, lengths=[8]), DATA, "needs a length beyond the training length 8: add it with"),
    ]:
        with pytest.raises(UserError, match=problem):
            key_slices(judge, plans_of(evaluation, data), 8)
    with_nll(judge, {8: [3.0], 24: [3.0]})
    with pytest.raises(UserError, match=r"judge: no target is key to it: .* 2 nats .*uses far context"):
        key_slices(judge, plans_of(), 8)


def test_the_command_keeps_key_targets_that_a_report_shows_with_their_judge(
    begin, train, evaluate, command, folder
):
    assert begin("encoding=rope").code == 0 and train("encoding=nope").code == 0
    [judge] = (folder / "results" / "runs").glob("nope-*")
    refused = evaluate("rope", "--key-tokens-of", judge.name[:6])
    [arguments] = re.findall(r"`pe-bench eval (.*)`", refused.err)
    assert refused.code == 2 and evaluate(*arguments.split()).code == 0, "the way out of the message"
    for row in read_rows(judge / "eval.csv"):
        scores = load_scores(score_file(judge, row))
        nll = np.where(np.arange(len(scores.nll)) < 9, {16: 5.0, 64: 1.0}.get(row.length, 3.0), scores.nll)
        scores = replace(scores, nll=nll.astype(np.float32))
        save_scores(score_file(judge, row), scores)
        write_rows(judge / "eval.csv", [with_level(row, scores), *read_rows(judge / "eval.csv")])
    outcome = evaluate("--all", "--key-tokens-of", judge.name[:6])
    assert outcome.code == 0 and f"{judge.name} is the judge of --key-tokens-of" in outcome.err
    assert not any(words.endswith(f" {KEY}") for words in read_means(judge).slices)
    shown = command("report", "--all", "--slice", "key", "--results-dir", str(folder / "results"))
    assert f"key of {judge.name}" in shown.out and "rope" in shown.out, shown.err
    rows = [row for row in read_rows(folder / "results" / "results.csv") if row.slice == KEY]
    assert {(row.encoding, row.judge, row.targets) for row in rows} == {("rope", judge.name, 9)}
