"""`export --hf`: transformers loads a run of ours, and both score every target alike."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import edit_json
from support.commands import Command, only_run

from pe_bench.checkpoints import export
from pe_bench.checkpoints.source import quiet
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import load_scores, score_file

EXPORTED = {
    "rope": ("llama", []),
    "rope interleaved": ("llama", ["encoding=rope", "encoding.layout=interleaved", "model.n_kv_heads=1"]),
    "rope base": ("llama", ["encoding=rope", "encoding.base=500", "model.tie_embeddings=false"]),
    "p_rope": ("llama", ["encoding=p_rope", "encoding.fraction=0.5"]),
    "nope": ("smollm3", ["encoding=nope"]),
    "nope+sliding_window": (
        "smollm3",
        ["encoding=nope", "modifier=[sliding_window]", "encoding.modifiers.sliding_window.window=5"],
    ),
    "rope+sliding_window": (
        "mistral",
        ["modifier=[sliding_window]", "encoding.modifiers.sliding_window.window=5"],
    ),
    "rope_pi": ("llama", ["encoding=rope_pi", "encoding.factor=2"]),
    "rope_ntk": ("llama", ["encoding=rope_ntk", "encoding.factor=2"]),
    "rope_dynamic_ntk": ("llama", ["encoding=rope_dynamic_ntk"]),
    "yarn": ("llama", ["encoding=yarn", "encoding.factor=4"]),
    "yarn exact": ("llama", ["encoding=yarn", "encoding.factor=4", "encoding.ramp=exact"]),
    "llama3": ("llama", ["encoding=llama3", "encoding.factor=4"]),
    "longrope": (
        "llama",
        ["encoding=longrope", "encoding.factor=4", "encoding.long_factors=[1,2,3,4]"],
    ),
}
QK_NORM = "model.qk_norm=true"
EXPORTED |= {
    "qk_norm": ("qwen3", ["encoding=yarn", "encoding.factor=4", "encoding.layout=interleaved", QK_NORM]),
    "qk_norm+sliding_window": (
        "qwen3",
        ["modifier=[sliding_window]", "encoding.modifiers.sliding_window.window=5", QK_NORM],
    ),
    "smollm3": ("smollm3", ["encoding=smollm3", "encoding.every=2"]),
    "cohere2": ("smollm3", ["encoding=cohere2", "encoding.every=2", "encoding.window=5"]),
    "local_global": ("smollm3", ["encoding=local_global", "encoding.every=2"]),
    "local_global reversed": (
        "smollm3",
        [
            *("encoding=local_global", "encoding.every=2", "encoding.first=true", "encoding.window=null"),
            *("encoding.local={name: nope}", "encoding.global={name: rope, base: 500}"),
        ],
    ),
}
NARROW = ["model.d_head=8"]


def exported(command: Command, folder: Path) -> Path:
    done = command(
        "export", only_run(folder).name, "--hf", str(folder / "out"), "--results-dir", str(folder / "results")
    )
    assert done.code == 0, done.err
    return folder / "out"


@pytest.mark.parametrize("name", EXPORTED)
def test_transformers_loads_what_is_exported_with_equal_logits(
    train: Command, command: Command, folder: Path, name: str
) -> None:
    kind, overrides = EXPORTED[name]
    assert train(*NARROW, *overrides).code == 0
    out = exported(command, folder)  # which compares the logits
    assert json.loads((out / "config.json").read_text())["model_type"] == kind


def test_the_export_scores_every_target_as_the_run_does(
    train: Command, command: Command, folder: Path
) -> None:
    assert train("encoding=rope", "eval.controls=all").code == 0
    run, out = only_run(folder), exported(command, folder)
    done = command(
        *(
            "eval",
            f"hf:{out}",
            "data=files",
            f"data.path={folder / 'corpus'}",
            "data.validation_fraction=0.2",
            f"cache_dir={folder / 'cache'}",
        ),
        *("eval.lengths=[16,32]", "eval.max_length=64", "eval.targets=6", "eval.controls=all", "threads=1"),
        *("--results-dir", str(folder / "scored")),
    )
    assert done.code == 0, done.err
    [other] = (folder / "scored" / "runs").iterdir()
    found = {(row.length, row.control): (row, other) for row in read_rows(other / "eval.csv")}
    rows = {(row.length, row.control): (row, run) for row in read_rows(run / "eval.csv")}
    assert found.keys() == rows.keys()
    assert (32, "swap") in rows
    for key, (row, folder_of_run) in rows.items():
        nll = load_scores(score_file(folder_of_run, row)).nll
        theirs = load_scores(score_file(other, found[key][0])).nll
        assert np.allclose(nll, theirs, atol=2e-5), key


@pytest.mark.parametrize("overrides", [[], ["tokenizer=bpe", "tokenizer.vocab_size=300"]])
def test_the_tokenizer_goes_along(
    train: Command, command: Command, folder: Path, overrides: list[str]
) -> None:
    assert train("encoding=rope", *overrides).code == 0
    out = exported(command, folder)
    with quiet() as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
    text = "the cat  sat\non naïve mats"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert max(ids) < model.config.vocab_size
    if not overrides:
        assert ids == list(text.encode())
    with torch.no_grad():
        assert model(torch.tensor([ids])).logits.isfinite().all()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["encoding=alibi"],
            "no model of transformers has the encoding alibi: these can be exported: rope, p_rope",
        ),
        (["encoding=rope", "modifier=[logn]"], "no model of transformers has the encoding rope.logn"),
        (["encoding=nope", QK_NORM], "no model of transformers has model.qk_norm and nope"),
        (["encoding=yarn"], "another factor in each window"),
        (["encoding=yarn", "encoding.factor=2", "encoding.ramp=turns"], "no yarn with ramp=turns"),
        (
            ["encoding=learned", "encoding.max_position=64"],
            "no model of transformers has the encoding learned",
        ),
        (["encoding=swan", "encoding.every=2"], "no model of transformers has the encoding swan"),
        (["encoding=gemma3", "encoding.every=2"], "no model of transformers has the encoding gemma3"),
        (
            ["encoding=local_global", "encoding.every=2", "encoding.global={name: rope, base: 500}"],
            "no model of transformers has the encoding local_global",
        ),
        (
            ["encoding=local_global", "encoding.every=2", "encoding.local={name: yarn, factor: 2}"],
            "no model of transformers has the encoding local_global",
        ),
    ],
)
def test_what_transformers_does_not_have_is_refused(
    train: Command, command: Command, folder: Path, overrides: list[str], told: str
) -> None:
    assert train(*NARROW, *overrides).code == 0
    done = command("export", only_run(folder).name, "--hf", "out", "--results-dir", str(folder / "results"))
    assert done.code == 2
    assert told.replace(".", "+") in done.line or told in done.line
    assert not Path("out").exists()


def test_a_folder_that_is_not_empty_is_kept(train: Command, command: Command, folder: Path) -> None:
    assert train("encoding=rope").code == 0
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("mine")
    done = command("export", "rope", "--hf", str(folder / "out"), "--results-dir", str(folder / "results"))
    assert done.code == 2
    assert "exists and is not empty" in done.line
    assert (folder / "out" / "mine").read_text() == "mine"


def test_an_export_touches_nothing_beside_it_and_gives_its_files_the_usual_permissions(
    train: Command, command: Command, folder: Path
) -> None:
    assert train("encoding=rope").code == 0
    (folder / ".partial-out").mkdir()
    (folder / ".partial-out" / "mine").write_text("mine")
    out = exported(command, folder)
    assert (folder / ".partial-out" / "mine").read_text() == "mine"
    assert {path.stat().st_mode for path in out.iterdir()} == {
        (folder / ".partial-out" / "mine").stat().st_mode
    }


def test_a_finished_export_is_recognised_also_where_another_one_ends_first(
    train: Command, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("encoding=rope").code == 0
    rename = Path.rename

    def twice(path: Path, target: Path) -> Path:
        shutil.copytree(path, target)  # by another process
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", twice)
    out = exported(command, folder)
    monkeypatch.undo()
    assert [path.name for path in folder.iterdir() if "out" in path.name] == ["out"]
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert exported(command, folder) == out
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_folder_without_a_name_is_refused(command: Command, name: str) -> None:
    done = command("export", "rope", "--hf", name)
    assert done.code == 2 and "is no name of a new folder" in done.line


def test_an_export_that_is_not_equal_is_not_written(
    train: Command, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("encoding=rope").code == 0
    monkeypatch.setitem(export.NAMES, "attention.query", "self_attn.k_proj")
    monkeypatch.setitem(export.NAMES, "attention.key", "self_attn.q_proj")
    done = command("export", "rope", "--hf", str(folder / "out"), "--results-dir", str(folder / "results"))
    assert done.code == 1
    assert "differ from ours" in done.line
    assert not (folder / "out").exists()
    assert [path.name for path in folder.iterdir() if "out" in path.name] == []


def test_an_exported_run_is_read_by_its_configuration_alone(
    train: Command, command: Command, folder: Path
) -> None:
    assert train("encoding=rope", "encoding.base=500").code == 0
    out = exported(command, folder)
    edit_json(out / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    done = command(
        *(
            "eval",
            f"hf:{out}",
            "data=files",
            f"data.path={folder / 'corpus'}",
            f"cache_dir={folder / 'cache'}",
        ),
        *("eval.targets=6", "eval.max_length=64", "--lengths", "32", "--results-dir", str(folder / "scored")),
    )
    assert done.code == 0, done.err
    [other] = (folder / "scored" / "runs").iterdir()
    assert {row.encoding for row in read_rows(other / "eval.csv")} == {"rope"}
