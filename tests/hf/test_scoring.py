"""`eval hf:...` and `probe hf:...`: rows of a Hugging Face model are like those of any other run."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import Command, write_corpus
from support.hf_models import TRAIN_LENGTH, edit_json, write_hf_model
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaModel

import pe_bench
from pe_bench.hf.load import hf_model_config
from pe_bench.hf.model import HuggingFaceModel
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.folder import read_config
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.needles import ANSWER_TOKENS, HF_MODEL_WINDOWS


@pytest.mark.parametrize(
    ("train_length", "overrides", "expected"),
    [
        (8_192, [], (1_024, 16)),
        (3_000, [], (256, 64)),
        (262_144, [], (4_096, 4)),
        (512, [], (128, 128)),  # never smaller than the blocks of a run
        (32, [], (32, 128)),
        (8_192, ["eval.targets=6"], (1_024, 6)),
        (8_192, ["eval.target_tokens=512"], (512, 32)),
        (8_192, ["eval.target_tokens=16"], (16, 128)),
        (8_192, ["train.length=2048"], (256, 64)),
    ],
)
def test_blocks_of_an_hf_model_are_as_large_as_its_training_length_allows(
    tmp_path: Path, train_length: int, overrides: list[str], expected: tuple[int, int]
) -> None:
    folder = write_hf_model(tmp_path / "llama", "llama", max_position_embeddings=train_length)
    config = hf_model_config(f"hf:{folder}", overrides, {}, {}, tmp_path / "results")
    assert (config.eval.resolved_target_tokens(config.train.length), config.eval.targets) == expected


@pytest.fixture
def call(tmp_path: Path, command: Command) -> Command:
    """Return a function that scores or probes `tmp_path/NAME` on a tiny corpus; a Llama is there."""
    write_hf_model(tmp_path / "llama", "llama")
    text = ("data=files", f"data.path={write_corpus(tmp_path / 'corpus')}", "eval.targets=6")
    where = (f"cache_dir={tmp_path / 'cache'}", "threads=1", "--results-dir", str(tmp_path / "results"))

    def run(name: str, name_of_model: str, *arguments: str):
        of_text = () if "--task" in arguments else text
        return command(name, f"hf:{tmp_path / name_of_model}", *of_text, *where, *arguments)

    return run


def rows_of(folder: Path) -> dict[Path, list[Row]]:
    return {run: read_rows(run / "eval.csv") for run in (folder / "results" / "runs").iterdir()}


def test_an_hf_model_is_scored_reported_and_listed_like_a_run_and_from_python(
    tmp_path: Path, call: Command, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_bench.hf.attention.ALWAYS_VISIBLE_TOKENS", 0)
    window = "sliding_window window=32"
    done = call("eval", "llama", "--lengths", "16,64", "--with", "yarn factor=2", "--with", window)
    assert done.code == 0, done.err
    [(run, rows)] = rows_of(tmp_path).items()
    assert {row.length for row in rows} == {16, TRAIN_LENGTH, 64}
    [windowed] = {row.scored_with for row in rows} - {"rope", "yarn factor=2.0"}
    shared = {(row.model, row.encoding, row.steps, row.status) for row in rows if row.scored_with != windowed}
    assert shared == {("hf:llama", "rope", 0, "ok")}
    scored = [row for row in rows if row.length == 64 and row.status == "ok"]
    nll = {(row.scored_with, row.control): load_scores(score_file(run, row)).nll for row in scored}
    assert {control for _, control in nll} == {"none", "window", "swap"}
    outside, inside = nll["rope", "window"], nll[windowed, "none"]
    assert np.allclose(outside, inside, atol=1e-4), "the control limits layers as a sliding window does"
    assert not np.allclose(outside, nll["rope", "none"], atol=1e-4)
    said = " ".join(done.out.split())
    assert "trained at 32 tokens according to max_position_embeddings" in said
    assert re.search(r"\d+ targets of \d+ documents are too few to say whether it has learned", said)
    where = ("--results-dir", str(tmp_path / "results"))
    report = command("report", *where, "--details")
    assert report.code == 0 and "rope -> yarn" in report.out and "trigram" not in report.out
    assert "seeds" in report.out and "tokens/s" not in report.out
    assert "hf-llama" in command("list", "runs", *where).out

    overrides = ["data=files", f"data.path={tmp_path / 'corpus'}", "eval.max_length=64", "eval.targets=6"]
    elsewhere = {"cache_dir": tmp_path / "cache", "threads": 1, "results_dir": tmp_path / "results"}
    again = pe_bench.evaluate(f"hf:{tmp_path / 'llama'}", [16, 64], overrides=overrides, **elsewhere)
    assert again.path == run and set(again.scores["length"]) == {16, TRAIN_LENGTH, 64}
    assert rows_of(tmp_path) == {run: rows}, "nothing was scored again"


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        (["--reference", "16"], {4, 16, 64}),
        (["--reference", "16", "--controls", "none"], {16, 64}),
        (["--reference", "6"], {2, 6, 64}),
        ([], {TRAIN_LENGTH, 64}),
    ],
)
def test_a_reference_is_scored_with_its_quarter_which_says_whether_gains_beyond_it_count(
    tmp_path: Path, call: Command, options: list[str], lengths: set[int]
) -> None:
    done = call("eval", "llama", "--lengths", "64", *options, "--json")
    assert done.code == 0, done.err
    [rows] = rows_of(tmp_path).values()
    assert {row.length for row in rows} == lengths
    assert ("a quarter of the training length" in done.out) == (options == [])


def test_hf_models_side_by_side_are_lines_of_a_table_for_each_tokenizer(
    tmp_path: Path, call: Command, command: Command
) -> None:
    write_hf_model(tmp_path / "tuned", "llama", 1, max_position_embeddings=64)
    both = tuple(f"hf:{tmp_path / name}" for name in ("llama", "tuned"))
    baseline = ("--baseline", both[0])
    mistyped = call("eval", "llama", both[1], "--lengths", "48", "--baseline", f"{both[0]}x")
    assert (
        mistyped.code == 2 and f"unknown --baseline '{both[0]}x': did you mean '{both[0]}'" in mistyped.line
    )
    assert not (tmp_path / "results").exists(), "nothing is scored"
    done = call("eval", "llama", both[1], "--lengths", "48", *baseline, "--json")
    assert done.code == 0, done.err
    assert f"--reference {TRAIN_LENGTH}: all are measured from the shortest" in done.err
    [table] = json.loads(done.out)["tables"]
    llama, tuned = (f"rope of {name} (Llama, 0.05M)" for name in ("llama", "tuned"))
    records = {line["label"]: line["records"][1] for line in table["lines"]}
    assert (records.keys(), table["baseline"]) == ({llama, tuned}, llama)
    difference = records[tuned]["level"] - records[llama]["level"]
    assert records[tuned]["baseline"]["mean"] == pytest.approx(difference)
    where = ("--results-dir", str(tmp_path / "results"))
    [again] = json.loads(command("report", *both, *where, *baseline, "--json").out)["tables"]
    assert (again["lines"], again["baseline"]) == (table["lines"], table["baseline"])

    path = write_hf_model(tmp_path / "other", "llama", 1) / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    unused = next(token for token, number in model["vocab"].items() if number == 1)
    vocab = {"th" if token == unused else token: number for token, number in model["vocab"].items()}
    edit_json(path, model=model | {"vocab": vocab, "merges": [["t", "h"]]})
    done = call("eval", "llama", f"hf:{tmp_path / 'other'}", "--lengths", "48")
    assert "table 1 of 2" in done.out and "compare bits per byte by eye" in " ".join(done.out.split())


def test_a_reference_is_measured_from_and_scalings_follow_from_the_training_length(
    tmp_path: Path, call: Command
) -> None:
    write_hf_model(tmp_path / "long", "llama", max_position_embeddings=64)
    scalings = ("--with", "yarn", "--with", "yarn factor=fixed")
    options = ("--lengths", "64,96", "--controls", "all", *scalings)
    assert call("eval", "long", *options).code == 0
    [run] = rows_of(tmp_path)
    blocks = f"eval.target_tokens={read_config(run).eval.target_tokens}"
    done = call("eval", "long", *options, blocks, "--reference", "32")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "measured from 32 tokens" in said
    assert "hf:long: trained at 64 tokens according to max_position_embeddings, and measured from 32" in said
    [other] = set(rows_of(tmp_path)) - {run}
    measured, usual = rows_of(tmp_path)[other], rows_of(tmp_path)[run]
    assert {row.train_length for row in measured} == {32} and {row.train_length for row in usual} == {64}
    assert {row.length for row in measured if row.control == "swap"} == {64, 96}
    assert {row.length for row in usual if row.control == "swap"} == {96}
    levels = [
        {(row.scored_with, row.length): row.nll for row in rows if row.control == "none" and row.length > 32}
        for rows in (measured, usual)
    ]
    assert levels[0] == levels[1] and ("yarn factor=1.5", 96) in levels[0]
    refused = call("eval", "long", "--reference", "1")
    assert refused.code == 2 and "--reference must be a whole number of at least 2, not 1" in refused.line


def test_labels_say_a_shared_option_once_and_nothing_is_said_of_training(
    tmp_path: Path, call: Command
) -> None:
    write_hf_model(tmp_path / "far", "llama", rope_parameters={"rope_type": "default", "rope_theta": 5e4})
    options = ("--lengths", "16", "--with", "yarn factor=2", "--with", "rope_pi factor=2")
    done = call("eval", "far", *options, "--json")
    assert done.code == 0 and "for training" not in done.err
    [table] = json.loads(done.out)["tables"]
    yarn, pi = "rope base=50000.0 -> yarn factor=2.0", "rope base=50000.0 -> rope_pi factor=2.0"
    assert {line["label"] for line in table["lines"]} == {"rope base=50000.0", yarn, pi}
    for name in (yarn, f"{yarn} base=50000.0"):
        done = call("eval", "far", *options, "--baseline", name, "--json")
        assert json.loads(done.out)["tables"][0]["baseline"] == yarn
    # The other base is yarn's default, which no label says.
    done = call("eval", "far", *options, "--with", "yarn factor=2 base=10000", "--json")
    labels = {line["label"] for line in json.loads(done.out)["tables"][0]["lines"]}
    assert labels == {"rope base=50000.0", yarn, pi, f"{yarn} base=50000.0"}


def test_string_shortens_the_distances_of_an_hf_model(tmp_path: Path, call: Command) -> None:
    plain, short = "string shift_from=99 attention_factor=1.0", "string attention_factor=1.0"
    done = call("eval", "llama", "--lengths", "64", "--controls", "none", "--with", plain, "--with", short)
    assert done.code == 0, done.err
    [(run, rows)] = rows_of(tmp_path).items()
    nll = {(row.scored_with, row.length): load_scores(score_file(run, row)).nll for row in rows}
    for length in (TRAIN_LENGTH, 64):
        assert np.allclose(nll[plain, length], nll["rope", length], atol=1e-5), "no distance is so large"
        assert not np.allclose(nll[short, length], nll["rope", length], atol=1e-5)


def test_a_probe_of_an_hf_model_has_few_windows_and_says_a_shared_option_once(
    tmp_path: Path, call: Command
) -> None:
    write_hf_model(tmp_path / "far", "llama", rope_parameters={"rope_type": "default", "rope_theta": 5e4})
    options = ("--lengths", "128", "--depths", "2", "--with", "yarn factor=2")
    assert call("probe", "far", *options).code == 0
    [rows] = rows_of(tmp_path).values()
    assert {row.targets for row in rows} == {HF_MODEL_WINDOWS * ANSWER_TOKENS}
    done = call("probe", "far", *options, "--with", "yarn factor=2 base=10000", "--json")
    labels = {line["label"] for line in json.loads(done.out)["probes"][0]["lines"]}
    yarn = "rope base=50000.0 -> yarn factor=2.0"
    assert labels == {"rope base=50000.0", yarn, f"{yarn} base=50000.0"}
    assert call("probe", "far", *options, "--windows", "3").code == 0
    rows = [row for each in rows_of(tmp_path).values() for row in each]
    assert {row.targets for row in rows} == {HF_MODEL_WINDOWS * ANSWER_TOKENS, 3 * ANSWER_TOKENS}


def test_a_probe_reads_each_text_once_and_has_the_scores_of_each_window_alone(
    tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--lengths", "128,140", "--depths", "3", "--windows", "4", "--with", "rope_dynamic_ntk")
    found = []
    fed: list[int] = []
    forward = LlamaModel.forward

    def count_tokens(self: LlamaModel, input_ids: Tensor, **named: Any) -> Any:
        fed[-1] += input_ids.numel()
        return forward(self, input_ids, **named)

    monkeypatch.setattr(LlamaModel, "forward", count_tokens)
    for reads_once in (True, False):
        fed.append(0)
        if not reads_once:
            monkeypatch.setattr(HuggingFaceModel, "keeps_last_text", False)
            monkeypatch.setattr(HuggingFaceModel, "hidden_of_ends", LanguageModel.hidden_of_ends)
        folder = ("--results-dir", str(tmp_path / f"results-{reads_once}"))
        assert call("probe", "llama", *options, *folder).code == 0
        [run] = (tmp_path / f"results-{reads_once}" / "runs").iterdir()
        scores = {}
        for row in read_rows(run / "eval.csv"):
            key = row.scored_with, row.length, row.control, row.depth
            scores[key] = load_scores(score_file(run, row))
        found.append(scores)
    assert fed[0] < 0.3 * fed[1]
    assert found[0].keys() == found[1].keys() and len(found[0]) == 2 * 2 * 2 * 3
    for key, scores in found[0].items():
        assert np.allclose(scores.nll, found[1][key].nll, atol=1e-4), key
        assert np.array_equal(scores.correct, found[1][key].correct)


def test_every_window_begins_with_all_tokens_that_the_template_puts_there(
    tmp_path: Path, call: Command
) -> None:
    path = tmp_path / "llama" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    special = [("<|endoftext|>", 256), ("!", 33)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="! <|endoftext|> $A", special_tokens=special
    )
    tokenizer.save(str(path))
    done = call("eval", "llama", "--lengths", "16")
    assert done.code == 0 and "each window begins with tokens 33, 256" in " ".join(done.out.split())
    [run] = rows_of(tmp_path)
    about = read_config(run).hf_model
    assert about is not None and about.first_token_ids == [33, 256]
    assert call("probe", "llama", "--lengths", "128", "--windows", "2").code == 0


def without_some_letters(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Replace("o", "u")


def without_rare_bytes(tokenizer: Tokenizer) -> None:
    """Keep letters and spaces: all else is unknown."""
    vocabulary = {token: number for token, number in tokenizer.get_vocab().items() if number < 127}
    kept = {token: number for token, number in vocabulary.items() if token.isalpha()}
    tokenizer.model = models.WordLevel({**kept, "<unk>": 127}, unk_token="<unk>")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")


@pytest.mark.parametrize(
    ("change", "loses"),
    [(without_some_letters, "; 0 of"), (without_rare_bytes, r"; [1-9][\d,]* of")],
)
def test_a_tokenizer_that_loses_text_has_no_bits_per_byte_but_nats_in_a_table_of_its_own(
    tmp_path: Path, call: Command, command: Command, change: Callable[[Tokenizer], None], loses: str
) -> None:
    path = write_hf_model(tmp_path / "lossy", "llama") / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    change(tokenizer)
    tokenizer.save(str(path))
    done = call("eval", "llama", f"hf:{tmp_path / 'lossy'}", "--lengths", "16,64", "--json")
    assert done.code == 0, done.err
    assert re.search(
        f"decoding the tokens does not restore .* documents{loses} [\\d,]+ tokens are unknown", done.err
    )
    tables = json.loads(done.out)["tables"]
    assert {table["key"]["tokenizer"] for table in tables} == {"", " (loses text)"} and len(tables) == 2
    [rows] = [rows for rows in rows_of(tmp_path).values() if rows[0].model == "hf:lossy"]
    [row] = [row for row in rows if row.control == "none" and row.length == TRAIN_LENGTH][:1]
    assert {row.bits_per_byte for row in rows} == {None} and row.nll is not None
    where = ("--results-dir", str(tmp_path / "results"))
    report = " ".join(command("report", row.run, *where).out.split())
    details = " ".join(command("report", row.run, *where, "--details").out.split())
    assert "bits/byte" not in details and "nats/token" in details
    assert (
        "nats per token (lower is better)" in report and "the tokenizer does not give the text back" in report
    )
    assert f"{row.nll:.3f}" in report


def test_scores_of_an_older_identity_are_kept_and_marked_and_scored_again_on_request(
    tmp_path: Path, call: Command, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        for module in ("load", "source"):
            older.setattr(f"pe_bench.hf.{module}.HF_IDENTITY_VERSION", 1)
        assert call("eval", "llama", "--lengths", "16").code == 0
    [(run, before)] = rows_of(tmp_path).items()
    where = ("--results-dir", str(tmp_path / "results"))
    refused = command("eval", run.name, "--lengths", "24", *where)
    assert refused.code == 2 and "was scored under an older identity (version 1, now 3)" in refused.line
    assert f"score it as it is now with `pe-bench eval hf:{tmp_path / 'llama'}`" in refused.line
    assert call("eval", "llama", "--lengths", "16").code == 0
    rows = rows_of(tmp_path)
    assert len(rows) == 2 and rows[run] == before
    for name in rows:
        said = " ".join(command("report", name.name, *where).out.split())
        assert (f"{run.name} is of an older identity" in said) == (name == run)


def test_another_hf_model_of_one_name_is_not_mixed_with_what_is_scored(
    tmp_path: Path, call: Command, command: Command
) -> None:
    write_hf_model(tmp_path / "gemma", "gemma3_text")
    assert call("eval", "gemma", "train.length=16", "--lengths", "32").code == 0
    [run] = rows_of(tmp_path)
    config = read_config(run)
    assert config.hf_model is not None and config.hf_model.train_length_from == "the command"
    assert (config.hf_model.layers, config.model.n_layers, config.eval.max_length) == (1, 6, 32)
    assert (config.train.length, config.encoding["base"]) == (16, 1_000_000)
    report = " ".join(command("report", run.name, "--results-dir", str(tmp_path / "results")).out.split())
    assert "measured from 16 tokens" in report and "seed" not in report
    assert "measured from 16 tokens, as the command says" in report
    edit_json(tmp_path / "gemma" / "config.json", rms_norm_eps=1e-3)
    done = command("eval", run.name, "--lengths", "24", "--results-dir", str(tmp_path / "results"))
    assert done.code == 2 and "is not what" in done.line
    assert call("eval", "gemma", "train.length=16", "--lengths", "32").code == 0
    assert len({rows[0].nll for rows in rows_of(tmp_path).values()}) == len(rows_of(tmp_path)) == 2


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
    tmp_path: Path, call: Command, name: str, controls: dict[str, str], refused: str
) -> None:
    write_hf_model(tmp_path / name, name)
    arguments = ("train.length=32", "--lengths", "96", *(["--controls", "offset"] if name == "gpt2" else []))
    assert call("eval", name, *arguments).code == 0
    [rows] = rows_of(tmp_path).values()
    assert controls.items() <= {row.control: row.status for row in rows if row.length == 96}.items()
    if refused:
        done = call("eval", name, *arguments, "--with", "yarn")
        assert done.code == 2 and refused in done.line and "so --with has nothing to replace" in done.line


def test_needles_and_prompts_of_an_hf_model_are_scored(tmp_path: Path, call: Command) -> None:
    options = ("--lengths", "128", "--depths", "2", "--windows", "6", "--with", "yarn factor=4")
    assert call("probe", "llama", *options).code == 0
    [rows] = rows_of(tmp_path).values()
    shared = {(row.protocol, row.length, row.encoding, row.status) for row in rows}
    assert shared == {("probe", 128, "rope", "ok")}
    assert {row.scored_with for row in rows} == {"rope", "yarn factor=4.0"}
    assert all(row.accuracy is not None and row.accuracy < 0.7 for row in rows), "its weights are random"
    write_hf_model(tmp_path / "long", "llama", max_position_embeddings=800)
    done = call("probe", "long", "--task", "niah_multikey_3,vt,fwe", "--lengths", "800,900", "--windows", "3")
    assert done.code == 0, done.err
    of_task = {rows[0].data: rows for rows in rows_of(tmp_path).values()}
    for name in ("niah_multikey_3", "vt", "fwe"):
        facts = [(row.length, row.exact, row.accuracy, row.documents) for row in of_task[name]]
        assert facts == [(800, 0.0, 0.0, 3), (900, 0.0, 0.0, 3)] and f"task {name}" in done.out


def test_what_an_hf_model_cannot_take_is_refused_and_leaves_nothing(tmp_path: Path, call: Command) -> None:
    write_hf_model(tmp_path / "bloom", "bloom")
    for arguments, message in (
        (["eval", "llama", "encoding=alibi"], "encoding=alibi has no effect on a Hugging Face model"),
        (["eval", "llama", "rope"], "rope has no effect on a Hugging Face model"),
        (["eval", "llama", "--with", "alibi"], "alibi works on weights of no other encoding"),
        (["eval", "llama", "--with", "t5", "--force"], "weights trained with rope do not fit t5"),
        (["eval", "llama", "--with", "randomized", "--force"], "needs ids"),
        (["eval", "llama", "train.length=x"], "train.length must be a whole number"),
        (["eval", "llama", "--key-tokens-of", "rope"], "key_tokens_of is for a run: leave it out"),
        (["eval", "bloom"], "does not say at what length it was trained: say train.length=N"),
        (["probe", "llama", "--all"], "--where and --all choose runs"),
        (["probe", "llama", "--lengths", "5000"], "no validation document has the 5001 tokens"),
        (["probe", "llama", "--task", "vt", "--depths", "3"], "depths=3 has no effect on prompts"),
        (
            ["probe", "llama", "--task", "vt", "data=files"],
            "data=files has no effect on a Hugging Face model",
        ),
        (["probe", "llama", "--task", "vt", "--lengths", "500"], "of vt has"),
        (["probe", "llama", "--task", "fwe,niah"], "unknown --task 'niah'"),
    ):
        done = call(*arguments, *([] if "probe" in arguments else ["--lengths", "64"]))
        assert done.code == 2 and message in done.line, arguments
    assert not (tmp_path / "results" / "runs").exists()
