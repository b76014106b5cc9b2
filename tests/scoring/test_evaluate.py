"""Scores equal those of a plain computation, and nothing is scored twice."""

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.needles import STRENGTH, Copying
from support.scoring import (
    BLOCK,
    EVAL,
    SIZE,
    TRAIN_LENGTH,
    Hungry,
    bytes_of,
    every_protocol,
    fed,
    scored,
    trained_model,
)
from support.task_oracles import ORACLES
from torch import Tensor

from pe_bench.config.schema import EvalConfig
from pe_bench.data.packed import task_data
from pe_bench.data.tasks import Task, build_task
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.errors import UserError
from pe_bench.model.decoder import Decoder, LanguageModel
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import make_plans, shortages

torch.set_num_threads(1)


# Tokens of a block that a window scores at once: at most an eighth of the length.
PART_AT = {8: 1, 12: 1, 24: 2, 40: BLOCK}
# What 130 tokens come to of the documents that are longer than 24: two whole, and of one the rest.
SCORED_TOKENS = {0: 130 - 45 - 31, 2: 45, 3: 31}


def context_starts(trained: Job, evaluation: EvalConfig, length: int) -> list[tuple[int, int, int]]:
    """Return (document, place of the target, place where its context begins)."""
    [plan] = [plan for plan in make_plans(trained.config, evaluation, trained.data) if plan.length == length]
    if evaluation.protocol == "paired":
        ends = [(window.document, window.start + window.size) for window in plan.windows]
        size = PART_AT[length]
        return [(d, end - size + k, end - length) for d, end in ends for k in range(size)]
    found = []
    for document in dict.fromkeys(window.document for window in plan.windows):
        for place in range(1, SCORED_TOKENS[document]):
            if evaluation.protocol == "nonoverlapping":
                start = (place - 1) // length * length
            else:
                stride = evaluation.stride or length // 2
                strides = max(0, math.ceil((place - length) / stride))
                start = min(length + strides * stride, SCORED_TOKENS[document] - 1) - length
            found.append((document, place, start))
    return found


def naive_nll(model: Decoder, context: np.ndarray, target: int) -> float:
    """Return the NLL in float64, from a forward pass over the target's context alone."""
    tokens = torch.from_numpy(context.astype(np.int64))[None]
    hidden = model.hidden(tokens, model.encoding.ids(tokens, train=False, generator=None))[0, -1]
    weight = model.embedding.weight if model.head is None else model.head.weight
    return -float((weight @ hidden).log_softmax(-1)[target])


@torch.no_grad()
def naive(trained: Job, evaluation: EvalConfig, length: int) -> tuple[np.ndarray, float, float]:
    """Return NLLs, nats per token and bits per byte."""
    model = copy.deepcopy(trained.model).double()
    places = context_starts(trained, evaluation, length)
    nll, sizes, documents = [], [], []
    for index, place, start in places:
        document = trained.data.validation.document(index)
        nll.append(naive_nll(model, document[start:place], int(document[place])))
        sizes.append(bytes_of(int(document[place])))
        documents.append(index)
    one, size, document = np.array(nll), np.array(sizes), np.array(documents)
    if evaluation.protocol == "paired":
        each = [document == index for index in set(documents)]
        bits = np.mean([one[mine].sum() / math.log(2) / size[mine].sum() for mine in each])
        return one, float(np.mean([one[mine].mean() for mine in each])), float(bits)
    return one, float(one.mean()), float(one.sum() / math.log(2) / size.sum())


@every_protocol
def test_scores_equal_a_separate_forward_pass_for_each_target(trained: Job, evaluation: EvalConfig) -> None:
    rows = scored(trained, evaluation)
    assert [row.length for row in rows] == [8, 12, 24]
    for row in rows:
        nll, mean, bits_per_byte = naive(trained, evaluation, row.length)
        scores = load_scores(score_file(trained.folder, row))
        assert np.allclose(scores.nll, nll, rtol=0, atol=2e-5) and row.targets == len(nll)
        places = context_starts(trained, evaluation, row.length)
        assert scores.document.tolist() == [document for document, _, _ in places]
        tokens = [int(trained.data.validation.document(document)[at]) for document, at, _ in places]
        assert scores.bytes.tolist() == [bytes_of(token) for token in tokens]
        assert row.nll == pytest.approx(mean, abs=1e-5)
        assert row.perplexity == pytest.approx(math.exp(mean), rel=1e-5)
        assert row.bits_per_byte == pytest.approx(bits_per_byte, abs=1e-5)


@every_protocol
def test_repeating_scores_what_is_missing_and_nothing_again(trained: Job, evaluation: EvalConfig) -> None:
    first = scored(trained, evaluation)
    before = (trained.folder / "eval.csv").read_bytes()
    shapes = fed(trained)
    assert scored(trained, evaluation) == first and shapes == []
    assert (trained.folder / "eval.csv").read_bytes() == before
    lost = score_file(trained.folder, first[1])
    scores = load_scores(lost)
    lost.unlink()
    assert [row.nll for row in scored(trained, evaluation)] == pytest.approx([row.nll for row in first])
    assert {columns for _, columns in shapes} <= {12, *range(12)}
    assert np.allclose(load_scores(lost).nll, scores.nll, atol=1e-5)


def test_rows_say_what_was_scored(trained: Job, tmp_path: Path) -> None:
    row = scored(trained)[1]
    assert (row.run, row.encoding, row.scored_with) == ("run", "mine option=2", "mine option=2")
    assert (row.seed, row.model, row.setting) == (5, "tiny", "5e7710")
    assert (row.train_length, row.length, row.protocol, row.control) == (8, 12, "paired", "none")
    assert (row.targets, row.documents, row.target_tokens, row.context_mean) == (7 * BLOCK, 3, BLOCK, 12 - 1)
    assert (row.data, row.data_hash, row.tokenizer) == ("files", "da7a0123", "odd")
    assert (row.steps, row.train_tokens, row.tokens_per_second, row.knows_length) == (3, 48, 1234.6, False)
    assert (row.device, row.train_dtype, row.score_dtype, row.threads) == ("cpu", "bfloat16", "float32", 1)
    assert row.parameters == sum(weight.numel() for weight in trained.model.parameters())
    assert row.peak_memory_mb is not None and row.peak_memory_mb > 1
    knowing = trained_model(tmp_path / "other", RopeDynamicNTK(SIZE.d_head, train_length=TRAIN_LENGTH))
    assert scored(knowing)[0].knows_length


# Answers of a task are scored where they are: by a model that knows them, and by some that do not


COUNT = 6
EVALUATION = EvalConfig(lengths=[16, 32], targets=COUNT, protocol="task", batch_tokens=70)


class Solving(Copying):
    """A model that knows what follows every beginning of an example, but for the one up to `mistake`."""

    def __init__(self, task: Task, mistake: int | None = None) -> None:
        super().__init__()
        self.task, self.mistake = task, mistake
        self.vocab_size = len(task.vocabulary)

    def _logits(self, tokens: list[int], first: int) -> Tensor:
        texts = [self.task.vocabulary[token] for token in tokens]
        logits = torch.zeros(len(tokens), self.vocab_size)
        for place in range(len(tokens)):
            try:
                answer = ORACLES[self.task.name](texts[: place + 1])
            except (ValueError, IndexError):  # nothing has been asked yet
                continue
            logits[place, self.task.vocabulary.index(answer)] = STRENGTH
        if self.mistake is not None and self.mistake < len(tokens):
            logits[self.mistake] = -logits[self.mistake]
        return logits[first:]


def rows_of(run: Path, task: Task, model: LanguageModel | None, count: int = COUNT) -> list[Row]:
    trained = trained_model(run, data=task_data(task))
    evaluation = replace(EVALUATION, targets=count)
    return scored(trained if model is None else replace(trained, model=model), evaluation)


@pytest.mark.parametrize("name", ORACLES)
def test_a_model_that_knows_the_answers_has_all_of_them_right(tmp_path: Path, name: str) -> None:
    task = build_task({"name": name})
    rows = rows_of(tmp_path / "run", task, Solving(task))
    assert [(row.length, row.accuracy, row.exact, row.documents) for row in rows] == [
        (length, 1.0, 1.0, COUNT) for length in (TRAIN_LENGTH, 16, 32)
    ]


def test_a_mistake_costs_one_answer_of_each_example_and_all_of_them_their_exactness(tmp_path: Path) -> None:
    task = build_task({"name": "copy_unique"})
    _, row, longer = rows_of(tmp_path / "run", task, Solving(task, mistake=10))
    size = task.size_at(16)
    assert (row.accuracy, row.exact) == (pytest.approx(size / (size + 1)), 0.0)
    assert (longer.accuracy, longer.exact) == (1.0, 1.0), "its answers begin later"
    for name in ("copy", "majority"):  # random weights are no better than guessing
        task = build_task({"name": name})
        for row in rows_of(tmp_path / name, task, None, 100):
            deviation = (task.chance * (1 - task.chance) / 100) ** 0.5
            assert row.chance == task.chance and 0 <= row.accuracy < task.chance + 3 * deviation


# Exactly the requested lengths are scored, and those that cannot be have a reason


@every_protocol
def test_the_training_length_is_scored_on_every_set_of_targets(trained: Job, evaluation: EvalConfig) -> None:
    """Otherwise the other lengths could not be compared with anything."""
    for lengths, changes, expected in (
        ([24, 12], {}, [[8, 12, 24]]),
        ([12, 30, 40], {"max_length": 20}, [[8, 12], [8, 30, 40]]),
        ([4, 6], {"max_length": 6, "target_tokens": 2}, [[4, 6, 8]]),
    ):
        sets: dict[str, list[int]] = {}
        for plan in make_plans(trained.config, replace(evaluation, lengths=lengths, **changes), trained.data):
            sets.setdefault(plan.target_hash, []).append(plan.length)
        assert list(sets.values()) == expected


def test_an_undefined_length_has_a_reason_and_no_number_and_others_are_scored(tmp_path: Path) -> None:
    trained = trained_model(tmp_path / "run", Learned(SIZE.d_model, max_position=12))
    evaluation = replace(EVAL, lengths=[6, 12, 13, 24], target_tokens=2)
    rows = scored(trained, evaluation)
    assert [(row.length, row.status) for row in rows] == [
        *((length, "ok") for length in (6, 8, 12)),
        *((length, "undefined") for length in (13, 24)),
    ]
    for row in rows[3:]:
        assert "max_position=12 rows" in row.reason and not score_file(trained.folder, row).exists()
        assert row.nll is row.perplexity is row.bits_per_byte is row.peak_memory_mb is None
    shapes = fed(trained)
    assert scored(trained, evaluation) == rows and shapes == [], "it is not tried again"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 20 GiB.\nMore lines"), "out_of_memory"),
        (KeyError("q"), "failed"),  # in a class of this test suite: nothing of pe-bench's own
    ],
)
def test_a_length_that_fails_says_so_and_is_tried_again(
    tmp_path: Path, error: Exception, status: str
) -> None:
    hungry = Hungry()
    trained = trained_model(tmp_path / "run", hungry)
    hungry.error = error
    rows = scored(trained)
    assert [row.status for row in rows] == ["ok", status, status]
    for row in rows[1:]:
        assert row.nll is row.perplexity is row.bits_per_byte is row.peak_memory_mb is None
        assert row.reason and "\n" not in row.reason
        place = f"{Path(str(sys.modules[Hungry.__module__].__file__))}:"
        assert row.reason.startswith(place) == (status == "failed")
    assert read_rows(trained.folder / "eval.csv") == rows
    hungry.error = None
    shapes = fed(trained)
    again = scored(trained)
    assert [(row.status, row.reason) for row in again] == [("ok", "")] * 3 and again[0] == rows[0]
    assert {columns for _, columns in shapes} >= {12, 24} and read_rows(trained.folder / "eval.csv") == again


def test_too_few_documents_for_all_targets_are_reported_with_their_number(trained: Job) -> None:
    """Three of the documents of 60, 20, 45 and 31 tokens reach 31, with room for 8 + 4 + 1 blocks of four."""
    evaluation = replace(EVAL, max_length=29, targets=20)
    [line] = shortages(evaluation, make_plans(trained.config, evaluation, trained.data))
    assert "3 reach the 31 tokens" in line and "room for 13 of eval.targets=20 target blocks" in line
    with pytest.raises(UserError, match="61 .*the longest has 60"):
        scored(trained, replace(EVAL, lengths=[8, 61]))
    assert not (trained.folder / "eval.csv").exists()
