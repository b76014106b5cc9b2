"""The record of how runs were made, and its gaps."""

import json
from dataclasses import replace

from support.results import add_run, edit_rows

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.runs.commands import VARIABLE, record_command, remember_command
from pe_bench.runs.folder import Dataset, Environment, folders_in, provenance, write_config

KNOWN = {"pe_bench": "0.1.0", "git": "", "torch": "2.13.0", "device": "cpu", "threads": 2}
WHOLE = {**KNOWN, "python": "3.11.2", "platform": "Linux", "processor": "EPYC", "cores": 4}


def add_whole_run(results, encoding="rope", overrides=(), **changes):
    run = add_run(results, encoding, {128: 2.0, 256: 2.1}, **changes)
    write_config(run, parse_config(compose([f"encoding={encoding}", *overrides])))
    (run / "environment.json").write_text(json.dumps({**WHOLE, "date": "2026-01-02T03:04:05+00:00"}))
    return run


def records_of(results, names):
    return provenance(map(folders_in(results / "runs"), names))


def test_a_run_is_described_with_commands_data_versions_machine_and_date(tmp_path, monkeypatch):
    run = add_whole_run(tmp_path, overrides=["train.length=64", "seed=1"], seed=1)
    monkeypatch.setenv(VARIABLE, "")
    remember_command(["train", "-m", "encoding=rope", "seed=0,1"])
    record_command(run)
    (record,) = records_of(tmp_path, [run.name])
    assert record.run == run.name and record.missing == "" and record.needs == ()
    assert record.commands == ("pe-bench train -m encoding=rope seed=0,1",)
    assert record.data == (Dataset("stdlib", "da7a0123456789", "bytes"),)
    assert record.trained == Environment(
        pe_bench="0.1.0",
        torch="2.13.0",
        python="3.11.2",
        platform="Linux",
        processor="EPYC",
        device="cpu",
        threads="2",
    )
    assert record.scored == (), "rows of the same versions and machine say nothing new"
    assert record.date == "2026-01-02T03:04:05+00:00"


def test_scores_from_another_version_or_machine_are_listed_separately(tmp_path):
    run = add_whole_run(tmp_path)
    edit_rows(run, lambda row: replace(row, torch="2.14.0", device="H200") if row.length == 256 else row)
    (record,) = records_of(tmp_path, [run.name])
    assert [(one.torch, one.device, one.python) for one in record.scored] == [("2.14.0", "H200", "")]


def test_facts_that_were_not_recorded_are_reported_missing(tmp_path):
    run = add_run(tmp_path, "rope", {128: 2.0}, date="2024-01-01")
    (run / "config.yaml").unlink()
    (record,) = records_of(tmp_path, [run.name])
    assert (record.commands, record.missing) == ((), "none was kept")
    assert record.trained == Environment() and record.scored[0].torch == "2.13.0"
    assert record.date == "2024-01-01"


def test_damaged_files_hide_nothing_else(tmp_path):
    run = add_whole_run(tmp_path)
    for text in ("{", "[1]", "encoding: rope", "encoding: {}", "\0", "encoding: &a [*a]"):
        (run / "config.yaml").write_text(text)
        (run / "environment.json").write_text(text)
        (record,) = records_of(tmp_path, [run.name])
        assert record.needs == (), text
        assert record.data[0].hash == "da7a0123456789"


def test_records_are_in_the_order_of_names(tmp_path):
    names = [add_whole_run(tmp_path, name).name for name in ("rope", "alibi")]
    assert [record.run for record in records_of(tmp_path, names)] == sorted(names)


def test_commands_of_a_run_from_outside_take_no_code_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    run = add_whole_run(results)
    folder = f"results/runs/{run.name}"
    for path in (run / "x.py", results / "x.py", tmp_path / "mine.py"):
        path.write_text("raise SystemExit(1)")
    (run / "notes.txt").write_text("raise SystemExit(1)")
    (run / "package").mkdir()
    (run / "package" / "__init__.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_config(run, parse_config(compose(["encoding=rope", f"encoding.class={folder}/x.py:Y"])))
    harmless = [
        f"pe-bench eval {folder} --results-dir results",
        "pe-bench train encoding.class=mine.py:Y --config-dir mine",
    ]
    taking = [
        f"pe-bench train encoding.class={folder}/x.py:Y",
        "pe-bench train encoding.class=results.x:Y",
        f"pe-bench train 'encoding.local={{name: rope, class: {folder}/x.py:Y}}'",
        f"pe-bench train encoding={folder}/x.py:Y",
        f"pe-bench eval rope-s0 --code {run}/x.py",
        f"pe-bench train encoding=x --config-dir {folder}",
        f"pe-bench train encoding=x --config-dir=./{folder}",
        f"pe-bench train encoding=x -cd {folder}",
        f"pe-bench train encoding.class={folder}/notes.txt:Y",
        f"pe-bench train encoding.class={folder.replace('/', '.')}.package:Y",
        f"pe-bench train 'encoding.class=~/{folder}/x.py:Y'",
        f"pe-bench train encoding=x --config-dir '~/{folder}'",
    ]
    (run / "commands.json").write_text(json.dumps([*taking, *harmless]))
    [record] = records_of(results, [run.name])
    assert list(record.commands) == harmless
    assert "is not here" in record.missing
