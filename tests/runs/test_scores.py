"""The numbers of a row follow from the NLLs of single targets, which a damaged file never gives."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support.results import ROW

from pe_bench.errors import RunError
from pe_bench.runs.scores import Scores, compute_level, load_scores, save_scores, score_file

LOG2 = math.log(2)
PROTOCOLS = ("paired", "nonoverlapping")


def unequal() -> Scores:
    """Document 7: targets of 1, 2 and 3 bits, 2 bytes each. Document 3: one of 8 bits and 1 byte."""
    nll = np.array([1, 2, 8, 3], np.float32) * np.float32(LOG2)
    return Scores(nll, np.array([7, 7, 3, 7]), np.array([2, 2, 1, 2]))


def test_documents_count_the_same_in_a_paired_level_and_tokens_in_that_of_papers() -> None:
    paired, tokens = (compute_level(unequal(), protocol) for protocol in PROTOCOLS)
    assert paired.nll == pytest.approx((2 + 8) / 2 * LOG2)
    assert paired.perplexity == pytest.approx(2**5)
    assert paired.bits_per_byte == pytest.approx((6 / 6 + 8 / 1) / 2)
    documents, bits = unequal().by_document()
    assert documents.tolist() == [3, 7] and bits == pytest.approx([8.0, 1.0])
    assert tokens.nll == pytest.approx(14 / 4 * LOG2)
    assert tokens.bits_per_byte == pytest.approx(14 / 7)


def test_documents_without_bytes_are_left_out_of_the_bits_per_byte() -> None:
    nll = np.array([1, 2, 8], np.float32) * np.float32(LOG2)
    scores = Scores(nll, np.array([0, 1, 2]), np.array([1, 0, 2]))
    assert scores.by_document()[0].tolist() == [0, 2]
    level = compute_level(scores, "paired")
    assert level.bits_per_byte == pytest.approx((1 / 1 + 8 / 2) / 2)
    assert level.nll == pytest.approx((1 + 2 + 8) / 3 * LOG2)
    for protocol in PROTOCOLS:
        level = compute_level(replace(scores, bytes=np.zeros(3, np.int64)), protocol)
        assert math.isnan(level.bits_per_byte) and level.nll == pytest.approx(11 / 3 * LOG2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sums_keep_what_float32_would_lose_and_what_is_not_finite_shows(protocol: str) -> None:
    def level(*nll: float, times: int = 1) -> dict[str, float]:
        count = len(nll) * times
        scores = Scores(
            np.tile(np.array(nll, np.float32), times), np.arange(count) % 2, np.ones(count, np.int64)
        )
        return vars(compute_level(scores, protocol))

    assert level(1 / 3, times=1_000_000)["nll"] == pytest.approx(float(np.float32(1 / 3)), rel=1e-12)
    assert set(level(1, math.inf).values()) == {math.inf}
    assert all(map(math.isnan, level(1, math.nan).values()))
    assert level(800, 800)["perplexity"] == math.inf


def test_scores_come_back_exactly_and_are_readable_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    for scores in (unequal(), replace(unequal(), correct=np.array([0, 1, 1, 0], np.float32))):
        path = score_file(tmp_path, ROW)
        save_scores(path, scores)
        assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode
        for name in ("nll", "document", "bytes", "correct"):
            written, read = getattr(scores, name), getattr(load_scores(path), name)
            assert (written is None) == (read is None)
            assert written is None or (written.dtype == read.dtype and np.array_equal(written, read))


def test_each_row_has_a_separate_score_file(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"protocol": "sliding"}, {"length": 64}, {"control": "swap"}]
    changes += [{"target_hash": "abd"}, {"score_dtype": "bfloat16"}]
    changes += [{"protocol": "sliding", "stride": stride} for stride in (32, 64)]
    changes += [{"scored_with": name} for name in ("yarn", "yarn factor=4", "my/own.py:Yarn")]
    changes.append({"scored_with": "yarn", "forced": True})
    paths = {score_file(tmp_path, replace(ROW, **change)) for change in changes}
    assert len(paths) == 12
    assert {path.parent for path in paths} == {tmp_path / "scores"}


def test_every_flipped_bit_of_scores_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scores" / "one.safetensors"
    scores = replace(unequal(), correct=np.array([0, 1, 1, 0], np.float32))
    save_scores(path, scores)
    content = path.read_bytes()
    for index in range(len(content)):
        path.write_bytes(content[:index] + bytes([content[index] ^ 1 << index % 8]) + content[index + 1 :])
        try:
            read = load_scores(path)
        except RunError as error:
            assert "one.safetensors is damaged" in str(error)  # noqa: PT017
            continue
        assert all(np.array_equal(getattr(read, name), value) for name, value in vars(scores).items()), index


def test_a_file_that_is_missing_cut_or_no_scores_is_named(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "scores" / "one.safetensors"
    save_scores(path, unequal())
    cut = path.read_bytes()[:-4]
    for content in (b"", b"\x00" * 100, cut):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"one\.safetensors is damaged"):
            load_scores(path)
    for scores in [
        replace(unequal(), document=np.zeros(2, np.int64)),
        Scores(*[np.zeros(0, kind) for kind in (np.float32, np.int64, np.int64)]),
        replace(unequal(), nll=np.zeros(4)),
    ]:
        save_scores(path, scores)
        with pytest.raises(RunError, match="are no scores"):
            load_scores(path)
    path.unlink()
    with pytest.raises(RunError, match=r"one\.safetensors is missing"):
        load_scores(path)

    refused = PermissionError(13, "Permission denied", str(path))
    monkeypatch.setattr(os, "open", Mock(side_effect=refused))  # root could read them all the same
    with pytest.raises(RunError, match=r"one\.safetensors cannot be read \(no permission\): `chmod"):
        load_scores(path)
