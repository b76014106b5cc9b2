"""Runs from elsewhere: copied whole, or refused with the reason."""

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
    for name in ("runs", "anchors"):
        kept = {str(path.relative_to(there)) for path in (there / name).rglob("*") if path.name != "lock"}
        assert kept == {str(path.relative_to(here)) for path in (here / name).rglob("*")}
    assert len((here / "results.csv").read_text().splitlines()) > 3
    assert "2 here already" in command("import", *map(str, (there / "runs").iterdir())).err
    # What is not as it should be is refused, and the others are taken.
    shutil.rmtree(here)
    first, second = sorted((there / "runs").iterdir())
    (first / "environment.json").unlink()
    (first / "environment.json").symlink_to("/etc/passwd")
    anchor = next((there / "anchors").glob("trigram-*"))
    anchor.rename(folder / "private")
    anchor.symlink_to(folder / "private")
    done = command("import", str(there))
    assert done.code == 1 and "symbolic link" in done.err and "1 imported" in done.err
    assert [run.name for run in (here / "runs").iterdir()] == [second.name]
    assert not (here / "anchors" / anchor.name).exists() and any((here / "anchors").iterdir())
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
