"""Runs from elsewhere: copied whole, or refused with the reason."""

import csv
import io
import shutil

import pytest

import pe_bench
from pe_bench.errors import UserError


def test_runs_from_elsewhere_are_copied_whole_and_what_cannot_be_is_told(begin, command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert begin("encoding=rope").code == begin("encoding=t5").code == 0
    here, there = folder / "results", folder / "elsewhere"
    here.rename(there)
    done = command("import", str(there))
    assert done.code == 0 and "2 imported, 0 here already" in done.err
    kept = {str(path.relative_to(there)) for path in (there / "runs").rglob("*") if path.name != "lock"}
    assert kept == {str(path.relative_to(here)) for path in (here / "runs").rglob("*")}
    assert len((here / "results.csv").read_text().splitlines()) > 3
    assert "2 here already" in command("import", *map(str, (there / "runs").iterdir())).err
    # What is not as it should be is refused, and the others are taken.
    shutil.rmtree(here)
    first, second = sorted((there / "runs").iterdir())
    (first / "environment.json").unlink()
    (first / "environment.json").symlink_to("/etc/passwd")
    done = command("import", str(there))
    assert done.code == 1 and "symbolic link" in done.err and "1 imported" in done.err
    assert [run.name for run in (here / "runs").iterdir()] == [second.name]
    # A run of the same name stays as it is.
    kept = here / "runs" / second.name / "result.json"
    kept.write_text(kept.read_text().replace('"loss": ', '"loss": 1'))
    text = kept.read_text()
    assert pe_bench.import_runs(second).present == [second.name] and kept.read_text() == text
    kept.unlink()
    assert "it is not finished here" in pe_bench.import_runs(second).refused[second.name]
    (second / "result.json").unlink()
    shutil.rmtree(here)
    assert pe_bench.import_runs(str(second)).refused == {second.name: "it is not finished"}
    with pytest.raises(UserError, match="has no runs: name a run"):
        pe_bench.import_runs(folder / "corpus")


def test_no_anchor_is_taken_from_elsewhere_and_scoring_counts_it_here(begin, command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert begin("encoding=rope").code == begin("encoding=t5").code == 0
    here, there = folder / "results", folder / "elsewhere"
    here.rename(there)
    anchors = {file.parent.name: file.read_text() for file in (there / "anchors").glob("*/eval.csv")}
    for file in (there / "anchors").glob("*/eval.csv"):
        header, *rows = csv.reader(io.StringIO(file.read_text()))
        with file.open("w", newline="") as forged:
            place = header.index("bits_per_byte")
            csv.writer(forged).writerows(
                [header, *([*row[:place], "0.028", *row[place + 1 :]] for row in rows)]
            )
    done = command("import", str(there))
    assert done.code == 0 and "(trigram)" not in (here / "results.csv").read_text()
    assert "0.028" not in command("report").out and not (here / "anchors").exists()
    assert command("eval", "rope", "t5").code == 0
    counted = {file.parent.name: file.read_text() for file in (here / "anchors").glob("*/eval.csv")}
    assert counted.keys() == anchors.keys() and "0.028" not in "".join(counted.values())
    # Nor may a run pass for one.
    shutil.rmtree(here)
    run = next((there / "runs").glob("t5*"))
    table = run / "eval.csv"
    table.write_text(table.read_text().replace(",t5,", ",(trigram),"))
    imported = pe_bench.import_runs(there)
    assert "rows of (trigram)" in imported.refused[run.name] and len(imported.copied) == 1


def test_what_a_killed_import_left_is_deleted_by_the_next_one(begin, command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert begin("encoding=alibi").code == 0
    (folder / "results").rename(folder / "elsewhere")

    def killed(source, target):
        raise SystemExit(9)

    results = folder / "results"
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        patch.setattr("shutil.rmtree", lambda *arguments, **options: None)
        with pytest.raises(SystemExit):
            pe_bench.import_runs("elsewhere")
    assert [*(results / "runs").glob(".partial-*")]
    (results / "anchors").mkdir(exist_ok=True)
    (results / "anchors" / ".partial-0a1b2c3d").mkdir()
    (results / "runs" / ".partial-of-mine.txt").write_text("a file")
    assert command("import", "elsewhere").code == 0
    assert [path.name for path in results.rglob(".partial-*")] == [".partial-of-mine.txt"]
    assert command("import", "elsewhere").code == 0, "the folder of results is free again"
