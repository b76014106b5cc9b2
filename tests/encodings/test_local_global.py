"""An option may hold another encoding, whose options are completed, checked and part of a run's identity."""

import pytest
import torch
from support.cases import find_case
from support.fixed_inputs import output, visible
from support.reference_inputs import near

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.irope import Chunks
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.model.attention import choose

torch.set_num_threads(1)  # tensors are tiny here, and tests run side by side

SIZES = ("model.n_heads=2", "model.n_kv_heads=2", "model.d_head=4", "model.d_model=8", "train.length=8")
P_ROPE = "encoding.global={name: p_rope, fraction: 0.5}"


def spec(*overrides: str) -> EncodingSpec:
    return EncodingSpec(parse_config(compose(["encoding=local_global", *SIZES, *overrides])).encoding)


def layers(*overrides: str, n_layers: int = 4):
    built = spec(f"model.n_layers={n_layers}", *overrides).build(n_layers).double()
    return [built.layer(number) for number in range(n_layers)]


def test_a_mapping_with_a_name_has_all_options_of_that_encoding() -> None:
    nested = spec(P_ROPE).values["global"]
    expected = compose(["encoding=p_rope", *SIZES, "encoding.fraction=0.5"])["encoding"]
    assert nested == expected and nested["d_head"] == 4 and nested["derived"] == ["d_head"]


def test_each_layer_has_its_own_encoding_and_local_ones_a_window() -> None:
    found = layers(P_ROPE)
    local = stack([RoPE(4), SlidingWindow(4)])
    for number, expected in enumerate([local, local, local, PRoPE(4, 0.5)]):
        assert near(output(found[number]), output(expected), 1e-12)
        assert visible(found[number], 7) == visible(expected, 7)


@pytest.mark.parametrize(
    ("overrides", "n_layers", "which"),
    [
        ([], 8, [3, 7]),
        (["encoding.every=3"], 7, [2, 5]),
        ([], 2, [1]),
        (["encoding.first=true"], 6, [0, 4]),
        (["encoding.every=1"], 2, [0, 1]),
    ],
)
def test_which_layers_are_global(overrides: list[str], n_layers: int, which: list[int]) -> None:
    found = layers(*overrides, n_layers=n_layers)
    assert [number for number, layer in enumerate(found) if not layer.overrides("visible")] == which


def test_chunks_in_place_of_windows_and_neither() -> None:
    assert visible(layers("encoding.chunked=true")[0], 7) == visible(Chunks(4), 7)
    assert visible(layers("encoding.window=null")[0], 7) == visible(NoPE(), 7)
    with pytest.raises(UserError, match=r"encoding.chunked needs encoding.window"):
        layers("encoding.chunked=true", "encoding.window=null")


def test_a_nested_encoding_has_modifiers_and_only_the_parameters_of_its_layers() -> None:
    override = "encoding.local={name: rope, base: 99, modifiers: {sink: {initial: 0.5}}}"
    built = spec(override).build(4)
    assert [list(parameter.shape) for parameter in built.parameters()] == [[2]] * 3
    layer = stack([RoPE(4, 99.0), Sink(2, 0.5), SlidingWindow(4)])
    assert near(output(built.double().layer(1)), output(layer), 1e-12)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoding.global={name: p_rop}", "unknown encoding 'p_rop': did you mean 'p_rope'?"),
        (
            "encoding.global={name: p_rope, fracton: 1}",
            "unknown key 'encoding.global.fracton': did you mean 'encoding.global.fraction'?",
        ),
        (
            "encoding.global={name: rope, modifiers: {sink: {initail: 1}}}",
            "unknown key 'encoding.global.modifiers.sink.initail': did you mean "
            "'encoding.global.modifiers.sink.initial'?",
        ),
        (
            "encoding.global=nope",
            "encoding.global must be another encoding, such as {name: nope}, not 'nope'",
        ),
        ("encoding.global={name: p_rope, base: high}", "encoding.global.base must be a number, not 'high'"),
        ("encoding.global={name: sinusoidal}", "encoding.global changes embeddings, which all layers share"),
        ("encoding.local={name: randomized}", "encoding.local changes position ids, which all layers share"),
    ],
)
def test_a_mistake_in_a_nested_encoding_names_its_key(override: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        spec(override).build(4)
    assert message in str(raised.value)


def test_an_option_of_the_nested_encoding_that_is_there_is_an_override_like_any_other() -> None:
    assert spec("encoding.local.base=500").values["local"]["base"] == 500


def test_nested_options_are_in_the_label_and_the_identity() -> None:
    chosen = spec(P_ROPE)
    assert chosen.label == "local_global local=rope global=p_rope(fraction=0.5)"
    same = spec("encoding.global={name: p_rope, fraction: 0.5, base: 10000}")
    assert chosen.identity() == same.identity()
    assert chosen.identity() != spec("encoding.global={name: p_rope}").identity()
    [identity] = chosen.identity()
    assert identity["options"]["global"][0]["options"] == {"fraction": 0.5}


def test_code_from_outside_is_refused_in_a_nested_encoding_too() -> None:
    values = spec().values
    values["global"] = {**values["global"], "class": "os:system", "code_sha256": "0" * 16}
    with pytest.raises(UserError, match="code from outside pe-bench"):
        EncodingSpec(values).with_trusted_code([])


def test_global_layers_take_the_path_of_their_own_encoding() -> None:
    def path(override: str, number: int) -> str:
        with torch.no_grad():
            return choose(layers(override)[number], torch.zeros(1, 2, 9, 4), torch.arange(9)).name

    assert path("encoding.global={name: alibi}", 3) == "fused distance"
    assert path("encoding.global={name: sink}", 3) == "fused"
    assert path("encoding.global={name: fire}", 3) == "fused chunk"
    assert path("encoding.global={name: alibi}", 0) == "fused chunk"


def test_each_kind_of_layer_is_checked() -> None:
    case = find_case("local_global", ["global={name: rope, base: 99}", "encoding.window=null"])
    from pe_bench.inspection.check.case import layers_of

    assert len(layers_of(case.encoding)) == 2
