"""Sets of target blocks are nested: what one set has scored is not scored again in another."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.results import edit_rows
from support.scoring import BLOCK, EVAL, fed, scored, trained_model

from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import Scores, load_scores, save_scores, score_file

torch.set_num_threads(1)

CONTROLLED = replace(EVAL, controls="all")
SMALL, LARGE = replace(CONTROLLED, targets=5), replace(CONTROLLED, targets=9)
WINDOWS = {8: 4, 12: 3 * 4, 24: 3 * 2}  # for a block at each length, of which two have both controls


def windows_by_length(shapes: Sequence[tuple[int, ...]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for windows, length in shapes:
        found[length] = found.get(length, 0) + windows
    return found


def scores_of(trained: Job, row: Row) -> Scores:
    return load_scores(score_file(trained.folder, row))


def assert_same(trained: Job, rows: Sequence[Row], other: Job, others: Sequence[Row]) -> None:
    """Assert that the runs, of one model, have the same scores and rows but for rounding."""
    free = {"nll": None, "perplexity": None, "bits_per_byte": None, "peak_memory_mb": None, "date": ""}
    assert [replace(row, **free) for row in rows] == [replace(row, **free) for row in others]
    for row, wanted in zip(rows, others, strict=True):
        found, truth = scores_of(trained, row), scores_of(other, wanted)
        assert np.array_equal(found.document, truth.document) and np.array_equal(found.bytes, truth.bytes)
        assert np.allclose(found.nll, truth.nll, rtol=0, atol=2e-6)
        assert len(set(found.nll.tolist())) > len(found.nll) / 2, "a wrong order would be seen"
        assert row.nll == pytest.approx(wanted.nll, abs=1e-6)
        assert row.bits_per_byte == pytest.approx(wanted.bits_per_byte, abs=1e-6)


@pytest.fixture
def at_once(tmp_path: Path) -> tuple[Job, list[Row]]:
    """All blocks of the larger set, scored in a folder of their own."""
    trained = trained_model(tmp_path / "at_once" / "run")
    return trained, scored(trained, LARGE)


@pytest.fixture(autouse=True)
def folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "at_once").mkdir()


def test_more_targets_score_the_new_blocks_alone_and_give_what_all_at_once_gives(
    tmp_path: Path, at_once: tuple[Job, list[Row]]
) -> None:
    trained = trained_model(tmp_path / "run")
    small = scored(trained, SMALL)
    shapes = fed(trained)
    large = scored(trained, LARGE)
    assert windows_by_length(shapes) == {length: 4 * windows for length, windows in WINDOWS.items()}
    assert {row.targets for row in large} == {9 * BLOCK}
    assert {row.control for row in large} == {"none", "window", "swap"}
    assert_same(trained, large, *at_once)
    kept = read_rows(trained.folder / "eval.csv")
    assert sorted(row.key for row in kept) == sorted(row.key for row in [*small, *large]), "both stay"


def test_steps_in_any_order_give_the_same_scores(tmp_path: Path, at_once: tuple[Job, list[Row]]) -> None:
    trained = trained_model(tmp_path / "run")
    for targets in (7, 1, 3, 8, 2):
        scored(trained, replace(CONTROLLED, targets=targets))
    shapes = fed(trained)
    assert_same(trained, scored(trained, LARGE), *at_once)
    assert windows_by_length(shapes) == WINDOWS, "one block is new to the largest set"
    shapes.clear()
    told: list[tuple[str, int, float]] = []
    fewer = scored(trained, replace(CONTROLLED, targets=4), lambda *what: told.append(what))
    assert shapes == [] and {row.peak_memory_mb for row in fewer} == {None}
    assert {share for *_, share in told} == {1.0}, "fewer targets than were scored score nothing"


def remove(path: Path) -> None:
    path.unlink()


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def shorten(path: Path) -> None:
    found = load_scores(path)
    save_scores(path, Scores(found.nll[1:], found.document[1:], found.bytes[1:]))


@pytest.mark.parametrize("harm", [remove, damage, shorten])
def test_a_smaller_set_without_its_scores_is_of_no_use(
    tmp_path: Path, at_once: tuple[Job, list[Row]], harm: Callable[[Path], None]
) -> None:
    trained = trained_model(tmp_path / "run")
    scored(trained, replace(CONTROLLED, targets=3))
    for row in scored(trained, SMALL):
        if row.length == 12:
            harm(score_file(trained.folder, row))
    shapes = fed(trained)
    assert_same(trained, scored(trained, LARGE), *at_once)
    new = {8: 4, 12: 6, 24: 4}  # at 12 the set of three blocks is the largest that is left
    assert windows_by_length(shapes) == {length: new[length] * windows for length, windows in WINDOWS.items()}


@pytest.mark.parametrize(
    "change",
    [{"device": "NVIDIA H100"}, {"torch": "2.0.0"}, {"pe_bench": "0.0.1"}, {"target_hash": "0ther"}],
    ids=lambda change: next(iter(change)),
)
def test_scores_of_another_device_or_version_or_text_are_not_taken(
    tmp_path: Path, at_once: tuple[Job, list[Row]], change: dict[str, str]
) -> None:
    """A row says one thing of all its scores."""
    trained = trained_model(tmp_path / "run")
    for row in scored(trained, SMALL):
        other = score_file(trained.folder, replace(row, **change))  # pyright: ignore[reportArgumentType]
        score_file(trained.folder, row).rename(other)
    edit_rows(trained.folder, lambda row: replace(row, **change))  # pyright: ignore[reportArgumentType]
    shapes = fed(trained)
    assert_same(trained, scored(trained, LARGE), *at_once)
    assert windows_by_length(shapes) == {length: 9 * windows for length, windows in WINDOWS.items()}


def test_a_kill_in_the_middle_of_extending_leaves_rows_that_a_second_command_completes(
    tmp_path: Path, at_once: tuple[Job, list[Row]]
) -> None:
    trained = trained_model(tmp_path / "run")
    small = scored(trained, SMALL)

    def stop_in_the_second_length(what: str, length: int, share: float) -> None:
        if length == 12 and share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored(trained, replace(LARGE, batch_tokens=24), stop_in_the_second_length)
    kept = read_rows(trained.folder / "eval.csv")
    assert [row for row in kept if row.targets == 5 * BLOCK] == sorted(small, key=lambda row: row.order)
    assert [row.length for row in kept if row.targets == 9 * BLOCK] == [8]
    shapes = fed(trained)
    assert_same(trained, scored(trained, LARGE), *at_once)
    assert windows_by_length(shapes) == {12: 4 * WINDOWS[12], 24: 4 * WINDOWS[24]}
