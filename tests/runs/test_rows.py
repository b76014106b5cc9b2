"""Rows in files, and gathering those files."""

import math
import multiprocessing
import re
import shutil
import stat
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from support.results import ROW, add_run, edit_text

from pe_bench.errors import RunError
from pe_bench.runs.gather import gather, read_all, read_result, results_file
from pe_bench.runs.rows import CHECKSUM, COLUMNS, read_rows, write_rows


def folder_contents(results_dir: Path) -> dict[str, bytes]:
    """Return the files of the folder itself, without the lock."""
    files = (path for path in results_dir.iterdir() if path.is_file() and path.suffix != ".lock")
    return {path.name: path.read_bytes() for path in files}


def test_rows_come_back_exactly_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        replace(ROW, nll=0.1 + 0.2, perplexity=math.inf, bits_per_byte=1e-300, peak_memory_mb=123.4),
        replace(ROW, length=64, nll=None, perplexity=None, bits_per_byte=None, status="undefined"),
        replace(ROW, length=32, reason='a "quoted", word\nand a second line', encoding="Ünicode"),
        *(replace(ROW, protocol="sliding", stride=32, stride_rule=rule) for rule in ("half", "32")),
        replace(ROW, length=16, nll=np.float64(0.1), targets=np.int64(7)),  # pyright: ignore[reportArgumentType]
    ]
    assert read_rows(tmp_path / "eval.csv") == []
    write_rows(tmp_path / "eval.csv", [*rows, replace(ROW, length=8, nll=math.nan)])
    *found, unknown = read_rows(tmp_path / "eval.csv")
    assert found == rows and [row.key for row in found] == [row.key for row in rows]
    assert unknown.nll is not None and math.isnan(unknown.nll)


def test_a_second_score_of_the_same_thing_replaces_the_first(tmp_path: Path) -> None:
    other = replace(ROW, length=256)
    write_rows(tmp_path / "eval.csv", [ROW, other, replace(ROW, nll=9.0)])
    assert read_rows(tmp_path / "eval.csv") == [replace(ROW, nll=9.0), other]


@pytest.mark.parametrize("word", ["true", "1", "", "yes"])
def test_a_truth_that_is_neither_true_nor_false_is_damage(tmp_path: Path, word: str) -> None:
    write_rows(tmp_path / "eval.csv", [replace(ROW, forced=True)])
    edit_text(tmp_path / "eval.csv", ",True,", f",{word},")
    with pytest.raises(RunError, match="forced is .*, neither True nor False"):
        read_rows(tmp_path / "eval.csv")


@pytest.mark.parametrize(
    "damage", ["a digit", "a row lost", "a row doubled", "rows exchanged", "a column's name"]
)
def test_rows_that_differ_from_their_checksum_are_damage_with_the_way_out(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "rope-s0" / "eval.csv"
    path.parent.mkdir()
    write_rows(path, [ROW, replace(ROW, length=256, nll=2.5)])
    columns, first, second = path.read_text(encoding="utf-8").splitlines()
    damaged = {
        "a digit": [columns, first.replace("2.8853", "2.8854"), second],
        "a row lost": [columns, first],
        "a row doubled": [columns, first, second, second],
        "rows exchanged": [columns, second, first],
        "a column's name": [columns.replace(f",{CHECKSUM}", ",rows_sha255"), first, second],
    }[damage]
    path.write_text("\n".join(damaged) + "\n", encoding="utf-8")
    with pytest.raises(RunError, match="delete it and score the run again") as found:
        read_rows(path)
    assert "\n" not in str(found.value)
    assert damage == "a column's name" or "`pe-bench eval rope-s0`" in str(found.value)


def test_every_flipped_bit_of_a_file_of_rows_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    write_rows(path, [ROW, replace(ROW, length=256)])
    rows, whole = read_rows(path), path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with suppress(RunError):
            assert read_rows(path) == rows, f"byte {place}"


def test_rows_that_were_edited_by_hand_may_have_no_checksum(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    write_rows(path, [ROW])
    edit_text(path, "2.8853900817779268", "2.75")
    assert read_rows(path) == [replace(ROW, bits_per_byte=2.75)]


def test_ends_of_lines_that_a_tool_has_changed_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    write_rows(path, [ROW])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_rows(path) == [ROW]


@pytest.mark.parametrize("change", ["cut", "word", "empty", "binary", "folder"])
def test_a_damaged_file_is_named(tmp_path: Path, change: str) -> None:
    path = tmp_path / "eval.csv"
    write_rows(path, [ROW])
    text = path.read_text(encoding="utf-8")
    path.unlink()
    if change == "folder":
        path.mkdir()
    else:
        damaged = {"cut": text[:-40], "word": text.replace(",250,", ",many,"), "empty": "", "binary": "\xff"}[
            change
        ]
        path.write_bytes(damaged.encode("latin-1"))
    with pytest.raises(RunError, match=r"eval\.csv is damaged"):
        read_rows(path)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ((*COLUMNS, "colour"), "an unknown column colour"),
        (COLUMNS[: COLUMNS.index("date")], "no column date, no column encoding_lr"),
    ],
)
def test_the_columns_of_another_version_are_named(
    tmp_path: Path, columns: tuple[str, ...], named: str
) -> None:
    path = tmp_path / "eval.csv"
    values = {**{name: str(value) for name, value in vars(ROW).items()}, "colour": "red"}
    path.write_text(",".join(columns) + "\n" + ",".join(values[name] for name in columns) + "\n")
    with pytest.raises(RunError, match=named):
        read_rows(path)


def test_the_gathered_file_is_read_only_and_made_anew_whatever_was_there(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 2.0})
    gather(tmp_path)
    path = results_file(tmp_path)
    written = folder_contents(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444, "an editor warns before it is changed"
    for edit in (b"", b"not,a\ntable", b"\x00\xff", None):
        path.unlink()
        if edit is not None:
            path.write_bytes(edit)
        assert gather(tmp_path).problems == []
        assert folder_contents(tmp_path) == written
        assert stat.S_IMODE(path.stat().st_mode) == 0o444


def dies_in_gathering(results_dir: Path, moment: int) -> bool:
    """Odd: before a rename; even: after it. What it was writing stays as after a kill."""
    # Here alone: it loads PyTorch, which the processes that this module spawns have no use for.
    from support.crashing import DIED, begin_child, die_at_rename, end_of

    child = begin_child(lambda: die_at_rename(moment, lambda: gather(results_dir)))
    return end_of(child) == DIED


MOMENTS = range(1, 4)  # the last of them is after the end of a gathering


def test_gathering_that_was_killed_at_any_moment_ends_the_same_when_repeated(tmp_path: Path) -> None:
    ends, died = [], []
    for moment in (*MOMENTS, None):
        folder = tmp_path / str(moment)
        add_run(folder, "rope", {128: 2.0})
        gather(folder)
        add_run(folder, "alibi", {128: 3.0})
        died.append(moment is not None and dies_in_gathering(folder, moment))
        assert gather(folder).problems == []
        ends.append(folder_contents(folder))
    assert died == [True, True, False, False]
    assert all(end == ends[-1] for end in ends)
    assert sorted(ends[-1]) == ["results.csv"]


def test_gathering_orders_rows_by_run_and_length(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {1024: 4.0, 128: 2.0})
    add_run(tmp_path, "alibi", {128: 3.0})
    gather(tmp_path)
    found = [(row.encoding, row.length) for row in read_rows(results_file(tmp_path))]
    assert found == [("alibi", 128), ("rope", 128), ("rope", 1024)]


def test_one_damaged_run_is_named_and_hides_no_other(tmp_path: Path) -> None:
    bad = add_run(tmp_path, "rope", {128: 2.0})
    add_run(tmp_path, "alibi", {128: 3.0})
    (bad / "eval.csv").write_text("run,encoding\n")
    (add_run(tmp_path, "nope", {128: 2.0}) / "result.json").unlink()  # it is not finished
    assert gather(tmp_path / "new").rows == read_rows(results_file(tmp_path / "new")) == []
    found = gather(tmp_path)
    assert [row.encoding for row in found.rows] == ["alibi"]
    assert len(found.problems) == 1
    assert found.problems[0].run == bad.name and str(bad) in found.problems[0].text
    assert read_rows(results_file(tmp_path)) == found.rows


def _add_and_gather(results_dir: Path, process: int, count: int) -> None:
    for index in range(count):
        add_run(results_dir, f"encoding{process}{index}", {128: 2.0, 256: 3.0})
        gather(results_dir)


def test_processes_that_gather_at_once_lose_no_row(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_and_gather, args=(tmp_path, index, 5)) for index in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    rows = read_rows(results_file(tmp_path))
    assert len(rows) == 3 * 5 * 2
    assert rows == read_all(tmp_path).rows
    assert not list(tmp_path.rglob(".partial-*"))


def test_gathering_waits_for_its_turn_and_reads_only_then(tmp_path: Path) -> None:
    with FileLock(tmp_path / "results.csv.lock"):
        thread = threading.Thread(target=gather, args=(tmp_path,))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        add_run(tmp_path, "rope", {128: 2.0})
    thread.join(10)
    assert len(read_rows(results_file(tmp_path))) == 1


def test_a_thousand_runs_are_read_in_seconds(tmp_path: Path) -> None:
    for index in range(1000):
        run = tmp_path / "runs" / f"rope-s{index}"
        run.mkdir(parents=True)
        (run / "result.json").write_text("{}")
    write_rows(tmp_path / "eval.csv", [replace(ROW, length=length) for length in range(1, 9)])
    for run in (tmp_path / "runs").iterdir():
        shutil.copy(tmp_path / "eval.csv", run)  # under another name than its rows give
    start = time.process_time()
    assert len(read_all(tmp_path).rows) == 8000
    assert time.process_time() - start < 5


def test_the_page_on_results_explains_every_column_once() -> None:
    page = (Path(__file__).parents[2] / "results" / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([\w, ]+?) \| ", page.split("| --- | --- |")[1], flags=re.MULTILINE)
    assert sorted(", ".join(cells).split(", ")) == sorted(COLUMNS)


def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        read_result(tmp_path)


def test_a_run_has_the_name_of_its_folder(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 2.0})
    run.rename(run.with_name("renamed"))
    assert [row.run for row in read_all(tmp_path).rows] == ["renamed"]
