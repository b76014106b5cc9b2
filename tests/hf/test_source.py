"""A Hugging Face model's folder is a stranger's: no code of it runs, and nothing outside it is read."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.hf_models import edit_json, opened, write_hf_model

from pe_bench.errors import UserError
from pe_bench.hf.load import hf_model_config
from pe_bench.hf.opened import train_length_of
from pe_bench.hf.source import Source, begin_of_text, read_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf_model(tmp_path / "llama", "llama")


Change = Callable[[Path], object]


def config(**changes: object) -> Change:
    return lambda folder: edit_json(folder / "config.json", **changes)


def tokenizer_config(**changes: object) -> Change:
    return lambda folder: edit_json(folder / "tokenizer_config.json", **changes)


def files(**contents: str) -> Change:
    """Return what writes files, in whose names `__` stands for a dot, and deletes the empty ones."""

    def write(folder: Path) -> None:
        for name, text in contents.items():
            path = folder / name.replace("__", ".")
            path.write_text(text) if text else path.unlink()

    return write


def indexed(*names: str) -> Change:
    weight_map = json.dumps({"weight_map": dict(enumerate(names))})
    return files(model__safetensors="", model__safetensors__index__json=weight_map)


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def write(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return write


def biased(folder: Path) -> None:
    """Write a Qwen2, whose biases a Llama does not have, as a Llama."""
    write_hf_model(folder, "qwen2")
    edit_json(folder / "config.json", model_type="llama", architectures=["LlamaForCausalLM"])


def in_two_files(folder: Path, stale: str = "") -> None:
    """Divide the weights over two files. stale: a weight of the first that the second has too, changed."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first, second = "model-1.safetensors", "model-2.safetensors"
    weight_map = {name: second if name.startswith("model.layers.3") else first for name in tensors}
    for file in (first, second):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        if file == second and stale:
            part[stale] = tensors[stale] + 9
        save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def link_outside(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder.parent / "secret.json")
    (folder / "tokenizer.json").symlink_to(folder.parent / "secret.json")


def test_a_whole_folder_is_taken_also_as_links_to_the_hub_s_cache(folder: Path, tmp_path: Path) -> None:
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "other.safetensors"}}')
    source = read_source(f"hf:{folder}")
    assert (source.name, source.address) == ("llama", f"hf:{folder}")
    assert [path.name for path in source.weights] == ["model.safetensors"], "as transformers does"
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(blobs / path.name)
    assert read_source(f"hf:{snapshot}").weights


def test_code_of_an_hf_model_is_never_run(folder: Path) -> None:
    (folder / "modeling_mine.py").write_text("raise SystemExit('this was run')\n")
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_mine.M"})
    assert opened(folder).encoding["name"] == "rope", "a known architecture ignores the code beside it"
    edit_json(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "modeling_mine.C"})
    with pytest.raises(UserError, match="model_type 'mine'.*comes with its own code, and pe-bench runs none"):
        opened(folder)
    assert not any("modeling_mine" in name for name in sys.modules)


DAMAGED = "the largest logit of llama is .*: its weights are damaged"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (files(model__safetensors="", pytorch_model__bin="x"), "no model.safetensors: safetensors alone are"),
        (indexed("../other/model.safetensors"), "which is not a file in its folder"),
        (indexed(), "has no weights"),
        (config(transformers_weights="other.safetensors"), "takes its weights from another file: name it"),
        (config(text_config={"transformers_weights": "sub/w.safetensors"}), "takes its weights from another"),
        (config(configuration_files=["config.4.0.0.json"]), "takes its configuration from other files"),
        (config(fusion_config={"patch_embeddings": True}), "asks transformers for other layers"),
        (tokenizer_config(fast_tokenizer_files=["tokenizer.4.0.0.json"]), "takes the tokenizer from other"),
        (lambda folder: (folder / "me").symlink_to(folder / "me"), "not a regular file"),
        (link_outside, "tokenizer.json is a symbolic link out of its folder"),
        (files(adapter_config__json="{}"), "adapter of another model"),
        (files(config__json="{"), "config.json cannot be read"),
        (config(quantization_config={"quant_method": "gptq"}), "llama is quantised"),
        (config(text_config={"quantization_config": {"quant_method": "awq"}}), "llama is quantised"),
        (config(model_type="t5"), "Unrecognized configuration class"),
        (config(model_type="unheard-of"), "cannot read its configuration"),
        (weights(lambda each: [weight.fill_(0) for weight in each.values()]), DAMAGED),
        (weights(lambda each: each["model.norm.weight"].fill_(math.inf)), DAMAGED),
        (
            biased,
            r"does not use \(model.layers.0.self_attn.k_proj.bias, .*0.self_attn.v_proj.bias\): its",
        ),
        (
            lambda folder: in_two_files(folder, "model.norm.weight"),
            r"2.safetensors has weights that .*index.json does not expect there \(model.norm.weight\)",
        ),
        (weights(lambda each: each.pop("model.norm.weight")), r"lacks weights \(model.norm.weight\)"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_its_name(folder: Path, change: Change, message: str) -> None:
    change(folder)
    with pytest.raises(UserError, match=message) as caught:
        opened(folder, is_checked=True)
    assert "\n" not in str(caught.value)


def test_weights_in_several_files_are_taken_and_what_transformers_ignores_stays_ignored(folder: Path) -> None:
    weights(lambda each: each.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))(folder)
    one = opened(folder).model.causal.state_dict()
    in_two_files(folder)
    several = opened(folder, is_checked=True).model.causal.state_dict()
    assert all(torch.equal(one[name], tensor) for name, tensor in several.items())


def test_what_names_no_hf_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("hf:", "hf:/no/such/folder", "hf:one", "hf:../up/and/away"):
        with pytest.raises(UserError, match="neither a folder nor"):
            read_source(text)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"hf:owner/name cannot be .*no route to host.*give its folder"):
        read_source("hf:owner/name@v1")


def test_the_identity_follows_from_all_that_is_read(folder: Path, tmp_path: Path) -> None:
    def identity() -> str:
        return read_source(f"hf:{folder}").identity(str(tmp_path / "cache"))

    seen = [identity()]
    (folder / "README.md").write_text("other words")
    assert identity() == seen[0]
    for change in (
        config(max_position_embeddings=64),
        lambda folder: edit_json(folder / "tokenizer_config.json", add_bos_token=True),
        weights(lambda each: each["model.norm.weight"][3].add_(1)),
    ):
        change(folder)
        seen.append(identity())
    assert len(set(seen)) == 4


def test_transformers_reads_no_file_that_the_identity_does_not_cover(folder: Path) -> None:
    norm = opened(folder).model.causal.model.norm.weight.clone()
    # transformers takes all files of safetensors in a folder where one has the name of a distributed save.
    stale = folder / "shard-00000-model-00001-of-00001.safetensors"
    stale.write_bytes((folder / "model.safetensors").read_bytes())
    weights(lambda each: each["model.norm.weight"].fill_(7))(folder)
    assert torch.equal(opened(folder).model.causal.model.norm.weight, torch.full_like(norm, 7))
    edit_json(folder / "config.json", configuration_files=["config.4.0.0.json"])
    (folder / "config.4.0.0.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UserError, match="does not appear to have a file named config.4.0.0.json"):
        opened(folder)  # whose files are not checked before


def test_the_training_length_is_that_before_any_scaling() -> None:
    scaled = {"full_attention": {"original_max_position_embeddings": 8_192}}
    for values, expected in (
        ({"max_position_embeddings": 4_096}, (4_096, "max_position_embeddings")),
        ({"max_seq_len": 9, "rope_parameters": scaled}, (8_192, "original_max_position_embeddings")),
        ({}, None),
    ):
        config = SimpleNamespace(**values)
        config.get_text_config = lambda decoder, config=config: config
        assert train_length_of(config) == expected


def test_the_bos_token_of_an_hf_model_is_what_its_tokenizer_or_configuration_adds(
    folder: Path,
) -> None:
    from tokenizers import Tokenizer, processors

    source = Source(f"hf:{folder}", folder)
    assert begin_of_text(source) == []
    for adds, begin in ((True, 256), (False, None)):
        edit_json(folder / "tokenizer_config.json", add_bos_token=adds, bos_token="<|endoftext|>")
        about = hf_model_config(f"hf:{folder}", [], {}, {}, folder.parent / "results").hf_model
        assert about is not None and about.begin == begin
    for single, begin in (("<|endoftext|> $A", [256]), ("<|endoftext|> ! $A !", [256, 33]), ("$A !", [])):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<|endoftext|>", 256), ("!", 33)]
        )
        for direction in ("left", "right"):
            tokenizer.enable_padding(direction=direction, pad_id=256, length=8)
            tokenizer.enable_truncation(1)
            tokenizer.save(str(folder / "tokenizer.json"))
            edit_json(folder / "tokenizer_config.json", add_bos_token=False)
            assert begin_of_text(source) == begin
