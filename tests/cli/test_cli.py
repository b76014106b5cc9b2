"""Commands as a person types them: what they print, and what they write."""

import json
import re

import yaml
from support.commands import Command, files_in, only_run

from pe_bench.runs.rows import ALL, read_rows


def test_training_leaves_a_run_with_all_its_files_and_repeating_it_does_nothing(train, folder):
    outcome = train("encoding=rope")
    assert outcome.code == 0, outcome.err
    run = only_run(folder)
    assert "bits per byte" in outcome.out and outcome.out.split()[-2:] == [run.name, "--details"]
    assert f"the run: {run}\n" in outcome.err and "step 8 of 8" in outcome.err and "tokens/s" in outcome.err
    assert f"all rows: {folder / 'results' / 'results.csv'}" in outcome.err
    names = ("meta.json", "optimizer.safetensors", "weights.safetensors")
    assert [name for name in files_in(run) if not name.startswith("scores/")] == [
        *(f"checkpoints/step-0000000{step}/{name}" for step in (6, 8) for name in names),
        *("commands.json", "config.yaml", "environment.json", "eval.csv", "lock", "means.safetensors"),
        *("result.json", "train.csv"),
    ]
    assert len(files_in(run / "scores")) == 2 and files_in(folder / "work") == []
    environment = json.loads((run / "environment.json").read_text())
    assert environment["threads"] == 1 and all(map(environment.get, ("torch", "python", "processor", "date")))

    before = {path: (run / path).stat().st_mtime_ns for path in files_in(run)}
    again = train("encoding=rope")
    assert "is already trained" in again.err and again.out == outcome.out
    assert {path: (run / path).stat().st_mtime_ns for path in files_in(run)} == before

    more = train("encoding=rope", "eval.lengths=[16,32,64]")
    assert more.code == 0 and "scoring" in more.err and "windows of up to 64 tokens" in more.err
    assert [row.length for row in read_rows(run / "eval.csv")] == [16, 32, 64]
    scores = [path for path in before if path.startswith("scores/")]
    assert all((run / path).stat().st_mtime_ns == before[path] for path in scores)


def test_a_sweep_makes_every_run_and_prints_one_table(train, folder):
    outcome = train("-m", "encoding=rope,nope", "seed=0,1")
    assert outcome.code == 0, outcome.err
    names = sorted(path.name.rsplit("-", 1)[0] for path in (folder / "results" / "runs").iterdir())
    assert names == ["nope-s0", "nope-s1", "rope-s0", "rope-s1"]
    assert outcome.out.count("works to") == 1, "one table of all"
    assert sorted(re.findall("^(?:rope|nope)(?= )", outcome.out, re.MULTILINE)) == ["nope", "rope"]
    rows = read_rows(folder / "results" / "results.csv")
    assert sum(row.slice == ALL for row in rows) == 8
    assert outcome.err.startswith("sweep: checking every value before the first job starts\n")


def test_eval_scores_under_each_protocol_and_a_key_that_scoring_does_not_read_is_told_once(
    begin, train, command, folder
):
    told = "warning: eval.stride has no effect with eval.protocol=paired: it is for sliding"
    assert told not in begin("encoding=nope").err
    for arguments in (["eval.stride=4"], ["-m", "eval.stride=4", "seed=0,1"]):
        outcome = train("encoding=nope", *arguments)
        assert outcome.code == 0 and outcome.err.count(told) == 1, outcome.err
    results = ("--results-dir", str(folder / "results"))
    outcome = command("eval", "--stride", "4", *results)
    assert outcome.code == 0 and outcome.err.count(told) == 1
    for protocol in ("nonoverlapping", "sliding"):
        outcome = command("eval", "--lengths", "32,64", "--protocol", protocol, *results)
        assert outcome.code == 0 and f"{protocol} protocol" in outcome.out, outcome.err
        run = next((folder / "results" / "runs").glob("nope-s1-*"))  # the newest
        rows = [row for row in read_rows(run / "eval.csv") if row.protocol == protocol]
        assert [row.length for row in rows] == [16, 32, 64]
    both = train("-m", "encoding=nope", "eval.stride=4", "eval.protocol=paired,sliding")
    assert both.code == 0 and told not in both.err, "one of the runs reads it"


def test_lengths_are_an_option_of_train_and_a_comment_that_zsh_passes_on_is_left_out(
    command: Command,
) -> None:
    outcome = command("train", "--cfg", "job", "--lengths", "64,256", "#", "is", "it", "better")
    assert outcome.code == 0, outcome.err
    assert yaml.safe_load(outcome.out)["eval"]["lengths"] == [64, 256]


def test_a_single_step_is_no_plural(train: Command) -> None:
    one = ("train.steps=1", "train.warmup_steps=0", "train.checkpoint_every=1")
    outcome = train("encoding=rope", *one)
    assert outcome.code == 0, outcome.err
    assert "parameters, 1 step of 64 tokens" in outcome.err
    assert "trained at 16 tokens, 1 step · 1 seed" in outcome.out
