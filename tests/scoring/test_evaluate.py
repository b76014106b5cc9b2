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
from pe_bench.encodings.base import Side
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.errors import UserError
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import make_plans, shortages


def targets_of(trained: Job, evaluation: EvalConfig, length: int) -> list[tuple[int, int, int]]:
    """Return (document, place of the target, place where its context begins)."""
    [plan] = [plan for plan in make_plans(trained.config, evaluation, trained.data) if plan.length == length]
    assert plan.stride == ((evaluation.stride or length // 2) if evaluation.protocol == "sliding" else None)
    return [
        (window.document, window.first_target + number, window.start)
        for window in plan.windows
        for number in range(window.targets)
    ]


@torch.no_grad()
def naive_nll(trained: Job, places: list[tuple[int, int, int]]) -> np.ndarray:
    """Return NLLs in float64, from a forward pass over each target's context alone."""
    model, nll = copy.deepcopy(trained.model).double(), []
    for index, place, start in places:
        tokens = torch.from_numpy(trained.data.validation.document(index)[start : place + 1].astype(np.int64))
        context = tokens[None, :-1]
        hidden = model.hidden(context, model.encoding.ids(context, train=False, generator=None))[0, -1]
        nll.append(-float((model.output_weight @ hidden).log_softmax(-1)[tokens[-1]]))
    return np.array(nll)


@every_protocol
def test_scores_equal_a_separate_forward_pass_for_each_target(trained: Job, evaluation: EvalConfig) -> None:
    rows = scored(trained, evaluation)
    assert [row.length for row in rows] == [8, 12, 24]
    for row in rows:
        places = targets_of(trained, evaluation, row.length)
        document = np.array([index for index, _, _ in places])
        tokens = [int(trained.data.validation.document(index)[place]) for index, place, _ in places]
        size, nll = np.array([bytes_of(token) for token in tokens]), naive_nll(trained, places)
        scores = load_scores(score_file(trained.folder, row))
        assert np.allclose(scores.nll, nll, rtol=0, atol=2e-5) and row.targets == len(nll)
        assert np.array_equal(scores.document, document) and np.array_equal(scores.bytes, size)
        parts = [document == index for index in set(document)] if evaluation.protocol == "paired" else [...]
        mean = np.mean([nll[part].mean() for part in parts])
        assert row.nll == pytest.approx(mean, abs=1e-5)
        assert row.perplexity == pytest.approx(math.exp(mean), rel=1e-5)
        bits_per_byte = np.mean([nll[part].sum() / math.log(2) / size[part].sum() for part in parts])
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


def rows_of(run: Path, task: Task, model: LanguageModel | None, count: int = 6) -> list[Row]:
    trained = trained_model(run, data=task_data(task))
    evaluation = EvalConfig(lengths=[16, 32], targets=count, protocol="task", batch_tokens=70)
    return scored(trained if model is None else replace(trained, model=model), evaluation)


@pytest.mark.parametrize("name", ORACLES)
def test_a_model_that_knows_the_answers_has_all_of_them_right(tmp_path: Path, name: str) -> None:
    task = build_task({"name": name})
    rows = rows_of(tmp_path / "run", task, Solving(task))
    assert [row.length for row in rows] == [TRAIN_LENGTH, 16, 32]
    assert {(row.accuracy, row.exact, row.documents) for row in rows} == {(1.0, 1.0, 6)}


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


@every_protocol
def test_the_training_length_is_scored_on_every_set_of_targets(trained: Job, evaluation: EvalConfig) -> None:
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
    assert [row.length for row in rows] == [6, 8, 12, 13, 24]
    assert [row.status for row in rows] == ["ok"] * 3 + ["undefined"] * 2
    for row in rows[3:]:
        assert "max_position=12 rows" in row.reason and not score_file(trained.folder, row).exists()
        assert row.nll is row.perplexity is row.bits_per_byte is row.peak_memory_mb is None
    shapes = fed(trained)
    assert scored(trained, evaluation) == rows and shapes == [], "it is not tried again"


@pytest.mark.parametrize(
    ("error", "status"),
    [(torch.OutOfMemoryError("CUDA out of memory.\nMore lines"), "out_of_memory"), (KeyError("q"), "failed")],
)
def test_a_length_that_fails_says_so_and_is_tried_again(tmp_path: Path, error: Exception, status: str):
    hungry = Hungry()
    trained = trained_model(tmp_path / "run", hungry)
    hungry.error = error
    rows = scored(trained)
    assert [row.status for row in rows] == ["ok", status, status]
    for row in rows[1:]:
        assert row.nll is None and row.reason and "\n" not in row.reason
        in_the_users_class = row.reason.startswith(f"{sys.modules[Hungry.__module__].__file__}:")
        assert in_the_users_class == (status == "failed")
    assert read_rows(trained.folder / "eval.csv") == rows
    hungry.error = None
    shapes = fed(trained)
    again = scored(trained)
    assert [(row.status, row.reason) for row in again] == [("ok", "")] * 3 and again[0] == rows[0]
    assert {columns for _, columns in shapes} >= {12, 24} and read_rows(trained.folder / "eval.csv") == again


def test_a_stride_that_is_longer_than_windows_is_reported_with_their_lengths(trained: Job) -> None:
    for stride, lengths in ((9, "8 tokens"), (8, "")):
        evaluation = replace(EVAL, protocol="sliding", stride=stride, lengths=[8, 16], tokens=32)
        lines = shortages(evaluation, make_plans(trained.config, evaluation, trained.data))
        said = f"eval.stride={stride} is longer than windows of {lengths}"
        assert [line.startswith(said) for line in lines] == [True] * bool(lengths), lines


def test_too_few_documents_for_all_targets_are_reported_with_their_number(trained: Job) -> None:
    # Three of the documents of 60, 20, 45 and 31 tokens reach 31, with room for 8 + 4 + 1 blocks of four.
    evaluation = replace(EVAL, max_length=29, targets=20)
    [line] = shortages(evaluation, make_plans(trained.config, evaluation, trained.data))
    assert "3 reach the 31 tokens" in line and "room for 13 of eval.targets=20 target blocks" in line
    with pytest.raises(UserError, match="61 .*the longest has 60"):
        scored(trained, replace(EVAL, lengths=[8, 61]))
    assert not (trained.folder / "eval.csv").exists()


def test_a_fault_of_pe_bench_s_own_code_is_raised_and_is_no_row(tmp_path: Path, monkeypatch) -> None:
    """Of a user's code it would be a row that says so."""

    def fail(self: NoPE, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        raise RuntimeError("shapes do not fit")

    trained = trained_model(tmp_path / "run", NoPE())
    monkeypatch.setattr(NoPE, "transform", fail)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        scored(trained)
    assert not (trained.folder / "eval.csv").exists()


def test_scores_are_float32_whatever_the_training_unless_another_precision_is_asked_for(trained: Job) -> None:
    assert trained.dtype == torch.bfloat16
    types = set[torch.dtype]()
    down = trained.model.get_submodule("blocks.0.feedforward.down")
    down.register_forward_hook(lambda _, given, out: types.add(out.dtype))
    assert {row.score_dtype for row in scored(trained)} == {"float32"}
    assert types == {torch.float32}
    coarse = scored(trained, replace(EVAL, precision="bfloat16"))
    assert {row.score_dtype for row in coarse} == {"bfloat16"}
    assert torch.bfloat16 in types


def test_batches_are_as_large_as_asked_for_and_no_larger(trained: Job) -> None:
    shapes = fed(trained)
    scored(trained, replace(EVAL, batch_tokens=50))
    assert all(batch * columns <= 50 for batch, columns in shapes)
    assert (50 // 8, 8) in shapes
