"""The whole job: a repeated command repairs damage, and rows belong to the right weights."""

import json
import shutil
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file
from support.commands import files_in, only_run

from pe_bench.errors import UserError
from pe_bench.runs.rows import read_rows


def weights(run, step=8):
    path = run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors"
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def damage(run, step=8):
    path = run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors"
    path.write_bytes(path.read_bytes() + b"x")


def test_a_finished_run_with_a_damaged_last_checkpoint_is_never_scored_with_an_older_one(
    train, command, folder
):
    train("encoding=rope")
    run = only_run(folder)
    expected = weights(run)
    damage(run)
    outcome = command("eval", run.name, "--lengths", "64", "--results-dir", str(folder / "results"))
    assert outcome.code == 2
    assert "no whole checkpoint of step 8" in outcome.line and "repeat the command" in outcome.line
    assert train("encoding=rope", "eval.lengths=[16,64]").code == 0
    assert all(torch.equal(weights(run)[name], value) for name, value in expected.items())


def test_scores_of_lost_weights_are_computed_again(train, folder):
    train("encoding=rope")
    run = only_run(folder)
    before = read_rows(run / "eval.csv")
    shutil.rmtree(run / "checkpoints")
    (run / "result.json").unlink()
    marked = [line.replace("rope,rope", "rope,stale") for line in (run / "eval.csv").read_text().splitlines()]
    (run / "eval.csv").write_text("\n".join(marked) + "\n")
    assert train("encoding=rope").code == 0
    after = read_rows(run / "eval.csv")
    assert [row.scored_with for row in after] == ["rope", "rope"]
    assert [row.nll for row in after] == [row.nll for row in before]


@pytest.mark.parametrize("loss", ["missing", "truncated"])
def test_a_lost_or_damaged_score_file_is_computed_again(train, folder, loss):
    train("encoding=rope")
    run = only_run(folder)
    path = sorted((run / "scores").iterdir())[0]
    good = path.read_bytes()
    if loss == "missing":
        path.unlink()
    else:
        path.write_bytes(good[:-4])
    assert train("encoding=rope").code == 0
    assert path.read_bytes() == good


def test_rows_have_the_training_precision_wherever_they_are_scored(train, command, folder):
    train("encoding=rope")
    run = only_run(folder)
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "setting": "of-gpu", "train_dtype": "bfloat16"}))
    (run / "eval.csv").unlink()
    command("eval", "--lengths", "64", "--results-dir", str(folder / "results"))
    row = next(row for row in read_rows(run / "eval.csv") if row.length == 64)
    assert (row.setting, row.train_dtype, row.score_dtype) == ("of-gpu", "bfloat16", "float32")


def test_scoring_a_run_elsewhere_writes_nothing_next_to_it(train, command, folder):
    train("encoding=rope")
    elsewhere = folder / "elsewhere" / "deep" / "copy"
    shutil.copytree(only_run(folder), elsewhere)
    (folder / "elsewhere" / "results.csv").write_text("precious")
    outcome = command("eval", str(elsewhere), "--lengths", "64")
    assert outcome.code == 0, outcome.err
    assert (folder / "elsewhere" / "results.csv").read_text() == "precious"
    assert [path for path in files_in(folder / "elsewhere") if not path.startswith("deep/copy/")] == [
        "results.csv"
    ]
    assert {row.length for row in read_rows(elsewhere / "eval.csv")} == {16, 32, 64}
    assert {row.run for row in read_rows(elsewhere / "eval.csv")} == {elsewhere.name, only_run(folder).name}


def test_a_run_named_by_a_dot_has_its_own_name(train, command, folder, monkeypatch):
    train("encoding=rope")
    monkeypatch.chdir(only_run(folder))
    assert command("eval", ".", "--lengths", "64").code == 0
    assert {row.run for row in read_rows(only_run(folder) / "eval.csv")} == {only_run(folder).name}


def test_a_run_is_scored_from_another_folder_than_it_was_trained_in(train, command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert train("encoding=rope", "data.path=corpus").code == 0
    monkeypatch.chdir(folder / "work")
    outcome = command("eval", "--lengths", "64", "--results-dir", str(folder / "results"))
    assert outcome.code == 0, outcome.err


def test_data_that_moved_is_named_on_the_command_line(train, command, folder):
    train("encoding=rope")
    (folder / "corpus").rename(folder / "moved")
    overrides = ["eval", "--lengths", "64", "--results-dir", str(folder / "results")]
    outcome = command(*overrides)
    assert outcome.code == 2 and "does not exist" in outcome.line
    assert command(*overrides, "--data-path", str(folder / "moved")).code == 0


def test_data_that_differs_from_the_trained_data_is_reported(train, command, folder):
    train("encoding=rope")
    (folder / "corpus" / "new.txt").write_text("something else " * 90)
    outcome = command("eval", "--lengths", "64", "--results-dir", str(folder / "results"))
    assert outcome.code == 0 and "is not what" in outcome.err


def test_fine_tuning_is_not_restarted_when_its_source_is_gone(train, folder):
    train("encoding=rope")
    source = only_run(folder)
    overrides = ["encoding=nope", f"train.from={source.name}", "train.steps=3"]
    outcome = train(*overrides)
    assert outcome.code == 0
    assert "rope, then nope (192) " in outcome.out, "it is not the model trained without positions"
    shutil.rmtree(source)
    outcome = train(*overrides)
    assert outcome.code == 0 and "is already trained" in outcome.err
    outcome = train(*overrides, "seed=1")
    assert outcome.code == 2 and f"no finished run '{source.name}'" in outcome.line


def test_two_sources_are_two_runs(train, folder):
    train("encoding=rope")
    first = only_run(folder).name
    train("encoding=rope", "seed=1")
    second = next(p.name for p in (folder / "results" / "runs").iterdir() if p.name != first)
    for name in (first, second):
        path = folder / "results" / "runs" / name
        assert train("encoding=nope", f"train.from={path}", "train.steps=1").code == 0
    nopes = [p for p in (folder / "results" / "runs").iterdir() if p.name.startswith("nope")]
    assert len(nopes) == 2


def test_data_shorter_than_a_window_writes_nothing(train, folder):
    (folder / "short").mkdir()
    (folder / "short" / "a.txt").write_text("short")
    outcome = train(
        "encoding=rope", f"data.path={folder / 'short'}", f"data.validation_path={folder / 'corpus'}"
    )
    assert outcome.code == 2 and "train.length=16" in outcome.line
    assert not (folder / "results").exists()


def test_a_number_may_be_written_with_or_without_a_decimal_point(train, folder):
    train("encoding=rope", "encoding.base=500000")
    assert "is already trained" in train("encoding=rope", "encoding.base=500000.0").err


@pytest.mark.parametrize("error", [RuntimeError("no\nat all"), UserError("say it")])
def test_the_error_of_a_run_stays_in_its_directory_until_the_run_succeeds(
    train, command, folder, monkeypatch, error
):
    def fail(*arguments):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("pe_bench.experiment.fit", fail)
        with suppress(Exception):
            train("encoding=nope")
    assert type(error).__name__ in (only_run(folder) / "error.txt").read_text()
    assert "failed" in command("list", "runs", "--results-dir", str(folder / "results")).out
    assert train("encoding=nope").code == 0
    assert not (only_run(folder) / "error.txt").exists()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce fail] can't allocate memory: 9 GB")])
def test_training_out_of_memory_is_one_line_with_the_way_out(train, folder, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("pe_bench.experiment.fit", fail)
    outcome = train("encoding=nope")
    assert outcome.code == 1
    assert outcome.line.startswith("pe-bench: out of memory (") and "train.micro_batches=2" in outcome.line
