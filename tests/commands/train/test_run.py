"""The whole job: a repeated command repairs damage, and rows belong to the right weights."""

import json
import shutil
from unittest.mock import Mock

import pytest
from support.commands import files_in, only_run

from pe_bench.errors import UserError
from pe_bench.runs.rows import read_rows


def test_scoring_a_run_elsewhere_writes_nothing_next_to_it(train, command, folder):
    train("encoding=rope")
    elsewhere = folder / "elsewhere" / "deep" / "copy"
    shutil.copytree(only_run(folder), elsewhere)
    (folder / "elsewhere" / "results.csv").write_text("precious")
    outcome = command("eval", str(elsewhere), "--lengths", "64")
    assert outcome.code == 0, outcome.err
    assert (folder / "elsewhere" / "results.csv").read_text() == "precious"
    others = [path for path in files_in(folder / "elsewhere") if not path.startswith("deep/copy/")]
    assert others == ["results.csv"]
    assert {row.length for row in read_rows(elsewhere / "eval.csv")} == {16, 32, 64}
    names = {row.run for row in read_rows(elsewhere / "eval.csv")}
    assert names == {only_run(folder).name}, "rows keep the name of the training"
    # Rows have the setting and the precision of the training wherever they are scored.
    result = json.loads((elsewhere / "result.json").read_text())
    result |= {"setting": "of-gpu", "train_dtype": "bfloat16"}
    (elsewhere / "result.json").write_text(json.dumps(result))
    assert command("eval", str(elsewhere), "--lengths", "48").code == 0
    row = next(row for row in read_rows(elsewhere / "eval.csv") if row.length == 48)
    assert (row.setting, row.train_dtype, row.score_dtype) == ("of-gpu", "bfloat16", "float32")


def test_a_run_is_scored_from_any_folder_and_with_data_that_moved_or_differ(
    train, command, folder, monkeypatch
):
    monkeypatch.chdir(folder)
    assert train("encoding=rope", "data.path=corpus").code == 0
    run = only_run(folder)
    monkeypatch.chdir(run)
    assert command("eval", ".", "--lengths", "48").code == 0
    assert {row.run for row in read_rows(run / "eval.csv")} == {run.name}
    monkeypatch.chdir(folder / "work")
    score = ("eval", "--lengths", "64", "--results-dir", str(folder / "results"))
    assert command(*score).code == 0
    (folder / "corpus").rename(folder / "moved")
    outcome = command(*score)
    assert outcome.code == 2 and f"data.path={folder / 'corpus'} does not exist: if the" in outcome.line
    assert "--data-path DIR (data_path= in Python)" in outcome.line
    (folder / "moved" / "new.txt").write_text("something else " * 90)
    outcome = command(*score, "--data-path", str(folder / "moved"))
    assert outcome.code == 0 and "is not what" in outcome.err


def test_fine_tuning_is_not_restarted_when_its_source_is_gone(begin, train, command, folder):
    begin("encoding=rope")
    source = only_run(folder)
    overrides = ["encoding=nope", f"train.from={source.name}", "train.steps=3"]
    outcome = train(*overrides)
    assert outcome.code == 0
    assert "rope, then nope (192) " in outcome.out, "it is not the model trained without positions"
    assert train("encoding=rope", "train.lr=0.01").code == 0
    other = next(run for run in source.parent.glob("rope-*") if run != source)
    assert train("encoding=nope", f"train.from={other}", "train.steps=3").code == 0
    first, second = (folder / "results" / "runs").glob("nope-*")  # two sources are two runs
    shutil.rmtree(source)
    shutil.rmtree(other)
    shutil.rmtree(second)
    before = files_in(first)
    outcome = train(*overrides)
    assert outcome.code == 2 and f"no finished run '{source.name}'" in outcome.line
    assert files_in(first) == before, "it is not trained from other weights than those"
    scored = command("eval", first.name, "--lengths", "48", "--results-dir", str(folder / "results"))
    assert scored.code == 0 and "rope, then nope (192) " in scored.out


def test_the_error_of_a_run_stays_in_its_folder_until_it_succeeds(train, command, folder, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("pe_bench.commands.train.fit", Mock(side_effect=UserError("say it")))
        assert train("encoding=nope").code == 2
    assert "UserError: say it" in (only_run(folder) / "error.txt").read_text()
    assert "failed" in command("list", "runs", "--results-dir", str(folder / "results")).out
    assert train("encoding=nope").code == 0
    assert not (only_run(folder) / "error.txt").exists()


def test_training_out_of_memory_is_one_line_with_the_way_out(train, monkeypatch):
    for error in (MemoryError(), RuntimeError("[enforce fail] can't allocate memory: 9 GB")):
        monkeypatch.setattr("pe_bench.commands.train.fit", Mock(side_effect=error))
        outcome = train("encoding=nope")
        assert outcome.code == 1 and outcome.line.startswith("pe-bench: out of memory (")
        assert "train.micro_batches=2" in outcome.line


def test_a_repeated_training_adds_rows_with_the_setting_that_the_run_has(begin, train, folder):
    assert begin("encoding=rope").code == 0
    path = only_run(folder) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "setting": "of-before"}))
    outcome = train("encoding=rope", "eval.lengths=[16,40]")
    assert outcome.code == 0, outcome.err
    row = next(row for row in read_rows(only_run(folder) / "eval.csv") if row.length == 40)
    assert row.setting == "of-before"


def test_a_typed_length_below_the_training_length_is_shown(train, folder):
    outcome = train("encoding=rope", "eval.lengths=[8]")
    assert outcome.code == 0
    [header] = [line for line in outcome.out.splitlines() if line.startswith("encoding ")]
    assert header.split()[1:4] == ["at", "16", "8"]


@pytest.mark.parametrize("written", ["results_dir", "cache_dir"])
def test_results_and_cache_are_refused_among_the_files_of_the_text(train, folder, written):
    before = files_in(folder / "corpus")
    outcome = train(f"{written}={folder / 'corpus' / 'inner'}")
    assert outcome.code == 2 and f"lies in data.path={folder / 'corpus'}, whose files" in outcome.line
    assert str(folder / "corpus" / "inner") in outcome.line
    assert outcome.line.endswith("are the text: name a folder elsewhere")
    outcome = train(f"{written}=inner", "data.path=..", f"data.validation_path={folder / 'corpus'}")
    assert outcome.code == 2 and "lies in data.path=.., whose files are the text" in outcome.line
    assert files_in(folder / "corpus") == before and not files_in(folder / "work")


def test_a_hidden_folder_of_results_may_lie_among_the_files_of_the_text(train, folder):
    hidden = f"results_dir={folder / 'corpus' / '.results'}"
    assert train(hidden).code == 0
    again = train(hidden)
    assert again.code == 0 and "is already trained" in again.err
