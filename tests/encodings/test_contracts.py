"""What every encoding under configs/encoding promises, whatever it is: nothing here knows a name."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.cases import find_case, finding
from support.encodings import one_of_a_kind
from support.reference_inputs import series
from torch import Tensor, nn

from pe_bench.config.groups import config_dir, paper
from pe_bench.encodings.base import LayerEncoding, PositionalEncoding
from pe_bench.encodings.load import find_code
from pe_bench.encodings.signatures import defaults_of, options_of
from pe_bench.encodings.spec import EncodingSpec, PartSpec
from pe_bench.inspection.check import PROPERTIES, Property, check
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    VOCABULARY,
    Case,
    hidden,
    largest_difference,
    tokens,
)
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.reference import logits, make_sides
from pe_bench.model.decoder import Decoder

H, T, K = 2, 4, 4
FILE = Path(__file__).with_name("reference_numbers.yaml")
DIGITS = 6

Entry = Mapping[str, Any]
NUMBERS: dict[str, list[Entry]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))


@torch.no_grad()
def error_of(part: PartSpec, entry: Entry) -> float:
    """Return the largest difference between an encoding's numbers and its reference numbers."""
    options = entry["options"]
    encoding: nn.Module = part.encoding_class(**options) if not part.nested else with_options(part, options)
    for name, parameter in encoding.double().named_parameters():
        for key, value in entry.get("parameters", {}).items():
            if key in ("*", name):
                parameter.copy_(_values(value, parameter.shape))
    quantity = _quantity(encoding, entry).flatten().double()
    quantity = quantity[entry["at"]] if "at" in entry else quantity
    expected = torch.tensor(entry["numbers"], dtype=torch.float64)
    return math.inf if quantity.shape != expected.shape else float((quantity - expected).abs().max())


def with_options(part: PartSpec, options: Mapping[str, Any]) -> nn.Module:
    """Build an encoding that has others in it, which get these options too."""
    spec = EncodingSpec(dict(part.values)).changed(
        lambda each: {key: options[key] for key in options.keys() & each.values.keys()}
    )
    return spec.base.build(options["n_layers"])


def wave(text: str, *shape: int) -> Tensor:
    """Return sin(step t) or cos(step t) for t = 1, 2, .. in row-major order; `text` is as in `sin 0.15`."""
    function, step = text.split()
    return series(getattr(torch, function), float(step), *shape)


def _values(value: Any, shape: torch.Size) -> Tensor:
    if value == "steps":
        return (torch.arange(shape.numel()) / 10 - 0.15).view(shape)
    if value == "eye":
        return torch.eye(*shape)
    return wave(value, *shape) if isinstance(value, str) else torch.tensor(value).expand(shape)


def _quantity(encoding: nn.Module, entry: Entry) -> Tensor:
    """Return what the numbers of an entry are `of`; the head of `reference_numbers.yaml` explains each."""
    if entry["of"] == "input":
        assert isinstance(encoding, PositionalEncoding)
        ids = torch.tensor(entry["positions"])
        x = torch.zeros(1, len(ids), entry["options"]["d_model"], dtype=torch.float64)
        return encoding.embed(x, ids, torch.zeros(1, len(ids), dtype=torch.long))
    layer = encoding.layer(entry["layer"]) if isinstance(encoding, PositionalEncoding) else encoding
    assert isinstance(layer, LayerEncoding)
    if entry["of"] in ("frequencies", "norm"):
        return _turned(layer, entry)
    tokens = len(entry["positions"]) if "positions" in entry else entry.get("tokens", T)
    x = torch.zeros(1, tokens, H * K, dtype=torch.float64)
    if "x" in entry:
        features = entry["x"]["features"]
        x[..., :features] = wave(entry["x"]["wave"], 1, tokens, features)
    q, k, v = (wave(text, 1, H, tokens, K) for text in ("sin 0.1", "cos 0.2", "sin 0.3"))
    position = torch.tensor(entry.get("positions", range(tokens)))
    queries, keys = make_sides(layer, x, q, k, position)
    match entry["of"]:
        case "output":
            return reference_attention(layer, x, q, k, v, position)[0, 0, -1]
        case "weights":  # the output if the values are the identity
            identity = torch.eye(tokens, dtype=torch.float64).expand(1, H, tokens, tokens)
            return reference_attention(layer, x, q, k, identity, position)[0, 0, -1]
        case "scores":
            return layer.scores(queries, keys, K**-0.5)[0, 0, -1]
        case "products":
            return layer.scores(queries, keys, 1.0)[0, 0, -1]
        case "logits":
            return logits(layer, queries, keys, K**-0.5)[0][0, 0, -1]
        case "query":
            return queries.x[0, 0, -1]
        case "sees":
            return layer.visible(queries, keys).sum(-1)
        case "factors":
            values = layer.logit_scale(queries)
        case "bias_of_heads":
            values = layer.distance_bias(torch.ones(1, dtype=torch.long))
        case _:
            bias = layer.bias(queries, keys)
            values = bias if bias is None else bias.reshape(-1, *bias.shape[-2:])[entry.get("head", 0), -1]
    assert values is not None
    return values


def _turned(layer: LayerEncoding, entry: Entry) -> Tensor:
    """Return the angles by which the pairs (1, 0) of a query at position 1 are turned, or their new norm."""
    width, tokens = entry["options"]["d_head"], entry.get("tokens", T)
    features = entry.get("features", width)  # how many are turned
    q = torch.zeros(1, 1, tokens, width, dtype=torch.float64)
    q[..., : features // 2] = 1
    queries, _ = make_sides(layer, q[:, 0], q, q, torch.arange(tokens))
    first, second = queries.x[0, 0, 1, :features].chunk(2)
    return torch.atan2(second, first) if entry["of"] == "frequencies" else torch.hypot(first, second)[:1]


NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
MODIFIERS = sorted(path.stem for path in (config_dir() / "modifier").glob("*.yaml"))
QUICK = [one for one in PROPERTIES if one.name != "long_context"]
SLOW = [one for one in PROPERTIES if one not in QUICK]


def failing(name: str, properties: list[Property]) -> list[str]:
    findings = [(one, check(find_case(name), one)) for one in properties]
    return [
        f"{one.name}: {finding.measured}; look at {one.look}"
        for one, finding in findings
        if finding.state == "fails"
    ]


def has_the_label_of_its_file_or_of_base_and_modifiers(case: Case) -> bool:
    modifiers = list(case.spec.values.get("modifiers", {}))
    is_named = modifiers == [case.name] if modifiers else case.spec.values["name"] == case.name
    label = "+".join([case.spec.values["name"], *modifiers])
    return is_named and (case.name == "local_global" or bool(case.examples) or case.spec.label == label)


def says_what_happens_past_the_training_length_and_what_it_cites(case: Case) -> bool:
    classes = [part.encoding_class for part in case.spec.parts]
    pages = [(sys.modules[each.__module__].__doc__ or "", each.paper) for each in classes]
    if paper(case.name):
        text = (config_dir() / "encoding" / f"{case.name}.yaml").read_text().replace("# ", "")
        pages.append((text.replace("#\n", "\n").partition("paper: ")[2].partition("\n")[2], paper(case.name)))
    return all("\n\nPast the training length: " in page and cited and cited in page for page, cited in pages)


def has_its_reference_numbers(case: Case) -> bool:
    """Return whether its parts have the numbers of their preset, or else of their class."""
    return not any(
        error_of(part, entry) > 2 * 10.0 ** -entry.get("digits", DIGITS)
        for part in case.spec.parts
        for entry in NUMBERS.get(part.values.get("name", "")) or NUMBERS.get(part.name, [])
    )


def treats_shared_key_heads_as_key_heads_repeated(case: Case) -> bool:
    grouped, every_head = case.model, replace(MODEL, n_kv_heads=MODEL.n_heads)
    full = Decoder(every_head, len(VOCABULARY), case.with_random_parameters()).double()
    weights = grouped.state_dict()
    for key, weight in weights.items():
        if "attention.key" in key or "attention.value" in key:
            weights[key] = weight.unflatten(0, (2, MODEL.d_head)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(weights)
    text = tokens(2, TRAIN_LENGTH)
    return largest_difference(hidden(grouped, text), hidden(full, text)) < 1e-10


PROMISES = (
    has_the_label_of_its_file_or_of_base_and_modifiers,
    says_what_happens_past_the_training_length_and_what_it_cites,
    has_its_reference_numbers,
    treats_shared_key_heads_as_key_heads_repeated,
)


@pytest.mark.parametrize("name", NAMES)
def test_an_encoding_keeps_all_promises(name: str) -> None:
    broken = [promise.__name__ for promise in PROMISES if not promise(find_case(name))]
    assert failing(name, QUICK) + broken == []


def test_reference_numbers_are_of_encodings_and_can_fail() -> None:
    assert set(NUMBERS) <= {*NAMES, *MODIFIERS}
    entry = {"of": "bias_of_heads", "options": {"n_heads": 2}, "numbers": [-0.0625, -0.25]}
    assert error_of(find_case("alibi").spec.base, entry) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_what_is_checked_far_out_holds(name: str) -> None:
    assert failing(name, SLOW) == []


def test_options_stand_in_the_signature_alone_and_are_read_from_the_source() -> None:
    for path in (*config_dir().glob("encoding/*.yaml"), *config_dir().glob("modifier/*.yaml")):
        part = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "class" in part:
            read = [(option.name, option.default) for option in options_of(part["class"])]
            assert read == list(defaults_of(find_code(part["class"]).encoding_class).items()), path
            repeated = [name for name, default in read if name in part and part[name] == default]
            assert repeated == [] or "local" in part, path  # a preset shows the numbers of its model


@pytest.mark.parametrize("name", ["rope", "alibi", "cope"])
def test_every_modifier_acts_on_every_encoding(name: str) -> None:
    for modifier in MODIFIERS:
        case = find_case(name, (f"modifier=[{modifier}]",))
        assert modifier in case.spec.values["modifiers"]
        output = hidden(case.model, tokens(2, TRAIN_LENGTH))
        (gradient,) = torch.autograd.grad(output[:, 4].sum(), case.model.embedding.weight)
        assert output.isfinite().all() and gradient.isfinite().all(), modifier


@pytest.mark.parametrize("name", ["rope", "p_rope", "yarn", "rerope", "gape"])
def test_an_offset_of_keys_leaves_scores_that_depend_on_distances(name: str) -> None:
    assert finding(find_case(name, ("modifier=[key_offset]",)), "shift").state == "holds"
