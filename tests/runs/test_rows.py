"""Rows in files, and gathering those files."""

import math
import os
import re
import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results import ROW, add_run, edit_text

from pe_bench.errors import RunError
from pe_bench.runs.folder import gather, read_all
from pe_bench.runs.rows import COLUMNS, read_rows, write_rows
from pe_bench.system.terminal import FORMULA_SIGNS


def test_rows_come_back_exactly_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    of_key = ("run", "scored_with", "control", "target_hash", "score_dtype", "slice", "judge")
    rows = [
        replace(ROW, nll=0.1 + 0.2, perplexity=math.inf, bits_per_byte=1e-300, peak_memory_mb=123.4),
        replace(ROW, length=64, nll=None, perplexity=None, bits_per_byte=None, status="undefined"),
        replace(ROW, length=32, reason='a "quoted", word\nand a second line', encoding="Ünicode"),
        *(replace(ROW, protocol="sliding", stride=32, stride_rule=rule) for rule in ("half", "32")),
        replace(ROW, length=16, nll=np.float64(0.1), targets=np.int64(7)),  # pyright: ignore[reportArgumentType]
        *(replace(ROW, **{name: "another"}) for name in of_key),
    ]
    assert read_rows(path) == []
    write_rows(path, [*rows, replace(ROW, length=8, nll=math.nan, reason="=1+1")])
    *read, last = read_rows(path)
    assert read == rows and last.nll is not None and math.isnan(last.nll)
    assert last.reason == "'=1+1", "a spreadsheet computes nothing"
    write_rows(path, [ROW, rows[1], replace(ROW, nll=9.0)])
    assert read_rows(path) == [replace(ROW, nll=9.0), rows[1]], "the last row of a key counts"
    # A spreadsheet has other line ends, and may add a column.
    lines = path.read_text().splitlines()
    path.write_text("\r\n".join([f"{lines[0]},mine", *(f"{line},x" for line in lines[1:])]), newline="")
    assert read_rows(path) == [replace(ROW, nll=9.0), rows[1]]
    edit_text(path, ",9.0,", ",2.75,")
    assert read_rows(path)[0] == replace(ROW, nll=2.75)


NUMBERS = st.none() | st.floats(allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=20)


@given(nll=NUMBERS, seconds=st.floats(0, 1e12), length=st.integers(1, 2**40), reason=TEXTS, encoding=TEXTS)
@settings(max_examples=150, deadline=None)
def test_any_number_and_text_of_a_row_comes_back_but_a_formula_which_is_quoted(
    nll: float | None, seconds: float, length: int, reason: str, encoding: str
) -> None:
    row = replace(
        ROW, nll=nll, tokens_per_second=seconds, length=length, reason=reason, encoding=f"e{encoding}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eval.csv"
        write_rows(path, [row])
        (read,) = read_rows(path)
    assert read == row or (read == replace(row, reason=f"'{reason}") and reason.startswith(FORMULA_SIGNS))


DAMAGES = {
    "cut": (lambda text: text[:-40], ".+"),
    "a word": (lambda text: text.replace(",250,", ",many,"), "steps is 'many', which cannot be"),
    "no truth": (lambda text: text.replace(",False,", ",false,"), "forced is 'false', which cannot be"),
    "binary": (lambda text: "\xff", ".+"),
    "a column less": (lambda text: re.sub(",[^,]*$", "", text, flags=re.M), "it has no column 'depth'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_named_with_the_command_that_scores_the_run_again(tmp_path, damage) -> None:
    path = tmp_path / "results" / "runs" / "rope-s0" / "eval.csv"
    path.parent.mkdir(parents=True)
    write_rows(path, [ROW, replace(ROW, length=256, nll=2.5)])
    change, reason = DAMAGES[damage]
    path.write_bytes(change(path.read_text(encoding="utf-8")).encode("latin-1"))
    again = f"delete it and score the run again, `pe-bench eval rope-s0 --results-dir {tmp_path}/results`"
    with pytest.raises(RunError, match=rf"^\S+eval\.csv is damaged \({reason}\): {again}$"):
        read_rows(path)


def test_gathering_that_was_killed_at_any_moment_ends_the_same_when_repeated(tmp_path, monkeypatch) -> None:
    results, rename, moments = tmp_path / "results", os.replace, []

    def keep() -> None:
        moments.append(shutil.copytree(results, tmp_path / f"{len(moments)}"))

    def watched(source: Path, target: Path) -> None:
        keep()
        rename(source, target)
        keep()

    add_run(results, "rope", {128: 2.0})
    gather(results)
    add_run(results, "alibi", {128: 3.0})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", watched)
        gather(results)
    assert len(moments) == 2
    unbroken = (results / "results.csv").read_bytes()
    (results / "results.csv").write_bytes(b"\x00\xff")  # whatever was there
    for folder in (*moments, results):
        assert gather(folder).problems == {} and (folder / "results.csv").read_bytes() == unbroken
        files = {path.name for path in folder.iterdir() if path.is_file()}
        assert files == {"results.csv", "results.csv.lock"}, "nothing half written stays"
    assert len(read_rows(results / "results.csv")) == 2


def test_one_damaged_run_is_named_and_hides_no_other(tmp_path: Path) -> None:
    bad = add_run(tmp_path, "rope", {128: 2.0})
    alibi = add_run(tmp_path, "alibi", {128: 3.0})
    (bad / "eval.csv").write_text("run,encoding\nx,y\n")
    (add_run(tmp_path, "nope", {128: 2.0}) / "result.json").unlink()  # it is not finished
    assert gather(tmp_path / "new").rows == read_rows(tmp_path / "new" / "results.csv") == []
    add_run(tmp_path, "rope", {1024: 4.0, 128: 2.0}, seed=1)
    gathered = gather(tmp_path)
    rows = [(row.encoding, row.length) for row in gathered.rows]
    assert rows == [("alibi", 128), ("rope", 128), ("rope", 1024)], "by run and length"
    assert list(gathered.problems) == [bad.name] and str(bad) in gathered.problems[bad.name]
    assert read_rows(tmp_path / "results.csv") == gathered.rows
    for text in ("{", "[]"):
        (bad / "result.json").write_text(text)
        assert "result.json is damaged" in read_all(tmp_path).problems[bad.name]
    shutil.copytree(alibi, alibi.with_name("copied"))
    alibi.rename(alibi.with_name("renamed"))
    assert {row.run for row in read_all(tmp_path).rows if row.encoding == "alibi"} == {"copied", "renamed"}
    alibi.with_name("renamed").rename(alibi)
    assert read_all(tmp_path).problems["copied"] == f"copied is a copy of {alibi.name}"


def test_gathering_waits_for_its_turn_and_reads_only_then(tmp_path: Path) -> None:
    with FileLock(tmp_path / "results.csv.lock"):
        thread = threading.Thread(target=gather, args=(tmp_path,))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        add_run(tmp_path, "rope", {128: 2.0})
    thread.join(10)
    assert len(read_rows(tmp_path / "results.csv")) == 1


def test_the_page_on_results_explains_every_column_once() -> None:
    page = (Path(__file__).parents[2] / "results" / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([\w, ]+?) \| ", page.split("| --- | --- |")[1], flags=re.MULTILINE)
    assert sorted(", ".join(cells).split(", ")) == sorted(COLUMNS)
