"""GGUF files: scored as the model of transformers that their weights were taken from."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file
from support.commands import Command, write_corpus
from support.hf_models import SIZES, TRAIN_LENGTH, VOCABULARY, opened, write_hf_model

from pe_bench.hf.source import read_source
from pe_bench.runs.rows import read_rows

WIDE = {"intermediate_size": 64}  # rows of whole blocks of 32


def turned_as_in_gguf(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of queries or keys in llama.cpp's order: the two features of a pair side by side."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(folder: Path, file: Path, kind: str = "Q8_0", *, bias: bool = False, **header: str) -> Path:
    """Write the Llama of a folder as llama.cpp does. bias: with one that no Llama has. header: more keys."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(TRAIN_LENGTH)
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(WIDE["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(SIZES["head_dim"])
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(VOCABULARY)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    names = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    names |= special
    names[1] = "th"  # a merge, which transformers needs, in the place of a byte that no text has
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([names[number] for number in range(VOCABULARY)])
    writer.add_token_types([3 if number in special else 1 for number in range(VOCABULARY)])
    writer.add_token_merges(["t h"])
    for key, value in header.items():
        writer.add_string(key.replace("__", "."), value)
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, SIZES["num_hidden_layers"])
    rounding = gguf.GGMLQuantizationType[kind]
    for name, tensor in load_file(folder / "model.safetensors").items():
        weight = tensor.float().numpy()
        for part, heads in (("q_proj", 4), ("k_proj", 2)):
            weight = turned_as_in_gguf(weight, heads) if part in name else weight
        there = known.get_name(name, try_suffixes=(".weight",))
        assert there is not None
        if weight.ndim == 2:
            writer.add_tensor(there, gguf.quantize(weight, rounding), raw_dtype=rounding)
        else:
            writer.add_tensor(there, weight)
    if bias:
        writer.add_tensor("blk.0.attn_q.bias", np.zeros(SIZES["hidden_size"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    return write_hf_model(tmp_path / "base", "llama", **WIDE)


def test_unrounded_weights_are_those_of_the_folder_that_the_file_was_made_from(tmp_path, base):
    file = write_gguf(base, tmp_path / "toy.gguf", "F32")
    source = read_source(f"hf:{file}")
    assert source.gguf is not None and source.gguf.rounding == ""
    theirs = opened(base).model.causal.state_dict()
    ours = opened(file, is_checked=True).model.causal.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name].numpy(), ours[name].numpy()) for name in theirs)


def test_a_file_is_scored_found_and_exported_like_a_folder_and_its_rounding_is_in_the_title(
    tmp_path: Path, base: Path, command: Command
) -> None:
    file = write_gguf(base, tmp_path / "toy.gguf")
    text = ["data=files", f"data.path={write_corpus(tmp_path / 'corpus')}", "eval.targets=6", "threads=1"]
    where = ["--results-dir", str(tmp_path / "results")]
    done = command("eval", f"hf:{file}", *text, *where, "--lengths", "64", "--with", "yarn factor=2")
    assert done.code == 0, done.err
    assert "GGUF tensors" not in done.err, "transformers' progress is not shown"
    assert "toy.gguf (Llama, 0.05M, Q8_0)" in " ".join(done.out.split())
    [run] = (tmp_path / "results" / "runs").iterdir()
    rows = read_rows(run / "eval.csv")
    assert {row.model for row in rows} == {"hf:toy.gguf"} and {row.status for row in rows} == {"ok"}
    assert command("report", f"hf:{file}", *where).code == 0
    assert command("show", f"hf:{file}").code == 0

    again = command("eval", f"hf:{file}", *text, *where, "--lengths", "48,64")
    assert again.code == 0, again.err
    out = tmp_path / "exported"
    done = command("export", f"hf:{file}", "--with", "yarn factor=2", "--hf", str(out), *where)
    assert done.code == 0, done.err
    scored = command("eval", f"hf:{out}", *text, *where, "--lengths", "64")
    assert scored.code == 0, scored.err
    levels = {
        row.nll
        for path in (tmp_path / "results" / "runs").iterdir()
        for row in read_rows(path / "eval.csv")
        if row.scored_with == "yarn factor=2.0" and (row.length, row.control) == (64, "none")
    }
    assert max(levels) == pytest.approx(min(levels), rel=1e-5)


def test_a_folder_with_one_file_is_that_file_and_another_file_is_another_model(tmp_path, base):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_gguf(base, folder / "toy.gguf")
    source = read_source(f"hf:{folder}")
    assert source.gguf is not None and source.gguf.file == folder / "toy.gguf"
    other = read_source(f"hf:{write_gguf(base, tmp_path / 'other.gguf', 'F16')}")
    assert other.gguf is not None and (source.gguf.rounding, other.gguf.rounding) == ("Q8_0", "F16")
    assert source.identity(None) != other.identity(None)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("cut", "cannot be read as GGUF"),
        ("text", "cannot be read as GGUF"),
        ("scaling", "rotates by the scaling linear, which transformers does not read there"),
        ("architecture", "cannot read it (GGUF model with architecture lhama is not supported yet"),
        ("bias", "has 53,632 weights, of which transformers' model has 53,600"),
        ("two", "has 2 GGUF files (a.gguf, b.gguf): name one"),
    ],
)
def test_what_transformers_cannot_read_is_one_line(
    tmp_path: Path, base: Path, command: Command, damage: str, reason: str
) -> None:
    named = file = tmp_path / "files" / "a.gguf"
    file.parent.mkdir()
    header = {"llama__rope__scaling__type": "linear"} if damage == "scaling" else {}
    write_gguf(base, file, bias=damage == "bias", **header)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:200])
    elif damage == "text":
        file.write_text("not a model")
    elif damage == "architecture":
        file.write_bytes(file.read_bytes().replace(b"llama", b"lhama"))
    elif damage == "two":
        write_gguf(base, tmp_path / "files" / "b.gguf")
        named = file.parent
    text = write_corpus(tmp_path / "corpus")
    where = ("--results-dir", str(tmp_path / "results"))
    outcome = command("eval", f"hf:{named}", f"data.path={text}", "--lengths", "64", *where)
    assert outcome.code == 2 and reason in outcome.line and not (tmp_path / "results").exists()
