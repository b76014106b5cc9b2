"""`eval hf:...`: rows of a checkpoint are like those of any other run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import TRAIN_LENGTH, edit_json, write_checkpoint
from support.commands import Command, Outcome, write_corpus

import pe_bench
from pe_bench.errors import UserError
from pe_bench.runs.folder import read_config
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.scorer import Scored, Scorer
from pe_bench.system.signals import Stopped


@pytest.fixture
def score(tmp_path: Path, command: Command) -> Command:
    """Return a function that scores the checkpoint `tmp_path/NAME` on a tiny corpus."""
    if not (tmp_path / "corpus").exists():
        write_corpus(tmp_path / "corpus")

    def run(name: str, *arguments: str) -> Outcome:
        return command(
            *("eval", f"hf:{tmp_path / name}", "data=files", f"data.path={tmp_path / 'corpus'}"),
            *(f"cache_dir={tmp_path / 'cache'}", "threads=1"),
            *(() if "--protocol" in arguments else ("eval.targets=6",)),
            *("--results-dir", str(tmp_path / "results"), *arguments),
        )

    return run


def run_in(folder: Path) -> Path:
    [run] = (folder / "results" / "runs").iterdir()
    return run


def rows_in(folder: Path) -> list[Row]:
    return read_rows(run_in(folder) / "eval.csv")


def test_a_checkpoint_is_scored_like_a_run(tmp_path: Path, score: Command, command: Command) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    done = score("llama", "--lengths", "16,64", "--with", "yarn,self_extend group_size=8")
    assert done.code == 2  # options are for one encoding
    done = score("llama", "--lengths", "16,64", "--with", "yarn", "--with", "self_extend group_size=8")
    assert done.code == 0, done.err
    rows = rows_in(tmp_path)
    assert {row.length for row in rows} == {16, TRAIN_LENGTH, 64}
    labels = {"rope", "yarn factor=auto", "yarn factor=2.0", "self_extend group_size=8"}
    assert {row.scored_with for row in rows} == labels
    assert {(row.model, row.encoding, row.steps, row.status) for row in rows} == {
        ("hf:llama", "rope", 0, "ok")
    }
    assert {row.control for row in rows} == {"none", "window", "swap"}
    assert "trained at 32 tokens according to max_position_embeddings" in " ".join(done.out.split())
    report = command("report", "--results-dir", str(tmp_path / "results"), "--details")
    assert report.code == 0
    assert "rope -> yarn" in report.out
    assert "trigram" not in report.out


def test_what_is_scored_is_kept_and_a_run_can_be_scored_again_by_its_name(
    tmp_path: Path, score: Command, command: Command
) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    assert score("llama", "--lengths", "64").code == 0
    [before] = [row for row in rows_in(tmp_path) if row.length == 64 and row.control == "none"]
    written = score_file(run_in(tmp_path), before).stat().st_mtime_ns
    done = command(
        "eval", run_in(tmp_path).name, "--lengths", "48,64", "--results-dir", str(tmp_path / "results")
    )
    assert done.code == 0, done.err
    assert score_file(run_in(tmp_path), before).stat().st_mtime_ns == written
    assert {row.length for row in rows_in(tmp_path)} == {TRAIN_LENGTH, 48, 64}
    assert "hf-llama" in command("list", "runs", "--results-dir", str(tmp_path / "results")).out


def test_another_checkpoint_in_the_same_folder_is_not_mixed_with_the_first(
    tmp_path: Path, score: Command, command: Command
) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    assert score("llama", "--lengths", "64").code == 0
    run = run_in(tmp_path)
    edit_json(tmp_path / "llama" / "config.json", rms_norm_eps=1e-3)
    done = command("eval", run.name, "--lengths", "48", "--results-dir", str(tmp_path / "results"))
    assert done.code == 2
    assert "is not what" in done.line
    assert score("llama", "--lengths", "64").code == 0
    assert len(list(run.parent.iterdir())) == 2


def test_other_weights_in_a_folder_of_the_same_name_are_another_run(tmp_path: Path, score: Command) -> None:
    levels = set()
    for seed, parent in enumerate("ab"):
        write_checkpoint(tmp_path / parent / "checkpoint-100", "llama", seed)
        done = score(f"{parent}/checkpoint-100", "--lengths", "32")
        assert done.code == 0, done.err
    for run in (tmp_path / "results" / "runs").iterdir():
        levels |= {row.nll for row in read_rows(run / "eval.csv")}
    assert len(levels) == 2


def test_random_weights_have_not_learned_and_no_verdict(
    tmp_path: Path, score: Command, command: Command
) -> None:
    """They are compared with the entropy of the scored tokens' own frequencies, the best of single tokens."""
    write_checkpoint(tmp_path / "llama", "llama")
    done = score("llama", "--lengths", "16,64")
    assert "not surely better at 32 than how often each token is" in " ".join(done.out.split())
    [anchor] = (tmp_path / "results" / "anchors").glob("*/eval.csv")
    row = next(row for row in read_rows(anchor) if row.length == TRAIN_LENGTH)
    scores = load_scores(score_file(anchor.parent, row))
    nll, counts = np.unique(scores.nll, return_counts=True)
    tokens = counts / (row.targets * np.exp(-nll))  # that are equally frequent
    assert np.allclose(tokens, tokens.round(), atol=1e-3) and row.targets == len(scores.nll)
    assert command("report", "--results-dir", str(tmp_path / "results")).out.count("*") >= 2


def test_all_text_of_a_folder_is_scored(tmp_path: Path, command: Command) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    write_corpus(tmp_path / "corpus")
    names = sorted(path.stem for path in (tmp_path / "corpus").rglob("*.txt"))
    where = (f"cache_dir={tmp_path / 'cache'}", "threads=1", "--results-dir", str(tmp_path / "results"))
    all_of_it = ("--lengths", "32", "--targets", "9999")
    done = command("eval", f"hf:{tmp_path / 'llama'}", f"data.path={tmp_path / 'corpus'}", *where, *all_of_it)
    assert done.code == 0, done.err
    assert {row.documents for row in rows_in(tmp_path)} == {len(names)}
    refused = command(
        "train",
        "encoding=rope",
        "data=files",
        f"data.path={tmp_path / 'corpus'}",
        *where[:2],
        f"results_dir={tmp_path / 'results'}",
        "data.validation_fraction=1",
    )
    assert refused.code == 2 and "Traceback" not in refused.err


def test_a_run_says_how_it_was_made(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "gemma", "gemma3_text")
    assert score("gemma", "train.length=16", "--lengths", "32").code == 0
    config = read_config(run_in(tmp_path))
    assert config.checkpoint is not None
    assert config.checkpoint.source == f"hf:{tmp_path / 'gemma'}"
    assert config.checkpoint.train_length_from == "the command"
    assert (config.checkpoint.layers, config.model.n_layers) == (1, 6)
    assert (config.train.length, config.encoding["base"]) == (16, 1_000_000)
    assert json.loads((run_in(tmp_path) / "result.json").read_text())["encoding"].startswith("rope")


def test_the_window_control_equals_a_sliding_window(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    done = score("llama", "--lengths", "64", "--with", "sliding_window window=32")
    assert done.code == 0, done.err
    rows = {(row.scored_with, row.control): row for row in rows_in(tmp_path) if row.length == 64}
    window = rows["rope", "window"]
    [inside] = [row for key, row in rows.items() if "sliding_window" in key[0] and key[1] == "none"]
    one, other = (load_scores(score_file(run_in(tmp_path), row)).nll for row in (window, inside))
    assert np.allclose(one, other, atol=1e-4)
    assert not np.allclose(
        one, load_scores(score_file(run_in(tmp_path), rows["rope", "none"])).nll, atol=1e-4
    )


def test_the_offset_control_ends_with_a_table_of_positions(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "gpt2", "gpt2")
    assert score("gpt2", "train.length=32", "--lengths", "48,96", "--controls", "offset").code == 0
    offsets = {row.length: row.status for row in rows_in(tmp_path) if row.control == "offset"}
    levels = {row.length: row.status for row in rows_in(tmp_path) if row.control == "none"}
    assert levels == {32: "ok", 48: "ok", 96: "undefined"}
    assert offsets == {96: "undefined"} or set(offsets.values()) <= {"ok", "undefined"}


def test_a_model_without_the_interface_has_no_window_and_no_other_encoding(
    tmp_path: Path, score: Command
) -> None:
    write_checkpoint(tmp_path / "bloom", "bloom")
    done = score("bloom", "train.length=32", "--lengths", "64")
    assert done.code == 0, done.err
    status = {row.control: row.status for row in rows_in(tmp_path) if row.length == 64}
    assert status == {"none": "ok", "swap": "ok", "window": "undefined"}
    for other in ("logn", "yarn"):
        refused = score("bloom", "train.length=32", "--lengths", "64", "--with", other)
        assert refused.code == 2
        assert "is scored as it is, with transformers' attention, so --with has nothing" in refused.line


def test_every_protocol_scores_a_checkpoint(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    for protocol in ("sliding", "nonoverlapping"):
        assert score("llama", "--lengths", "16,64", "--protocol", protocol, "eval.tokens=300").code == 0
    assert {row.protocol for row in rows_in(tmp_path)} == {"sliding", "nonoverlapping"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["encoding=alibi"], "encoding=alibi has no effect on a checkpoint"),
        (["train.lr=1"], "train.lr=1 has no effect on a checkpoint"),
        (["results_dir=r"], "say --results-dir r"),
        (["rope"], "rope is not KEY=VALUE"),
        (["--with", "alibi"], "alibi works on no other encoding's weights"),
        (["--with", "alibi", "--force"], None),
        (["--with", "t5", "--force"], "weights trained with rope do not fit t5"),
        (["--with", "randomized", "--force"], "needs ids"),
        (["train.length=x"], "train.length=x is not a whole number"),
        (["--where", "seed<3"], "--where and --all choose runs"),
        (["--key-tokens-of", "rope"], "key_tokens_of is for a run: leave it out"),
        (["--code", "mine.py"], "code is for a run: leave it out"),
    ],
)
def test_what_a_checkpoint_cannot_take_is_refused(
    tmp_path: Path, score: Command, arguments: list[str], told: str | None
) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    done = score("llama", "--lengths", "64", *arguments)
    assert done.code == (0 if told is None else 2), done.err
    assert told is None or told in done.line
    assert told is None or not (tmp_path / "results" / "runs").exists()


def test_a_checkpoint_without_a_training_length_asks_for_it(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "bloom", "bloom")
    done = score("bloom", "--lengths", "64")
    assert done.code == 2
    assert "does not say at what length it was trained: say train.length=N" in done.line


def test_plain_is_for_checkpoints(tmp_path: Path, command: Command, score: Command) -> None:
    assert "plain is for a checkpoint" in command("eval", "--plain").line
    write_checkpoint(tmp_path / "llama", "llama")
    assert score("llama", "--lengths", "64", "--plain").code == 0
    assert {row.encoding for row in rows_in(tmp_path)} == {"as_is"}


def test_evaluate_scores_a_checkpoint_as_the_command_does(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    overrides = ["data=files", f"data.path={tmp_path / 'corpus'}", "eval.max_length=64", "eval.targets=6"]
    elsewhere = {"cache_dir": tmp_path / "cache", "threads": 1, "results_dir": tmp_path / "results"}
    name = f"hf:{tmp_path / 'llama'}"
    run = pe_bench.evaluate(name, [16, 64], "yarn factor=2", overrides=overrides, **elsewhere)
    assert run.path == run_in(tmp_path)
    assert set(run.scores["scored_with"]) == {"rope", "yarn factor=2.0"}
    assert set(run.scores["length"]) == {16, TRAIN_LENGTH, 64}
    before = rows_in(tmp_path)
    assert score("llama", "--lengths", "16,64", "--with", "yarn factor=2").out.startswith(str(run)[:300])
    assert rows_in(tmp_path) == before, "nothing was scored again"
    later = pe_bench.evaluate(run, 48)
    assert set(later.scores["length"]) == {TRAIN_LENGTH, 48}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"overrides": "encoding=alibi"}, "encoding=alibi has no effect on a checkpoint"),
        ({"overrides": ["data=files", "data.path=nowhere"]}, "nowhere"),
        ({"key_tokens_of": "rope"}, "key_tokens_of is for a run"),
        ({"code": "mine.py"}, "code is for a run"),
        ({"run": "rope", "overrides": "data=files"}, "overrides is for a checkpoint"),
        ({"run": "rope", "plain": True}, "plain is for a checkpoint"),
    ],
)
def test_what_evaluate_cannot_do_with_a_checkpoint_is_a_user_error(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    with pytest.raises(UserError, match=told):
        pe_bench.evaluate(
            **{"run": f"hf:{tmp_path / 'llama'}", "results_dir": tmp_path / "results", **options}
        )
    assert not (tmp_path / "results").exists()


def test_an_interrupt_says_what_is_kept_and_the_same_command_continues(
    tmp_path: Path, score: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    run_whole = Scorer.score
    scored: list[int] = []

    def stop_at_the_second(self: Scorer, plan: Plan) -> Scored:
        if scored:
            raise Stopped
        scored.append(plan.length)
        return run_whole(self, plan)

    monkeypatch.setattr(Scorer, "score", stop_at_the_second)
    done = score("llama", "--lengths", "16,64")
    assert done.code == 130
    assert "the lengths scored so far are saved, and the same command continues from there" in done.err
    assert [row.length for row in rows_in(tmp_path)] == scored
    monkeypatch.setattr(Scorer, "score", run_whole)
    assert score("llama", "--lengths", "16,64").code == 0
    assert {row.length for row in rows_in(tmp_path)} == {16, TRAIN_LENGTH, 64}


def test_slices_and_the_page_are_those_of_any_run(tmp_path: Path, score: Command, command: Command) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    assert score("llama", "--lengths", "64").code == 0
    where = ("report", "--results-dir", str(tmp_path / "results"))
    for name in ("recall", "novel"):
        report = command(*where, "--slice", name)
        assert report.code == 0, report.err
        assert f"targets: {name}" in report.out and "rope" in report.out
    page = tmp_path / "page.html"
    assert command(*where, "--html", str(page)).code == 0
    assert "hf:llama: trained at 32 tokens according to max_position_embeddings" in page.read_text()


def test_documents_must_hold_the_longest_length_that_is_named_and_no_more(
    tmp_path: Path, score: Command
) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    done = score("llama", "--lengths", "64,128", "--with", "yarn")
    assert done.code == 0, done.err
    assert "reach 128 tokens" in done.err
    assert "yarn factor=4.0" in done.out
    assert read_config(run_in(tmp_path)).eval.max_length == 128
    done = score("llama", "--lengths", "64", "--max-length", "256")
    assert done.code == 0 and "reach 256 tokens" in done.err


def test_latent_attention_is_scored_and_keeps_its_rotation(tmp_path: Path, score: Command) -> None:
    write_checkpoint(tmp_path / "deepseek", "deepseek_v3")
    assert score("deepseek", "--lengths", "64").code == 0
    assert {(row.control, row.status) for row in rows_in(tmp_path) if row.length == 64} == {
        ("none", "ok"),
        ("window", "ok"),
        ("swap", "ok"),
    }
    refused = score("deepseek", "--lengths", "64", "--with", "yarn")
    assert refused.code == 2
    assert "hf:deepseek rotates its queries and keys in a way that pe-bench does not know" in refused.line


def test_a_checkpoint_s_folder_without_the_prefix_is_answered(tmp_path: Path, command: Command) -> None:
    folder = write_checkpoint(tmp_path / "llama", "llama")
    done = command("eval", str(folder), "--lengths", "64")
    assert done.code == 2
    assert f"{folder} is a checkpoint of Hugging Face: say hf:{folder}" in done.line
