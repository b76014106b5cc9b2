"""`export --hf`: transformers loads a run of ours, and both score every target alike."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.commands import Command, Outcome, only_run
from support.hf_models import edit_json, opened, write_hf_model

from pe_bench.config.compose import compose_config
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.errors import UserError
from pe_bench.hf import export
from pe_bench.hf.library import quiet
from pe_bench.model.decoder import build_decoder
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file

WINDOW = "modifier=[sliding_window] encoding.modifiers.sliding_window.window=5"
QK_NORM = "model.qk_norm=true"
EXPORTED = {
    "encoding=rope encoding.layout=interleaved model.n_kv_heads=1": "llama",
    "encoding=rope encoding.base=500 model.tie_embeddings=false": "llama",
    "encoding=p_rope encoding.fraction=0.5": "llama",
    f"encoding=nope {WINDOW}": "smollm3",
    WINDOW: "mistral",
    "encoding=rope_pi encoding.factor=2": "llama",
    "encoding=rope_ntk encoding.factor=2": "llama",
    "encoding=rope_dynamic_ntk": "llama",
    "encoding=yarn encoding.factor=4": "llama",
    "encoding=yarn encoding.factor=4 encoding.ramp=exact": "llama",
    "encoding=llama3 encoding.factor=4": "llama",
    "encoding=longrope encoding.factor=4 encoding.long_factors=[1,2,3,4]": "llama",
    f"encoding=yarn encoding.factor=4 encoding.layout=interleaved {QK_NORM}": "qwen3",
    f"{WINDOW} {QK_NORM}": "qwen3",
    "encoding=smollm3 encoding.every=2": "smollm3",
    "encoding=cohere2 encoding.every=2 encoding.window=5": "smollm3",
    "encoding=local_global encoding.every=2": "smollm3",
    "encoding=local_global encoding.every=2 encoding.first=true encoding.window=null "
    "encoding.local={name:nope} encoding.global={name:rope,base:500}": "smollm3",
}
NO_MODEL = "no model of transformers has the encoding"
REFUSED = {
    "encoding=alibi": f"{NO_MODEL} alibi; these can be exported: rope, p_rope",
    "encoding=rope modifier=[logn]": f"{NO_MODEL} rope+logn",
    f"encoding=nope {QK_NORM}": "no model of transformers has model.qk_norm and nope",
    "encoding=yarn": "another factor in each window",
    "encoding=yarn encoding.factor=2 encoding.ramp=turns": "no yarn with ramp=turns",
    "encoding=learned encoding.max_position=64": f"{NO_MODEL} learned",
    "encoding=gemma3 encoding.every=2": f"{NO_MODEL} gemma3",
    "encoding=local_global encoding.every=2 encoding.global={name:rope,base:500}": f"{NO_MODEL} local_global",
}


TINY = ("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24", "model.d_head=8")


def written(folder: Path, overrides: str) -> dict[str, Any]:
    """Write a model that was not trained as `export` does, which compares the logits."""
    config = compose_config([*TINY, "train.length=16", *overrides.split()])
    model = build_decoder(config, ByteTokenizer().vocabulary)
    for parameter in model.parameters():  # so that scales are not one
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    settings, is_interleaved = export.exported_settings(config, model, 256)
    export.write_model(folder, config, model.eval(), settings, is_interleaved=is_interleaved)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("overrides", EXPORTED)
def test_transformers_loads_what_is_exported_with_equal_logits(tmp_path: Path, overrides: str) -> None:
    assert written(tmp_path, overrides)["model_type"] == EXPORTED[overrides]


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        ("encoding=yarn encoding.factor=4 encoding.train_length=4", 16),
        ("encoding=llama3 encoding.factor=2 encoding.train_length=4", 16),
        ("encoding=yarn encoding.factor=8 encoding.train_length=4", 32),
        ("encoding=rope_dynamic_ntk encoding.train_length=4", 4),
        ("encoding=rope_pi encoding.factor=8 encoding.train_length=4", 16),
    ],
)
def test_a_later_stage_is_exported_with_the_length_that_its_rotation_stretches_to(
    tmp_path: Path, overrides: str, longest: int
) -> None:
    config = written(tmp_path, overrides)  # trained at 16 tokens
    assert config["max_position_embeddings"] == longest
    if "yarn" in overrides or "llama3" in overrides:
        assert config["rope_parameters"]["original_max_position_embeddings"] == 4


def test_what_transformers_does_not_have_is_refused(tmp_path: Path) -> None:
    for overrides, message in REFUSED.items():
        with pytest.raises(UserError, match=re.escape(message)):
            written(tmp_path, overrides)


@pytest.fixture
def export_run(command: Command, folder: Path) -> Callable[[], Outcome]:
    """Return a function that exports the only run to `folder`/out."""
    where = ("--hf", str(folder / "out"), "--results-dir", str(folder / "results"))
    return lambda: command("export", only_run(folder).name, *where)


def test_the_export_scores_every_target_as_the_run_does(
    train: Command, command: Command, export_run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The window control of a run hides the first tokens, which that of a Hugging Face model shows.
    monkeypatch.setattr("pe_bench.hf.attention.ALWAYS_VISIBLE_TOKENS", 0)

    def scored(results: str, *overrides: str) -> dict[tuple[int, str], tuple[Path, Row]]:
        """Score the export on the run's data; return a path and a row by length and control."""
        data = ("data=files", f"data.path={folder / 'corpus'}", f"cache_dir={folder / 'cache'}", "threads=1")
        where = ("eval.targets=6", "eval.max_length=64", "--results-dir", str(folder / results))
        done = command("eval", f"hf:{folder / 'out'}", *data, *overrides, *where)
        assert done.code == 0, done.err
        [run] = (folder / results / "runs").iterdir()
        return {(row.length, row.control): (run, row) for row in read_rows(run / "eval.csv")}

    assert train("encoding=rope", "eval.controls=all").code == 0
    assert export_run().code == 0
    theirs = scored("first", "eval.lengths=[16,32]", "eval.controls=all", "data.validation_fraction=0.2")
    run = only_run(folder)
    rows = {(row.length, row.control): (run, row) for row in read_rows(run / "eval.csv")}
    assert theirs.keys() == rows.keys() and (32, "swap") in rows
    for key in rows:
        ours, others = (load_scores(score_file(*of_run[key])).nll for of_run in (rows, theirs))
        assert np.allclose(ours, others, atol=2e-5), key
    edit_json(folder / "out" / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    labels = {row.encoding for _, row in scored("again", "eval.lengths=[32]").values()}
    assert labels == {"rope base=500.0"}, "an export is read by its configuration alone"


def test_the_tokenizer_and_a_card_go_along(begin: Command, export_run: Command, folder: Path) -> None:
    assert begin("encoding=rope", "tokenizer=bpe", "tokenizer.vocab_size=300").code == 0
    assert export_run().code == 0
    out = folder / "out"
    with quiet() as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    text = "the cat  sat\non naïve mats"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text and max(ids) < len(tokenizer)
    _, front, text = (out / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    [result] = yaml.safe_load(front)["model-index"][0]["results"]
    rows = {row.length: row for row in read_rows(only_run(folder) / "eval.csv") if row.control == "none"}
    told = {int(metric["name"].split()[-2]): metric["value"] for metric in result["metrics"]}
    assert told == {length: pytest.approx(row.bits_per_byte) for length, row in rows.items()}
    for fact in ("`rope`", "pe-bench train", f"| 32 | {rows[32].bits_per_byte:.3f}\\* |"):
        assert fact in text
    assert re.search("weights SHA-256 [0-9a-f]{64}", text)
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1, "safetensors hides its files"


def test_an_export_that_is_not_equal_or_has_no_empty_folder_is_not_written(
    begin: Command, command: Command, export_run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin("encoding=rope").code == 0
    monkeypatch.setitem(export.WEIGHT_NAMES, "attention.query", "self_attn.k_proj")
    monkeypatch.setitem(export.WEIGHT_NAMES, "attention.key", "self_attn.q_proj")
    done = export_run()
    assert done.code == 1 and "differ from ours" in done.line
    assert [path.name for path in folder.iterdir() if "out" in path.name] == []
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("mine")
    done = export_run()
    assert done.code == 2 and "exists and is not empty" in done.line
    assert (folder / "out" / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [("encoding=rope", 16), ("encoding=rope_dynamic_ntk", 16), ("encoding=yarn encoding.factor=4", 64)],
)
def test_an_export_says_up_to_which_length_it_works_and_what_ends_a_text(
    tmp_path: Path, overrides: str, longest: int
) -> None:
    config = written(tmp_path, overrides)
    assert (config["max_position_embeddings"], config["eos_token_id"]) == (longest, 256)
    assert config["rms_norm_eps"] == 1e-5, "another epsilon would hardly show in the logits"


@pytest.mark.parametrize(
    "scaling",
    [
        "yarn factor=2",
        "rope_pi factor=4",
        "rope_dynamic_ntk factor=2",
        "llama3 factor=8",
        "longrope factor=2 long_factors=[1,2,3,4]",
    ],
)
def test_an_hf_model_is_written_with_a_scaling_that_transformers_and_eval_then_have(
    tmp_path: Path, command: Command, scaling: str
) -> None:
    theta = {"rope_type": "default", "rope_theta": 5e4}
    folder = write_hf_model(tmp_path / "llama", "llama", rope_parameters=theta)
    out = tmp_path / "scaled"
    done = command("export", f"hf:{folder}", "--with", scaling, "--hf", str(out))
    assert done.code == 0 and "are equal to" in done.err, done.err
    found = opened(out, is_checked=True).encoding
    assert (found["name"], found["base"]) == (scaling.split()[0], 50_000.0)
    assert json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_type"] == "default"
    again = command("export", f"hf:{folder}", "--with", scaling, "--hf", str(out))
    assert again.code == 2 and "exists and is not empty" in again.line


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("llama", [], "is a Hugging Face model already: give --with"),
        ("llama", ["--with", "yarn"], "give a single one with its factor"),
        (
            "llama",
            ["--with", "rope base=80000"],
            "cannot change to 80000.0 after training (changeable: none)",
        ),
        ("llama", ["--with", "self_extend"], "no model of transformers has the encoding self_extend"),
        ("llama", ["--with", "yarn factor=2 ramp=turns"], "no yarn with ramp=turns"),
        ("gemma3_text", ["--with", "yarn factor=2"], "rotate in several ways"),
        ("bloom", ["--with", "yarn factor=2"], "does not say at what length it was trained"),
    ],
)
def test_what_transformers_cannot_say_of_an_hf_model_is_refused_and_nothing_is_written(
    tmp_path: Path, command: Command, architecture: str, options: list[str], message: str
) -> None:
    folder = write_hf_model(tmp_path / "model", architecture)
    done = command("export", f"hf:{folder}", *options, "--hf", str(tmp_path / "out"))
    assert done.code == 2 and message in done.line and "--force" not in done.line
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
