"""Rows in files, and gathering those files."""

import math
import re
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from support.results import ROW, add_run, edit_text

from pe_bench.errors import RunError
from pe_bench.runs.gather import gather, read_all, results_file
from pe_bench.runs.rows import COLUMNS, read_rows, write_rows


def folder_contents(results_dir: Path) -> dict[str, bytes]:
    """Return the files of the folder itself, without the lock."""
    files = (path for path in results_dir.iterdir() if path.is_file() and path.suffix != ".lock")
    return {path.name: path.read_bytes() for path in files}


def test_rows_come_back_exactly_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    rows = [
        replace(ROW, nll=0.1 + 0.2, perplexity=math.inf, bits_per_byte=1e-300, peak_memory_mb=123.4),
        replace(ROW, length=64, nll=None, perplexity=None, bits_per_byte=None, status="undefined"),
        replace(ROW, length=32, reason='a "quoted", word\nand a second line', encoding="Ünicode"),
        *(replace(ROW, protocol="sliding", stride=32, stride_rule=rule) for rule in ("half", "32")),
        replace(ROW, length=16, nll=np.float64(0.1), targets=np.int64(7)),  # pyright: ignore[reportArgumentType]
    ]
    assert read_rows(path) == []
    write_rows(path, [*rows, replace(ROW, length=8, nll=math.nan)])
    *read, last = read_rows(path)
    assert read == rows and last.nll is not None and math.isnan(last.nll)
    write_rows(path, [ROW, rows[1], replace(ROW, nll=9.0)])
    assert read_rows(path) == [replace(ROW, nll=9.0), rows[1]], "the last row of a key counts"
    # A file edited by hand may lack its checksum and have other line ends.
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_rows(path) == [replace(ROW, nll=9.0), rows[1]]
    edit_text(path, ",9.0,", ",2.75,")
    assert read_rows(path)[0] == replace(ROW, nll=2.75)


def plain(text: str) -> str:
    """Return rows without their checksums."""
    return "".join(line.rpartition(",")[0] + "\n" for line in text.splitlines())


DAMAGES: dict[str, Callable[[str], str]] = {
    "a row lost": lambda text: "".join(text.splitlines(keepends=True)[:-1]),
    "a row doubled": lambda text: text + text.splitlines(keepends=True)[-1],
    "cut": lambda text: text[:-40],
    "a word": lambda text: plain(text).replace(",250,", ",many,"),
    "no truth": lambda text: plain(text).replace(",False,", ",false,"),
    "binary": lambda text: "\xff",
    "a column more": lambda text: plain(text).replace("\n", ",red\n").replace(",red", ",colour", 1),
    "a column less": lambda text: plain(plain(text)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_named_with_the_command_that_scores_the_run_again(tmp_path, damage) -> None:
    path = tmp_path / "results" / "runs" / "rope-s0" / "eval.csv"
    path.parent.mkdir(parents=True)
    write_rows(path, [ROW, replace(ROW, length=256, nll=2.5)])
    path.write_bytes(DAMAGES[damage](path.read_text(encoding="utf-8")).encode("latin-1"))
    again = f"delete it and score the run again, `pe-bench eval rope-s0 --results-dir {tmp_path}/results`"
    about = ".+not those of this version of pe-bench: (colour|depth)" if "column" in damage else ".+"
    with pytest.raises(RunError, match=rf"^\S+eval\.csv is damaged \({about}\): {again}$"):
        read_rows(path)


def test_every_flipped_bit_of_a_file_of_rows_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    write_rows(path, [ROW, replace(ROW, length=256)])
    rows, content = read_rows(path), path.read_bytes()
    for index in range(0, len(content), 3):
        path.write_bytes(content[:index] + bytes([content[index] ^ 1 << index % 8]) + content[index + 1 :])
        with suppress(RunError):
            assert read_rows(path) == rows, f"byte {index}"


def test_the_gathered_file_is_read_only_and_made_anew_whatever_was_there(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 2.0})
    gather(tmp_path)
    path, written = results_file(tmp_path), folder_contents(tmp_path)
    for edit in (b"\x00\xff", None):
        assert stat.S_IMODE(path.stat().st_mode) == 0o444, "an editor warns before it is changed"
        path.unlink()
        if edit is not None:
            path.write_bytes(edit)
        assert gather(tmp_path).problems == {} and folder_contents(tmp_path) == written


def dies_in_gathering(results_dir: Path, moment: int) -> bool:
    """Odd: before a rename; even: after it. What it was writing stays as after a kill."""
    # Here alone: it loads PyTorch, which the processes that this module spawns have no use for.
    from support.crashing import DIED, begin_child, die_at_rename, end_of

    child = begin_child(lambda: die_at_rename(moment, lambda: gather(results_dir)))
    return end_of(child) == DIED


def test_gathering_that_was_killed_at_any_moment_ends_the_same_when_repeated(tmp_path: Path) -> None:
    ends, died = [], []
    for moment in (1, 2, 3, None):  # it renames twice, so 3 and None let it end
        folder = tmp_path / str(moment)
        add_run(folder, "rope", {128: 2.0})
        gather(folder)
        add_run(folder, "alibi", {128: 3.0})
        died.append(moment is not None and dies_in_gathering(folder, moment))
        assert gather(folder).problems == {}
        ends.append(folder_contents(folder))
    assert died == [True, True, False, False]
    assert all(end == ends[-1] for end in ends) and [*ends[-1]] == ["results.csv"]


def test_one_damaged_run_is_named_and_hides_no_other(tmp_path: Path) -> None:
    bad = add_run(tmp_path, "rope", {128: 2.0})
    add_run(tmp_path, "alibi", {128: 3.0})
    (bad / "eval.csv").write_text("run,encoding\n")
    (add_run(tmp_path, "nope", {128: 2.0}) / "result.json").unlink()  # it is not finished
    assert gather(tmp_path / "new").rows == read_rows(results_file(tmp_path / "new")) == []
    add_run(tmp_path, "rope", {1024: 4.0, 128: 2.0}, seed=1)
    gathered = gather(tmp_path)
    rows = [(row.encoding, row.length) for row in gathered.rows]
    assert rows == [("alibi", 128), ("rope", 128), ("rope", 1024)], "by run and length"
    assert list(gathered.problems) == [bad.name] and str(bad) in gathered.problems[bad.name]
    assert read_rows(results_file(tmp_path)) == gathered.rows
    for text in ("{", "[]"):
        (bad / "result.json").write_text(text)
        assert "result.json is damaged" in read_all(tmp_path).problems[bad.name]


def test_gathering_waits_for_its_turn_and_reads_only_then(tmp_path: Path) -> None:
    with FileLock(tmp_path / "results.csv.lock"):
        thread = threading.Thread(target=gather, args=(tmp_path,))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        add_run(tmp_path, "rope", {128: 2.0})
    thread.join(10)
    assert len(read_rows(results_file(tmp_path))) == 1


def test_the_page_on_results_explains_every_column_once() -> None:
    page = (Path(__file__).parents[2] / "results" / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([\w, ]+?) \| ", page.split("| --- | --- |")[1], flags=re.MULTILINE)
    assert sorted(", ".join(cells).split(", ")) == sorted(COLUMNS)
