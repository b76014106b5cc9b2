"""The means by document that a run keeps beside its rows: exact, derived, and never trusted when in doubt."""

import os
from pathlib import Path

import numpy as np
import pytest
from support.results import add_run, edit_rows

from pe_bench.report import pairs
from pe_bench.report.build import build_tables
from pe_bench.report.records import Table
from pe_bench.runs.means import KeptMeans, keep_means, means_of
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import MEANS, delete_scores, load_scores, save_scores, score_file

LEVELS = {32: 3.4, 128: 3.0, 256: 3.1, 512: 3.6}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    add_run(tmp_path / "results", "rope", LEVELS, seed=1)
    add_run(tmp_path / "results", "alibi", LEVELS)
    found = add_run(tmp_path / "results", "rope", LEVELS)
    add_run(tmp_path / "results", "rope", {256: 3.2, 512: 3.3}, protocol="nonoverlapping")
    return found


def rows_of(run: Path) -> list[Row]:
    return read_rows(run / "eval.csv")


def keep_all(run: Path) -> None:
    for folder in run.parent.iterdir():
        keep_means(folder, rows_of(folder))


def tables(run: Path) -> list[Table]:
    return build_tables(run.parent.parent)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files of scores that a report has read."""
    found: list[Path] = []

    def load(path: Path) -> object:
        found.append(path)
        return load_scores(path)

    monkeypatch.setattr(pairs, "load_scores", load)
    return found


def test_a_report_from_kept_means_is_the_same_to_the_last_bit_and_reads_no_scores(
    run: Path, read: list[Path]
) -> None:
    from_scores = tables(run)
    assert read
    read.clear()
    keep_all(run)
    assert tables(run) == from_scores
    assert read == []


@pytest.mark.parametrize("documents", [5, 24])  # fewer than 20 are cut into segments
def test_kept_means_are_those_of_the_scores(tmp_path: Path, documents: int) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0}, documents=documents)
    [row] = rows_of(run)
    keep_means(run, [row])
    found, wanted = (
        KeptMeans(run).find(score_file(run, row)),
        means_of(load_scores(score_file(run, row)), "paired"),
    )
    assert found is not None
    assert np.array_equal(found.names, wanted.names) and np.array_equal(found.bits, wanted.bits)
    assert (found.level, found.segments) == (wanted.level, wanted.segments)


def test_every_flipped_bit_of_kept_means_is_seen_and_the_scores_are_read_instead(run: Path) -> None:
    [*_, row] = rows_of(run)
    keep_means(run, [row])
    whole, path = (run / MEANS).read_bytes(), score_file(run, row)
    wanted = KeptMeans(run).find(path)
    assert wanted is not None
    for place in range(len(whole)):
        (run / MEANS).write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        found = KeptMeans(run).find(path)
        # A flipped bit in blanks or in the name of a field that nothing reads changes nothing.
        assert found is None or np.array_equal(found.bits, wanted.bits), f"byte {place}"
    for size in range(0, len(whole), 7):
        (run / MEANS).write_bytes(whole[:size])
        assert KeptMeans(run).find(path) is None


@pytest.mark.parametrize("change", ["other scores", "later", "lost"])
def test_means_of_scores_that_changed_since_are_not_used(run: Path, read: list[Path], change: str) -> None:
    keep_all(run)
    row = next(row for row in rows_of(run) if row.length == 512 and row.protocol == "paired")
    path = score_file(run, row)
    if change == "other scores":
        scores = load_scores(path)
        save_scores(path, type(scores)(scores.nll + 1, scores.document, scores.bytes))
    elif change == "later":
        os.utime(path, ns=(0, 0))
    else:
        path.unlink()
    found = tables(run)
    assert path in read
    text = " ".join(
        cell.compared.missing for table in found for line in table.lines for cell in line.records.values()
    )
    assert {"other scores": "does not give its row's", "later": "", "lost": "is missing"}[change] in text


def test_means_that_do_not_give_their_row_s_level_are_no_verdict(run: Path) -> None:
    keep_all(run)
    edit_rows(run, lambda row: row if row.length != 512 else type(row)(**{**vars(row), "bits_per_byte": 9.0}))
    text = " ".join(
        cell.compared.missing
        for table in tables(run)
        for line in table.lines
        for cell in line.records.values()
    )
    assert "does not give its row's 9.000000 bits per byte" in text


def test_what_is_kept_already_is_not_written_again_and_what_is_missing_is_added(run: Path) -> None:
    first, *rest = rows_of(run)
    keep_means(run, [first])
    before = (run / MEANS).stat().st_mtime_ns
    keep_means(run, [first])
    assert (run / MEANS).stat().st_mtime_ns == before
    keep_means(run, [first, *rest])
    kept = KeptMeans(run)
    assert all(kept.find(score_file(run, row)) is not None for row in rows_of(run))


def test_means_go_with_the_scores_of_weights_that_are_replaced(run: Path) -> None:
    keep_all(run)
    delete_scores(run)
    assert not (run / MEANS).exists()
