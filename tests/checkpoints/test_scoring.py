"""`eval hf:...`: rows of a checkpoint are like those of any other run."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import TRAIN_LENGTH, edit_json, write_checkpoint
from support.commands import Command, write_corpus

import pe_bench
from pe_bench.runs.folder import read_config
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file


@pytest.fixture
def score(tmp_path: Path, command: Command) -> Command:
    """Return a function that scores the checkpoint `tmp_path/NAME` on a tiny corpus; a Llama is there."""
    write_corpus(tmp_path / "corpus")
    write_checkpoint(tmp_path / "llama", "llama")

    text = ("data=files", f"data.path={tmp_path / 'corpus'}", f"cache_dir={tmp_path / 'cache'}", "threads=1")
    where = ("eval.targets=6", "--results-dir", str(tmp_path / "results"))
    return lambda name, *arguments: command("eval", f"hf:{tmp_path / name}", *text, *where, *arguments)


def run_in(folder: Path) -> Path:
    [run] = (folder / "results" / "runs").iterdir()
    return run


def rows_in(folder: Path) -> list[Row]:
    return read_rows(run_in(folder) / "eval.csv")


def test_a_checkpoint_is_scored_reported_and_listed_like_a_run_and_from_python(
    tmp_path: Path, score: Command, command: Command
) -> None:
    window = "sliding_window window=32"
    done = score("llama", "--lengths", "16,64", "--with", "yarn factor=2", "--with", window)
    assert done.code == 0, done.err
    rows, run = rows_in(tmp_path), run_in(tmp_path)
    assert {row.length for row in rows} == {16, TRAIN_LENGTH, 64}
    labels = {row.scored_with for row in rows}
    [windowed] = labels - {"rope", "yarn factor=2.0"}
    shared = {(row.model, row.encoding, row.steps, row.status) for row in rows if row.scored_with != windowed}
    assert shared == {("hf:llama", "rope", 0, "ok")}
    nll = {
        (row.scored_with, row.control): load_scores(score_file(run, row)).nll
        for row in rows
        if row.length == 64 and row.status == "ok"
    }
    assert {control for _, control in nll} == {"none", "window", "swap"}
    outside, inside = nll["rope", "window"], nll[windowed, "none"]
    assert np.allclose(outside, inside, atol=1e-4), "the control limits layers as a sliding window does"
    assert not np.allclose(outside, nll["rope", "none"], atol=1e-4)
    said = " ".join(done.out.split())
    assert "trained at 32 tokens according to max_position_embeddings" in said
    # They are compared with the entropy of the scored tokens' own frequencies, the best of single tokens.
    assert "at the training length no better than guessing each token by how often" in said
    where = ("--results-dir", str(tmp_path / "results"))
    report = command("report", *where, "--details")
    assert report.code == 0 and "rope -> yarn" in report.out and "trigram" not in report.out
    assert "hf-llama" in command("list", "runs", *where).out
    [anchor] = (tmp_path / "results" / "anchors").glob("*/eval.csv")
    row = next(row for row in read_rows(anchor) if row.length == TRAIN_LENGTH)
    nll, counts = np.unique(load_scores(score_file(anchor.parent, row)).nll, return_counts=True)
    tokens = counts / (row.targets * np.exp(-nll))  # that are equally frequent
    assert np.allclose(tokens, tokens.round(), atol=1e-3) and row.targets == counts.sum()

    overrides = ["data=files", f"data.path={tmp_path / 'corpus'}", "eval.max_length=64", "eval.targets=6"]
    elsewhere = {"cache_dir": tmp_path / "cache", "threads": 1, "results_dir": tmp_path / "results"}
    again = pe_bench.evaluate(f"hf:{tmp_path / 'llama'}", [16, 64], overrides=overrides, **elsewhere)
    assert again.path == run and set(again.scores["length"]) == {16, TRAIN_LENGTH, 64}
    assert rows_in(tmp_path) == rows, "nothing was scored again"


def test_checkpoints_side_by_side_are_lines_of_one_table_with_a_baseline(
    tmp_path: Path, score: Command, command: Command
) -> None:
    write_checkpoint(tmp_path / "tuned", "llama", 1, max_position_embeddings=64)
    both = tuple(f"hf:{tmp_path / name}" for name in ("llama", "tuned"))
    baseline = ("--baseline", both[0])
    done = score("llama", both[1], "--lengths", "48", *baseline, "--json")
    assert done.code == 0, done.err
    assert f"train.length={TRAIN_LENGTH}: all are measured from the shortest" in done.err
    [table] = json.loads(done.out)["tables"]
    llama, tuned = (f"rope of {name} (Llama, 0.05M)" for name in ("llama", "tuned"))
    records = {line["label"]: line["records"][1] for line in table["lines"]}
    assert (records.keys(), table["baseline"]) == ({llama, tuned}, llama)
    assert records[tuned]["baseline"]["mean"] == pytest.approx(
        records[tuned]["level"] - records[llama]["level"]
    )
    where = ("--results-dir", str(tmp_path / "results"))
    [again] = json.loads(command("report", *both, *where, *baseline, "--json").out)["tables"]
    assert (again["lines"], again["baseline"]) == (table["lines"], table["baseline"])


def test_another_checkpoint_of_one_name_is_not_mixed_with_what_is_scored(
    tmp_path: Path, score: Command, command: Command
) -> None:
    write_checkpoint(tmp_path / "gemma", "gemma3_text")
    assert score("gemma", "train.length=16", "--lengths", "32").code == 0
    run, where = run_in(tmp_path), ("--results-dir", str(tmp_path / "results"))
    config = read_config(run)
    assert config.checkpoint is not None and config.eval.max_length == 32
    assert config.checkpoint.train_length_from == "the command"
    assert (config.checkpoint.layers, config.model.n_layers) == (1, 6)
    assert (config.train.length, config.encoding["base"]) == (16, 1_000_000)
    edit_json(tmp_path / "gemma" / "config.json", rms_norm_eps=1e-3)
    done = command("eval", run.name, "--lengths", "24", *where)
    assert done.code == 2 and "is not what" in done.line
    assert score("gemma", "train.length=16", "--lengths", "32").code == 0
    levels = {read_rows(path / "eval.csv")[0].nll for path in run.parent.iterdir()}
    assert len(levels) == len(list(run.parent.iterdir())) == 2


def test_checkpoints_with_other_tokenizers_get_a_table_each(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "other", "llama", 1)
    path = tmp_path / "other" / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    unused = next(token for token, number in model["vocab"].items() if number == 1)
    vocab = {"th" if token == unused else token: number for token, number in model["vocab"].items()}
    edit_json(path, model=model | {"vocab": vocab, "merges": [["t", "h"]]})
    done = score("llama", f"hf:{tmp_path / 'other'}", "--lengths", "48")
    assert done.code == 0, done.err
    assert "table 1 of 2" in done.out and "compare bits per byte by eye" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("name", "controls", "refused"),
    [
        ("gpt2", {"none": "undefined", "offset": "undefined"}, ""),
        ("bloom", {"none": "ok", "swap": "ok", "window": "undefined"}, "transformers' attention"),
        (
            "deepseek_v3",
            {"none": "ok", "swap": "ok", "window": "ok"},
            "rotates its queries and keys in a way",
        ),
    ],
)
def test_a_table_an_own_attention_and_an_own_rotation_have_their_limits(
    tmp_path: Path, score: Command, name: str, controls: dict[str, str], refused: str
) -> None:
    write_checkpoint(tmp_path / name, name)
    arguments = ("train.length=32", "--lengths", "96", *(["--controls", "offset"] if name == "gpt2" else []))
    assert score(name, *arguments).code == 0
    statuses = {row.control: row.status for row in rows_in(tmp_path) if row.length == 96}
    assert controls.items() <= statuses.items()
    if refused:
        done = score(name, *arguments, "--with", "yarn")
        assert done.code == 2 and refused in done.line and "so --with has nothing to replace" in done.line


def test_what_a_checkpoint_cannot_take_is_refused(tmp_path: Path, score: Command) -> None:
    for arguments, message in (
        (["encoding=alibi"], "encoding=alibi has no effect on a checkpoint"),
        (["rope"], "rope has no effect on a checkpoint"),
        (["--with", "alibi"], "alibi works on weights of no other encoding"),
        (["--with", "t5", "--force"], "weights trained with rope do not fit t5"),
        (["--with", "randomized", "--force"], "needs ids"),
        (["train.length=x"], "train.length must be a whole number"),
        (["--key-tokens-of", "rope"], "key_tokens_of is for a run: leave it out"),
    ):
        done = score("llama", "--lengths", "64", *arguments)
        assert done.code == 2 and message in done.line
    write_checkpoint(tmp_path / "bloom", "bloom")
    done = score("bloom", "--lengths", "64")
    assert done.code == 2 and "does not say at what length it was trained: say train.length=N" in done.line
    assert not (tmp_path / "results" / "runs").exists()
