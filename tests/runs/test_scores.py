"""The numbers of a row follow from the NLLs of single targets."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.results import ROW

from pe_bench.errors import RunError
from pe_bench.runs import scores as scores_module
from pe_bench.runs.scores import (
    Scores,
    load_scores,
    mean_over_documents,
    mean_over_tokens,
    save_scores,
    score_file,
)

LOG2 = math.log(2)


def unequal() -> Scores:
    """Document 7: targets of 1, 2 and 3 bits, 2 bytes each. Document 3: one of 8 bits and 1 byte."""
    nll = np.array([1, 2, 8, 3], np.float32) * np.float32(LOG2)
    return Scores(nll, np.array([7, 7, 3, 7]), np.array([2, 2, 1, 2]))


def test_documents_count_the_same_however_many_targets_they_have() -> None:
    level = mean_over_documents(unequal())
    assert level.nll == pytest.approx((2 + 8) / 2 * LOG2)
    assert level.perplexity == pytest.approx(2**5)
    assert level.bits_per_byte == pytest.approx((6 / 6 + 8 / 1) / 2)
    documents, bits = unequal().by_document()
    assert documents.tolist() == [3, 7] and bits == pytest.approx([8.0, 1.0])


def test_tokens_count_the_same_in_the_mean_that_papers_use() -> None:
    level = mean_over_tokens(unequal())
    assert level.nll == pytest.approx(14 / 4 * LOG2)
    assert level.bits_per_byte == pytest.approx(14 / 7)


def test_documents_without_bytes_are_left_out_of_the_bits_per_byte() -> None:
    scores = Scores(
        np.array([1, 2, 8], np.float32) * np.float32(LOG2), np.array([0, 1, 2]), np.array([1, 0, 2])
    )
    assert scores.by_document()[0].tolist() == [0, 2]
    level = mean_over_documents(scores)
    assert level.bits_per_byte == pytest.approx((1 / 1 + 8 / 2) / 2)
    assert level.nll == pytest.approx((1 + 2 + 8) / 3 * LOG2)
    for mean in (mean_over_tokens, mean_over_documents):
        level = mean(Scores(np.array([1, 2], np.float32), np.array([0, 1]), np.array([0, 0])))
        assert math.isnan(level.bits_per_byte) and level.nll == pytest.approx(1.5)


def test_sums_do_not_lose_what_float32_would() -> None:
    count = 1_000_000
    nll = np.full(count, 1 / 3, np.float32)
    scores = Scores(nll, np.zeros(count, np.int64), np.ones(count, np.int64))
    for mean in (mean_over_tokens, mean_over_documents):
        assert mean(scores).nll == pytest.approx(float(np.float32(1 / 3)), rel=1e-12)


@pytest.mark.parametrize("mean", [mean_over_tokens, mean_over_documents])
def test_a_score_that_is_not_finite_shows_in_every_number(mean) -> None:
    infinite = Scores(np.array([1, math.inf], np.float32), np.array([0, 1]), np.array([1, 1]))
    assert set(vars(mean(infinite)).values()) == {math.inf}
    unknown = Scores(np.array([1, math.nan], np.float32), np.array([0, 1]), np.array([1, 1]))
    assert all(math.isnan(value) for value in vars(mean(unknown)).values())
    assert mean(Scores(np.array([800], np.float32), np.array([0]), np.array([1]))).perplexity == math.inf


@pytest.mark.parametrize("has_answers", [False, True])
def test_scores_come_back_exactly(tmp_path: Path, has_answers: bool) -> None:
    path, scores = score_file(tmp_path, ROW), unequal()
    if has_answers:
        scores = replace(scores, correct=(scores.nll > 1).astype(np.float32))
    save_scores(path, scores)
    found = load_scores(path)
    assert (found.correct is not None) == has_answers
    for name, value in vars(scores).items():
        assert value is None or getattr(found, name).dtype == value.dtype
        assert np.array_equal(getattr(found, name), value)


def test_answers_are_part_of_the_checksum(tmp_path: Path) -> None:
    path, scores = score_file(tmp_path, ROW), unequal()
    answered = replace(scores, correct=np.ones_like(scores.nll))
    save_scores(path, answered)
    whole = path.read_bytes()
    right, wrong = answered.correct, np.zeros_like(scores.nll)
    assert right is not None and whole.count(right.tobytes()) == 1
    path.write_bytes(whole.replace(right.tobytes(), wrong.tobytes()))
    with pytest.raises(RunError, match="not those of its checksum"):
        load_scores(path)


def test_each_row_has_a_separate_score_file(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"protocol": "sliding"}, {"length": 64}, {"control": "swap"}]
    changes += [{"target_hash": "abd"}, {"score_dtype": "bfloat16"}]
    changes += [{"protocol": "sliding", "stride": stride} for stride in (32, 64)]
    changes += [{"scored_with": name} for name in ("yarn", "yarn factor=4", "my/own.py:Yarn")]
    changes.append({"scored_with": "yarn", "forced": True})
    paths = {score_file(tmp_path, replace(ROW, **change)) for change in changes}
    assert len(paths) == 12
    assert {path.parent for path in paths} == {tmp_path / "scores"}


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, None, "cut"])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "one.safetensors"
    if content == "cut":
        save_scores(path, unequal())
        content = path.read_bytes()[:-4]
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(RunError, match=r"one\.safetensors is (missing|damaged)"):
        load_scores(path)


def test_tensors_of_unequal_lengths_are_refused(tmp_path: Path) -> None:
    path = score_file(tmp_path, ROW)
    save_scores(path, Scores(np.zeros(3, np.float32), np.zeros(2, np.int64), np.zeros(3, np.int64)))
    with pytest.raises(RunError, match="shapes"):
        load_scores(path)


def test_others_may_read_scores_as_they_may_read_any_new_file(tmp_path: Path) -> None:
    save_scores(tmp_path / "scores" / "a.safetensors", unequal())
    (tmp_path / "usual").touch()
    assert (tmp_path / "scores" / "a.safetensors").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_scores_that_may_not_be_read_are_not_called_damaged(tmp_path: Path, monkeypatch) -> None:
    def refuse(path: Path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(scores_module, "open_regular", refuse)  # root could read them all the same
    with pytest.raises(RunError, match=r"a\.safetensors cannot be read \(no permission\): `chmod"):
        load_scores(tmp_path / "a.safetensors")
