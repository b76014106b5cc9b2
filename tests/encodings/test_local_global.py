"""Encodings that hold others: which layers are global; nested options in labels and identities."""

import pytest
import torch
from support.reference_inputs import B, D, H, K, near, series

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir
from pe_bench.config.parse import parse_config
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.local_global import Chunks
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.model.attention import reference_attention

TOKENS = 14
X = series(torch.cos, 0.37, B, TOKENS, D)
QKV = [series(torch.sin, step, B, H, TOKENS, K) for step in (0.3, 0.5, 0.7)]
SIZES = ("model.n_heads=2", "model.n_kv_heads=2", "model.d_head=4", "model.d_model=8", "train.length=8")
P_ROPE = "global={name: p_rope, fraction: 0.5}"
PRESETS = [path.stem for path in (config_dir() / "encoding").glob("*.yaml") if "\nlocal:" in path.read_text()]


def same(some: LayerEncoding, other: LayerEncoding) -> bool:
    """Return whether two layers give the same output."""
    outputs = [reference_attention(each.double(), X, *QKV, torch.arange(TOKENS)) for each in (some, other)]
    return near(*outputs, 1e-12)


def spec(name: str, *options: str) -> EncodingSpec:
    options = tuple(f"encoding.{option}" for option in options)
    return EncodingSpec(parse_config(compose([f"encoding={name}", *SIZES, *options])).encoding)


def layers(name: str, *options: str, count: int = 4) -> list[LayerEncoding]:
    built = spec(name, f"n_layers={count}", *options).build(count).double()
    return [built.layer(number) for number in range(count)]


@pytest.mark.parametrize(
    ("name", "options", "count", "which"),
    [
        ("local_global", [], 8, [3, 7]),
        ("local_global", [], 2, [1]),
        ("local_global", ["first=true"], 6, [0, 4]),
        ("local_global", ["last=true"], 6, [3, 5]),
        ("local_global", ["every=1"], 2, [0, 1]),
        ("swan", [], 8, [0, 4]),
        ("gemma3", [], 7, [5]),
        ("gemma4", ["global.fraction=0.5"], 8, [5, 7]),
        ("gpt_oss", [], 4, [1, 3]),
    ],
)
def test_which_layers_are_global(name: str, options: list[str], count: int, which: list[int]) -> None:
    built = layers(name, *options, count=count)
    assert [number for number, layer in enumerate(built) if not layer.overrides("visible")] == which


def test_each_layer_has_its_own_encoding_and_local_ones_a_window_or_chunks() -> None:
    local = stack([RoPE(4), SlidingWindow(4)])
    built = layers("local_global", P_ROPE)
    assert all(map(same, built, [local, local, local, PRoPE(4, 0.5)]))
    chunked = layers("local_global", "window=null", "chunk=4", "local={name: nope}")[0]
    assert same(chunked, Chunks(4)) and not same(chunked, NoPE())
    assert same(layers("local_global", "window=null", "local={name: nope}")[0], NoPE())


def test_a_nested_encoding_has_all_options_of_its_name_modifiers_and_the_parameters_of_its_layers() -> None:
    nested = spec("local_global", P_ROPE).values["global"]
    assert nested == compose(["encoding=p_rope", *SIZES, "encoding.fraction=0.5"])["encoding"]
    assert spec("local_global", "local.base=500").values["local"]["base"] == 500
    built = spec("local_global", "local={name: rope, base: 99, modifiers: {sink: {initial: 0.5}}}").build(4)
    assert [list(parameter.shape) for parameter in built.parameters()] == [[2]] * 3
    assert same(built.double().layer(1), stack([RoPE(4, 99.0), Sink(2, 0.5), SlidingWindow(4)]))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("repo", {"gate_weight": [1, D], "content_weight": [1, D], "output_weight": [H, 1]}),
        ("transformer_xl", {"content_bias": [H, K], "position_bias": [H, K], "projections": [1, H, K, D]}),
    ],
)
def test_a_nested_encoding_counts_only_its_own_layers(name: str, parameters: dict[str, list[int]]) -> None:
    built = spec("local_global", "n_layers=4", f"global={{name: {name}}}").build(4)
    shapes = {key.rpartition(".")[2]: list(each.shape) for key, each in built.named_parameters()}
    assert shapes == parameters


def test_nested_options_are_in_the_identity() -> None:
    chosen = spec("local_global", P_ROPE)
    same = spec("local_global", "global={name: p_rope, fraction: 0.5, base: 10000}")
    assert chosen.identity() == same.identity()
    [identity] = chosen.identity()
    assert identity["options"]["global"][0]["options"] == {"fraction": 0.5}
    with pytest.raises(UserError, match="did you mean 'encoding.global.modifiers.sink.initial'?"):
        spec("local_global", "global={name: rope, modifiers: {sink: {initail: 1}}}")


@pytest.mark.parametrize(
    ("typed", "label"),
    [
        *((name, name) for name in PRESETS),
        (f"local_global {P_ROPE}", "local_global local=rope global=p_rope(fraction=0.5)"),
        ("gemma4 every=4", "gemma4 every=4"),  # the default of the class, and not that of the preset
        ("gemma3 global.base=10000", "gemma3 global=rope(base=10000.0)"),
        ("gemma3 global.base=1e6", "gemma3"),
        ("gpt_oss local.factor=8", "gpt_oss local=yarn+sink(factor=8.0)"),
        ("olmo3 global={name: nope}", "olmo3 global=nope"),
    ],
)
def test_a_presets_label_is_its_name_and_what_was_changed(typed: str, label: str) -> None:
    name, *options = typed.split(" ", 1)
    assert spec(name, *options).label == label


def test_code_from_outside_is_refused_in_a_nested_encoding_too() -> None:
    values = spec("local_global").values
    values["global"] = {**values["global"], "class": "os:system", "code_sha256": "0" * 16}
    with pytest.raises(UserError, match="code from outside pe-bench"):
        EncodingSpec(values).with_trusted_code([])
