"""A checkpoint's folder is a stranger's: no code of it runs, and nothing outside it is read."""

import hashlib
import json
import math
import os
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from support.checkpoints import edit_json, opened, write_checkpoint

from pe_bench.checkpoints.opened import begin_of_text, rotations_of, train_length_of
from pe_bench.checkpoints.source import Source, read_source
from pe_bench.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama", "llama")


def test_a_whole_folder_is_taken(folder: Path) -> None:
    source = read_source(f"hf:{folder}")
    assert (source.name, source.address) == ("llama", f"hf:{folder}")
    assert [path.name for path in source.weights] == ["model.safetensors"]


def test_code_of_a_checkpoint_is_refused_and_not_run(folder: Path) -> None:
    (folder / "modeling_mine.py").write_text("raise SystemExit('this was run')\n")
    edit_json(
        folder / "config.json",
        model_type="mine",
        auto_map={"AutoConfig": "modeling_mine.C", "AutoModelForCausalLM": "modeling_mine.M"},
    )
    with pytest.raises(
        UserError, match="model_type 'mine'.* comes with its own code, and pe-bench runs none"
    ):
        opened(folder)
    assert not any("modeling_mine" in name for name in sys.modules)


def test_a_known_architecture_ignores_the_code_beside_it(folder: Path) -> None:
    (folder / "modeling_llama.py").write_text("raise SystemExit('this was run')\n")
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_llama.M"})
    assert opened(folder).encoding["name"] == "rope"


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no model.safetensors; pytorch_model.bin would run code when read"):
        read_source(f"hf:{folder}")


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/model.safetensors", "model.bin"])
def test_an_index_names_files_of_its_folder_alone(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UserError, match="which is not a file in its folder"):
        read_source(f"hf:{folder}")


@pytest.mark.parametrize("index", [{}, {"weight_map": ["model.safetensors"]}, {"weight_map": {}}])
def test_an_index_that_names_no_weights_is_refused(folder: Path, index: dict[str, object]) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="names no weights: its weight_map"):
        read_source(f"hf:{folder}")


def test_weights_of_a_file_beside_those_that_are_checked_are_refused(folder: Path) -> None:
    edit_json(folder / "config.json", transformers_weights="other.safetensors")
    with pytest.raises(UserError, match=r"takes the weights from transformers_weights=other\.safetensors"):
        read_source(f"hf:{folder}")


def test_the_one_file_counts_where_an_index_lies_beside_it(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "other.safetensors"}}')
    assert [path.name for path in read_source(f"hf:{folder}").weights] == ["model.safetensors"]


def test_a_link_to_itself_is_refused(folder: Path) -> None:
    (folder / "me").symlink_to(folder / "me")
    with pytest.raises(UserError, match="me is a symbolic link to nothing"):
        read_source(f"hf:{folder}")


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_weights_that_make_no_logits_are_refused(folder: Path, value: float, plain: bool) -> None:
    from safetensors.torch import load_file, save_file

    weights = {
        name: torch.full_like(one, value) for name, one in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="the largest logit of llama is .*: its weights are damaged"):
        opened(folder, plain=plain)


def test_a_configuration_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "deepseek", "deepseek_v3")
    edit_json(folder / "config.json", head_dim=24)
    with pytest.raises(UserError, match=r"deepseek cannot be run as its config\.json describes it"):
        opened(folder)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    (folder / "tokenizer.json").rename(secret)
    (folder / "tokenizer.json").symlink_to(secret)
    with pytest.raises(UserError, match="tokenizer.json is a symbolic link out of its folder"):
        read_source(f"hf:{folder}")


def test_links_to_the_blobs_of_the_hub_s_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(blobs / path.name)
    assert read_source(f"hf:{snapshot}").weights


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised .gptq."),
        ({"model_type": "t5"}, "is not a causal language model"),
        ({"model_type": "unheard-of"}, "cannot read its configuration"),
        ({"num_hidden_layers": 10**9}, "has num_hidden_layers=1000000000, and models have 1 to 1,000 layers"),
        ({"num_hidden_layers": -3}, "has num_hidden_layers=-3"),
        ({"vocab_size": 10**12}, "the sizes in config.json are not those of its weights"),
        ({"hidden_size": 10**9}, "the sizes in config.json are not those of its weights"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_its_name(
    folder: Path, change: dict[str, object], told: str
) -> None:
    edit_json(folder / "config.json", **change)
    with pytest.raises(UserError, match=told):
        opened(folder, is_checked=True)


def test_an_adapter_is_refused_because_its_weights_are_elsewhere(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/etc"}')
    with pytest.raises(UserError, match="adapter of another checkpoint"):
        read_source(f"hf:{folder}")


def test_missing_weights_are_never_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks weights \(model.layers.1.mlp.up_proj.weight\)"):
        opened(folder)


def test_weights_that_the_model_does_not_use_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3)
    assert opened(folder).model.n_layers == 3
    assert (
        "warning: llama has weights that its model does not use (model.layers.3." in capsys.readouterr().err
    )


def test_damaged_json_is_one_line(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="config.json cannot be read") as caught:
        read_source(f"hf:{folder}")
    assert "\n" not in str(caught.value)


def test_a_repository_without_a_network_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"hf:owner/name cannot be .*no route to host.*give its folder"):
        read_source("hf:owner/name@v1")


@pytest.mark.parametrize("text", ["hf:", "hf:/no/such/folder", "hf:one", "hf:../up/and/away"])
def test_what_names_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="names no checkpoint|neither a folder nor|is not a folder"):
        read_source(text)


@pytest.mark.parametrize("name", ["./lama", "lama"])
def test_a_mistyped_folder_is_no_repository(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    path = name if name.startswith(".") else str(folder.parent / name)
    with pytest.raises(UserError, match=r"lama is not a folder: did you mean hf:.*/llama\?"):
        read_source(f"hf:{path}")


def test_the_identity_follows_from_all_that_is_read(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    def identity() -> str:
        return read_source(f"hf:{folder}").identity(str(tmp_path / "cache"))

    seen = [identity()]
    assert identity() == seen[0]
    (folder / "README.md").write_text("other words")
    assert identity() == seen[0]
    edit_json(folder / "config.json", max_position_embeddings=64)
    seen.append(identity())
    edit_json(folder / "tokenizer_config.json", add_bos_token=True)
    seen.append(identity())
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] += 1  # of one size, under one header
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    seen.append(identity())
    assert len(set(seen)) == len(seen)


def test_a_digest_is_made_once_and_again_when_a_file_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[object] = []
    make = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: digests.append(given) or make(*given))
    cache = str(tmp_path / "cache")
    first = read_source(f"hf:{folder}").identity(cache)
    assert read_source(f"hf:{folder}").identity(cache) == first
    assert len(digests) == 1
    os.utime(folder / "model.safetensors", (1, 1))
    assert read_source(f"hf:{folder}").identity(cache) == first
    assert len(digests) == 2


# What is read of the configuration and of the tokenizer


class Text:
    """A configuration with some values."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)

    def get_text_config(self, decoder: bool) -> "Text":
        return self


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"max_position_embeddings": 4_096}, (4_096, "max_position_embeddings")),
        (
            {
                "max_position_embeddings": 131_072,
                "rope_parameters": {"rope_theta": 1.0, "original_max_position_embeddings": 8_192},
            },
            (8_192, "original_max_position_embeddings"),
        ),
        (
            {
                "max_position_embeddings": 131_072,
                "rope_parameters": {"full_attention": {"original_max_position_embeddings": 8_192}},
            },
            (8_192, "original_max_position_embeddings"),
        ),
        ({}, None),
    ],
)
def test_the_training_length_is_that_before_any_scaling(values: dict[str, object], wanted: object) -> None:
    assert train_length_of(Text(**values)) == wanted
    assert rotations_of(Text(**values))


def source_of(folder: Path) -> Source:
    return Source(str(folder), folder)


def test_a_tokenizer_without_a_first_token_begins_with_the_text(folder: Path) -> None:
    assert begin_of_text(source_of(folder)) is None


def test_the_first_token_is_the_one_that_the_tokenizer_puts_there(folder: Path) -> None:
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    assert begin_of_text(source_of(folder)) == 256


def test_a_tokenizer_s_configuration_may_ask_for_the_first_token(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", add_bos_token=True, bos_token="<|endoftext|>")
    assert begin_of_text(source_of(folder)) == 256
    edit_json(folder / "tokenizer_config.json", add_bos_token=False)
    assert begin_of_text(source_of(folder)) is None
