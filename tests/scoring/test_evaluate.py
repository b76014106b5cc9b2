"""Scores equal those of a plain computation, and nothing is scored twice."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.scoring import (
    BLOCK,
    EVAL,
    PROTOCOLS,
    SIZE,
    TRAIN_LENGTH,
    VOCABULARY,
    bytes_of,
    every_protocol,
    fed,
    scored,
    trained_model,
)

from pe_bench.config.schema import EvalConfig
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.model.decoder import Decoder
from pe_bench.runs.job import Job
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import make_plans

torch.set_num_threads(1)


# Tokens of a block that a window scores at once: at most an eighth of the length.
PART_AT = {8: 1, 12: 1, 24: 2, 40: BLOCK}

# What 130 tokens come to of the documents that are longer than 24: two whole, and of one the rest.
SCORED_TOKENS = {0: 130 - 45 - 31, 2: 45, 3: 31}


# The truth, from the definitions, one target at a time


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
        assert np.allclose(scores.nll, nll, rtol=0, atol=2e-5)
        assert row.targets == len(nll)
        assert row.nll == pytest.approx(mean, abs=1e-5)
        assert row.perplexity == pytest.approx(math.exp(mean), rel=1e-5)
        assert row.bits_per_byte == pytest.approx(bits_per_byte, abs=1e-5)


def test_documents_of_unequal_shares_count_the_same_when_paired(trained: Job) -> None:
    """The data distinguish a mean over documents from a mean over tokens."""
    [row] = scored(trained, replace(EVAL, lengths=[8], max_length=24))
    scores = load_scores(score_file(trained.folder, row))
    shares = np.unique(scores.document, return_counts=True)[1]
    assert len(set(shares.tolist())) > 1
    assert row.documents == len(shares) == 3, "one document is too short"
    assert abs(float(scores.nll.mean()) - (row.nll or 0)) > 1e-3


def test_untied_heads_are_scored_with_their_own_weights(trained: Job) -> None:
    size = replace(SIZE, tie_embeddings=False)
    model = Decoder(size, VOCABULARY, trained.model.encoding, torch.Generator().manual_seed(2)).eval()
    untied = replace(trained, model=model)
    [row] = scored(untied, replace(EVAL, lengths=[8]))
    assert row.nll == pytest.approx(naive(untied, replace(EVAL, lengths=[8]), 8)[1], abs=1e-5)


# Repeating


@every_protocol
def test_repeating_scores_nothing_again(trained: Job, evaluation: EvalConfig) -> None:
    first = scored(trained, evaluation)
    before = (trained.folder / "eval.csv").read_bytes()
    shapes = fed(trained)
    assert scored(trained, evaluation) == first
    assert shapes == []
    assert (trained.folder / "eval.csv").read_bytes() == before


def test_a_missing_score_file_is_computed_again(trained: Job) -> None:
    first = scored(trained)
    lost = score_file(trained.folder, first[1])
    before = load_scores(lost)
    lost.unlink()
    shapes = fed(trained)
    again = scored(trained)
    assert [row.nll for row in again] == [row.nll for row in first]
    assert {columns for _, columns in shapes} == {12}
    assert np.array_equal(load_scores(lost).nll, before.nll)


def test_another_stride_is_scored_separately(trained: Job) -> None:
    """Its targets are the same, but their context is not."""
    half = scored(trained, PROTOCOLS["sliding by half"])
    shapes = fed(trained)
    other = scored(trained, PROTOCOLS["sliding"])
    assert shapes
    assert [row.target_hash for row in half] == [row.target_hash for row in other]
    for row, before in zip(other, half, strict=True):
        assert row.nll == pytest.approx(naive(trained, PROTOCOLS["sliding"], row.length)[1], abs=1e-5)
        assert row.nll != before.nll
        assert row.context_mean != before.context_mean
        assert (row.stride_rule, before.stride_rule) == ("5", "half")
    assert set(read_rows(trained.folder / "eval.csv")) == {*half, *other}


def test_finished_scores_are_kept_when_the_rest_is_interrupted(trained: Job) -> None:
    def stop(protocol: str, length: int, share: float) -> None:
        if length == 24 and share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored(trained, replace(EVAL, batch_tokens=24), stop)
    assert [row.length for row in read_rows(trained.folder / "eval.csv")] == [8, 12]
    shapes = fed(trained)
    assert [row.status for row in scored(trained)] == ["ok"] * 3
    assert {columns for _, columns in shapes} == {24}


def test_another_number_of_targets_is_another_set_and_both_stay(trained: Job) -> None:
    more = scored(trained, replace(EVAL, targets=9))
    rows = [*scored(trained, replace(EVAL, targets=5)), *more]
    assert sorted({row.targets for row in rows}) == [5 * BLOCK, 9 * BLOCK]
    kept = read_rows(trained.folder / "eval.csv")
    assert sorted(row.key for row in kept) == sorted(row.key for row in rows)


# Rows


def test_rows_say_what_was_scored(trained: Job) -> None:
    row = scored(trained)[1]
    assert (row.run, row.encoding, row.scored_with) == ("run", "mine option=2", "mine option=2")
    assert (row.seed, row.model, row.setting) == (5, "tiny", "5e7710")
    assert (row.train_length, row.length, row.protocol, row.control) == (8, 12, "paired", "none")
    assert (row.targets, row.documents) == (7 * BLOCK, 3)
    assert (row.target_tokens, row.context_mean) == (BLOCK, 12 - 1), "a window of 12 scores one token"
    assert (row.data, row.data_hash, row.tokenizer) == ("files", "da7a0123", "odd")
    assert row.parameters == sum(weight.numel() for weight in trained.model.parameters())
    assert (row.steps, row.train_tokens, row.tokens_per_second) == (3, 48, 1234.6)
    assert (row.device, row.train_dtype, row.score_dtype, row.threads) == ("cpu", "bfloat16", "float32", 1)
    assert row.torch == torch.__version__
    assert row.peak_memory_mb is not None
    assert row.peak_memory_mb > 1


def test_scores_are_kept_with_the_document_and_the_bytes_of_every_target(trained: Job) -> None:
    row = scored(trained)[0]
    scores = load_scores(score_file(trained.folder, row))
    places = context_starts(trained, EVAL, 8)
    documents = [trained.data.validation.document(document) for document, _, _ in places]
    tokens = [int(tokens[place]) for tokens, (_, place, _) in zip(documents, places, strict=True)]
    assert scores.document.tolist() == [document for document, _, _ in places]
    assert scores.bytes.tolist() == [bytes_of(token) for token in tokens]
    assert scores.nll.dtype == np.float32


# Precision and batches


def test_bfloat16_scores_are_kept_with_the_float32_ones_and_are_near_them(trained: Job) -> None:
    types: list[torch.dtype] = []
    linear = trained.model.get_submodule("blocks.0.feedforward.down")
    linear.register_forward_hook(lambda _, given, out: types.append(out.dtype))
    exact = scored(trained)
    assert {row.score_dtype for row in exact} == {"float32"} and set(types) == {torch.float32}
    types.clear()
    coarse = scored(trained, replace(EVAL, precision="bfloat16"))
    assert {row.score_dtype for row in coarse} == {"bfloat16"} and torch.bfloat16 in types
    for row, other in zip(exact, coarse, strict=True):
        assert row.key != other.key and row.target_hash == other.target_hash
        assert row.nll != other.nll and row.nll == pytest.approx(other.nll, abs=0.05)
    shapes = fed(trained)
    assert scored(trained) == exact and scored(trained, replace(EVAL, precision="bfloat16")) == coarse
    assert shapes == [], "neither takes the place of the other"


@every_protocol
def test_scores_do_not_depend_on_the_size_of_batches(tmp_path: Path, evaluation: EvalConfig) -> None:
    together = scored(trained_model(tmp_path / "together"), replace(evaluation, batch_tokens=10_000))
    single = scored(trained_model(tmp_path / "single"), replace(evaluation, batch_tokens=1))
    for one, other in zip(together, single, strict=True):
        assert one.nll == pytest.approx(other.nll, abs=1e-6) and one.target_hash == other.target_hash


def test_rows_of_an_encoding_that_reads_the_length_say_so(tmp_path: Path) -> None:
    for encoding, reads in (
        (RopeDynamicNTK(SIZE.d_head, train_length=TRAIN_LENGTH), True),
        (RopePI(SIZE.d_head, TRAIN_LENGTH, factor=3.0), False),
    ):
        rows = scored(trained_model(tmp_path / str(reads), encoding))
        assert {row.knows_length for row in rows} == {reads}
