"""What every encoding under configs/encoding promises, whatever it is: nothing here knows a name."""

import inspect
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pe_bench.attention import attention, reference_attention
from pe_bench.config import ModelConfig, config_dir
from pe_bench.encodings.base import LayerEncoding, Layers, LengthError, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.load import build_encoding, encoding_label, find_class
from pe_bench.hydra_app import compose
from pe_bench.model import Decoder

NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
MODIFIERS = sorted(path.stem for path in (config_dir() / "modifier").glob("*.yaml"))
LENGTH = 16  # of training
LAYERS, HEADS, WIDTH = 2, 4, 8
VOCABULARY = [*"abcdefghi", ".", "\n"]
SMALL = [
    f"train.length={LENGTH}",
    *(f"model.{key}={value}" for key, value in {"d_model": 32, "d_ff": 16, "n_layers": LAYERS}.items()),
    *(f"model.{key}={value}" for key, value in {"n_heads": HEADS, "n_kv_heads": 2, "d_head": WIDTH}.items()),
]

torch.set_num_threads(1)  # tensors are tiny here, and tests run side by side

every_encoding = pytest.mark.parametrize("name", NAMES)


@cache
def composed(*overrides: str) -> dict[str, Any]:
    return compose([*SMALL, *overrides])


def build(name: str, *overrides: str) -> Composition:
    """The encoding in float64, its parameters drawn anew so that none is neutral."""
    torch.manual_seed(0)
    config = composed(f"encoding={name}", *overrides)["encoding"]
    encoding = build_encoding(config, LAYERS, vocabulary=VOCABULARY).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(torch.rand_like(parameter) - 0.3)
    return encoding


def build_model(name: str, *overrides: str) -> Decoder:
    model = ModelConfig(**composed(f"encoding={name}", *overrides)["model"])
    generator = torch.Generator().manual_seed(1)
    return Decoder(model, 11, build(name, *overrides), generator).double()


def parts(encoding: Composition) -> list[PositionalEncoding | LayerEncoding]:
    """The encoding and its modifiers, a wrapped `LayerEncoding` as itself."""
    found = [encoding.base, *encoding.modifiers.children()]
    return [part.layer(0) if isinstance(part, Layers) else part for part in found]  # type: ignore[misc]


def claims(encoding: Composition, claim: str) -> bool:
    return all(claim in part.claims for part in parts(encoding))


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(2))


def scored_ids(encoding: Composition, tokens_BT: Tensor) -> Tensor:
    return encoding.ids(tokens_BT, train=False, generator=torch.Generator().manual_seed(3))


def hidden(model: Decoder, tokens_BT: Tensor, shift: int = 0) -> Tensor:
    return model.hidden(tokens_BT, scored_ids(model.encoding, tokens_BT) + shift)


def layer_inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The input of a layer, queries, keys and values."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, length, 32, generator=generator, dtype=torch.float64)
    qkv = torch.randn(3, 2, HEADS, length, WIDTH, generator=generator, dtype=torch.float64)
    q, k, v = qkv.to(dtype)
    return x.to(dtype), q, k, v


def worst(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max())


@every_encoding
def test_yaml_names_every_option_and_its_default(name: str) -> None:
    config = composed(f"encoding={name}")["encoding"]
    for part in (config, *config.get("modifiers", {}).values()):
        constructor = find_class(part["class"]).__init__
        wanted = (
            dict(inspect.signature(constructor).parameters) if constructor is not nn.Module.__init__ else {}
        )
        options = {
            key: value for key, value in part.items() if key not in ("name", "class", "derived", "modifiers")
        }
        assert set(options) == set(wanted) - {"self"}
        for option, value in options.items():
            assert wanted[option].default in (inspect.Parameter.empty, value)


@every_encoding
def test_label_is_the_files_name_or_the_bases_and_the_modifiers(name: str) -> None:
    config = composed(f"encoding={name}")["encoding"]
    modifiers = config.get("modifiers", {})
    assert list(modifiers) == [name] if modifiers else config["name"] == name
    assert encoding_label(config) == "+".join([config["name"], *modifiers])


@every_encoding
def test_future_tokens_have_exactly_no_influence(name: str) -> None:
    model = build_model(name)
    leaf = torch.randn(2, LENGTH, 32, dtype=torch.float64, requires_grad=True)
    model.embedding.register_forward_hook(lambda module, arguments, output: leaf)
    output = hidden(model, tokens(2, LENGTH))
    for i in (0, 7, LENGTH - 1):
        (gradient,) = torch.autograd.grad(output[:, i].sum(), leaf, retain_graph=True)
        assert (gradient[:, i + 1 :] == 0).all()
        assert (gradient[:, i] != 0).any()


@every_encoding
def test_a_prefix_is_treated_as_if_nothing_followed_where_claimed(name: str) -> None:
    model = build_model(name)
    if not claims(model.encoding, "prefix_consistent"):
        pytest.skip("not claimed")
    longer = tokens(2, LENGTH)
    assert worst(hidden(model, longer)[:, :9], hidden(model, longer[:, :9])) < 1e-10


@every_encoding
def test_sequences_of_a_batch_do_not_meet(name: str) -> None:
    model, both = build_model(name), tokens(3, LENGTH)
    assert worst(hidden(model, both)[1:2], hidden(model, both[1:2])) < 1e-10


@every_encoding
@pytest.mark.parametrize("per_sequence", [False, True])
def test_blocks_and_single_rows_are_the_whole(name: str, per_sequence: bool) -> None:
    layer, length = build(name).layer(0), 13
    x, q, k, v = layer_inputs(length)
    position = 3 * torch.arange(length)
    position = torch.stack([position, position.flip(0)]) if per_sequence else position
    whole = reference_attention(layer, x, q, k, v, position)
    assert worst(reference_attention(layer, x, q, k, v, position, block=4), whole) < 1e-12
    for rows in (range(1), range(5, 9), range(12, 13)):
        some = reference_attention(layer, x, q, k, v, position, block=3, rows=rows)
        assert worst(some, whole[:, :, rows.start : rows.stop]) < 1e-12


@every_encoding
@pytest.mark.parametrize("length", [1, 2, 49])
def test_the_path_that_is_chosen_is_the_reference(name: str, length: int) -> None:
    encoding = build(name)
    inputs = layer_inputs(length)
    position = torch.arange(length)
    expected = reference_attention(encoding.layer(0), *inputs, position)
    assert worst(attention(encoding.layer(0), *inputs, position), expected) < 1e-10
    # Scoring runs without gradients, which opens faster paths.
    with torch.no_grad():
        assert worst(attention(encoding.layer(0), *inputs, position), expected) < 1e-10
        x, q, k, v = (tensor.float() for tensor in inputs)
        assert worst(attention(encoding.float().layer(0), x, q, k, v, position), expected) < 1e-5


@every_encoding
def test_positions_may_be_floats_and_differ_between_sequences(name: str) -> None:
    layer = build(name).layer(0)
    x, q, k, v = layer_inputs(LENGTH)
    position = torch.stack([torch.arange(LENGTH), 2 * torch.arange(LENGTH)])
    both = attention(layer, x, q, k, v, position)
    for row in (0, 1):
        one = slice(row, row + 1)
        alone = attention(layer, x[one], q[one], k[one], v[one], position[row].float())
        assert worst(alone, both[one]) < 1e-5


@every_encoding
def test_shifted_positions_change_the_output_exactly_where_not_claimed(name: str) -> None:
    model, some = build_model(name), tokens(2, LENGTH - 4)
    invariant = claims(model.encoding, "shift_invariant")
    changes = []
    for shift in (4, 400):
        try:
            changes.append(worst(hidden(model, some, shift), hidden(model, some)))
        except LengthError:
            assert not invariant
    assert max(changes) < 1e-8 if invariant else max(changes) > 1e-3


@every_encoding
def test_transform_keeps_norms_where_claimed(name: str) -> None:
    base = build(name).base
    layer = base.layer(0)
    if "norm_preserving" not in layer.claims:
        pytest.skip("not claimed")
    _, q, k, _ = layer_inputs(64)
    turned = layer.transform(q, k, torch.arange(64) + 5, torch.arange(64) + 5)
    for before, after in zip((q, k), turned, strict=True):
        assert worst(before.norm(dim=-1), after.norm(dim=-1)) < 1e-12
    assert worst(turned[0], q) > 0.1


@every_encoding
def test_bias_falls_with_distance_where_claimed(name: str) -> None:
    layer = build(name).base.layer(0)
    if "decaying" not in layer.claims:
        pytest.skip("not claimed")
    bias = layer.distance_bias(torch.arange(8 * LENGTH))
    assert bias is not None
    assert (bias.diff(dim=-1) < 0).all()


@every_encoding
def test_four_times_the_training_length_is_finite_or_a_length_error(name: str) -> None:
    model = build_model(name)
    undefined = any(part.past_training == "undefined" for part in parts(model.encoding))
    if undefined:
        with pytest.raises(LengthError, match=str(LENGTH)):
            hidden(model, tokens(2, 4 * LENGTH))
    else:
        assert hidden(model, tokens(2, 4 * LENGTH)).isfinite().all()


@every_encoding
def test_half_precision_loses_no_positions(name: str) -> None:
    encoding, length = build(name), 300
    position = torch.arange(length) + 4_096
    inputs = layer_inputs(length, torch.bfloat16)
    x, q, k, v = (tensor.double() for tensor in inputs)
    exact = reference_attention(encoding.layer(0), x, q, k, v, position)
    layer = encoding.float().layer(0)
    with torch.no_grad():
        chosen = attention(layer, *inputs, position)
        reference = reference_attention(layer, *inputs, position)
    assert chosen.dtype == reference.dtype == torch.bfloat16
    for result in (chosen, reference):
        assert float((result.double() - exact.detach()).abs().mean()) < 0.01
        assert worst(result, exact) < 0.15


@every_encoding
def test_embedding_in_half_precision_loses_no_positions(name: str) -> None:
    encoding = build(name)
    x, some = torch.zeros(1, 8, 32, dtype=torch.float64), tokens(1, 8)
    for start in (0, 4_097):
        ids = torch.arange(8) + start
        try:
            exact = encoding.double().embed(x, ids, some)
        except LengthError:
            continue
        assert worst(encoding.float().embed(x.bfloat16(), ids, some), exact) < 0.02


@every_encoding
def test_shared_key_heads_are_key_heads_repeated(name: str) -> None:
    grouped, full = build_model(name), build_model(name, f"model.n_kv_heads={HEADS}")
    weights = grouped.state_dict()
    for key, weight in weights.items():
        if "attention.key" in key or "attention.value" in key:
            weights[key] = weight.unflatten(0, (2, WIDTH)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(weights)
    assert worst(hidden(grouped, tokens(2, LENGTH)), hidden(full, tokens(2, LENGTH))) < 1e-10


@every_encoding
def test_state_holds_parameters_and_nothing_else(name: str) -> None:
    encoding = build(name)
    assert set(encoding.state_dict()) == {key for key, _ in encoding.named_parameters()}


@every_encoding
def test_parameters_follow_the_seed_and_get_gradients(name: str) -> None:
    config = composed(f"encoding={name}")["encoding"]
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(build_encoding(config, LAYERS, vocabulary=VOCABULARY).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    model = build_model(name)
    hidden(model, tokens(2, LENGTH)).square().sum(-1)[:, -1].sum().backward()
    hidden(model, tokens(2, LENGTH))[..., 0].sum().backward()
    for key, parameter in model.encoding.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.any(), key


@every_encoding
def test_a_window_from_outside_limits_what_reaches_a_token(name: str) -> None:
    layer = build(name).layer(0)
    x, q, k, v = layer_inputs(LENGTH)
    v.requires_grad_()
    output = attention(layer, x, q, k, v, torch.arange(LENGTH), window=5)
    (gradient,) = torch.autograd.grad(output[:, :, 12].sum(), v)
    assert (gradient[:, :, :8] == 0).all()
    assert (gradient[:, :, 8:12] != 0).all()


@pytest.mark.parametrize("modifier", MODIFIERS)
@every_encoding
def test_every_modifier_acts_on_every_encoding(name: str, modifier: str) -> None:
    config = composed(f"encoding={name}", f"modifier=[{modifier}]")["encoding"]
    assert modifier in config["modifiers"]
    model = build_model(name, f"modifier=[{modifier}]", *_enough_rows(config))
    output = hidden(model, tokens(2, LENGTH))
    assert output.isfinite().all()
    (gradient,) = torch.autograd.grad(output[:, 4].sum(), model.embedding.weight)
    assert gradient.isfinite().all()


def _enough_rows(config: dict[str, Any]) -> list[str]:
    """A table of positions must hold the ids of modifiers that spread them."""
    spread = [part["max_position"] for part in config["modifiers"].values() if "max_position" in part]
    table = "undefined" in {find_class(config["class"]).past_training} and "max_position" in config
    return [f"encoding.max_position={spread[0]}"] if spread and table else []


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("rope", "base=100"),
        ("rope", "layout=interleaved"),
        ("sinusoidal", "base=100"),
        ("sinusoidal", "layout=concatenated"),
        ("sinusoidal", "layout=neox"),
        ("t5", "buckets=8"),
        ("t5", "max_distance=40"),
        ("shaw", "max_distance=3"),
        ("cope", "max_position=3"),
        ("stick_breaking", "remainder=false"),
        ("logn", "modifiers.logn.train_length=8"),
        ("sliding_window", "modifiers.sliding_window.window=8"),
        ("randomized", "modifiers.randomized.max_position=64"),
        ("randomized", "modifiers.randomized.scored_with=arange"),
        ("randomized", "modifiers.randomized.scored_with=even"),
    ],
)
def test_option_changes_the_output(name: str, option: str) -> None:
    text = tokens(2, 3 * LENGTH)
    plain, changed = build_model(name), build_model(name, f"encoding.{option}")
    assert worst(hidden(plain, text), hidden(changed, text)) > 1e-3


@pytest.mark.parametrize("option", ["overflow=clamp", "overflow=interpolate", f"max_position={2 * LENGTH}"])
def test_option_of_a_table_reaches_past_its_end(option: str) -> None:
    text = tokens(2, 2 * LENGTH)
    with pytest.raises(LengthError):
        hidden(build_model("learned"), text)
    assert hidden(build_model("learned", f"encoding.{option}"), text).isfinite().all()


def test_shipped_compositions_take_further_modifiers_and_their_options() -> None:
    config = composed("encoding=logn", "modifier=[sliding_window]", "encoding.base=500.0")["encoding"]
    assert list(config["modifiers"]) == ["logn", "sliding_window"]
    assert encoding_label(config) == "rope+logn+sliding_window base=500.0"
    assert (
        composed("encoding=randomized")["encoding"]["modifiers"]["randomized"]["max_position"] == 16 * LENGTH
    )
