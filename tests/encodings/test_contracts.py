"""What every encoding under configs/encoding promises, whatever it is: nothing here knows a name."""

import inspect
import re
from dataclasses import replace
from functools import cache

import pytest
import torch
import yaml
from support.cases import find_case
from support.encodings import one_of_a_kind

from pe_bench.config.groups import config_dir
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.signatures import _inspected as inspected
from pe_bench.encodings.signatures import options_of
from pe_bench.errors import UserError
from pe_bench.inspection.check import PROPERTIES, Property, check
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    VOCABULARY,
    Case,
    hidden,
    layer_inputs,
    layers_of,
    tokens,
)
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import attention, reference_attention
from pe_bench.model.decoder import Decoder

NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
MODIFIERS = sorted(path.stem for path in (config_dir() / "modifier").glob("*.yaml"))

torch.set_num_threads(1)  # tensors are tiny here, and tests run side by side

# Of the scope of the module, so that all tests of one encoding follow each other and share its case.
every_encoding = pytest.mark.parametrize("name", NAMES, scope="module")
case_of = cache(find_case)
QUICK = [wanted for wanted in PROPERTIES if wanted.name != "long_context"]
SLOW = [wanted for wanted in PROPERTIES if wanted not in QUICK]


def failing(name: str, properties: list[Property]) -> list[str]:
    findings = [(wanted, check(case_of(name), wanted)) for wanted in properties]
    return [
        f"{wanted.name}: {finding.measured}; look at {wanted.look}"
        for wanted, finding in findings
        if finding.state == "fails"
    ]


@every_encoding
def test_all_that_is_checked_of_every_encoding_holds(name: str) -> None:
    assert failing(name, QUICK) == []


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_what_is_checked_far_out_holds(name: str) -> None:
    assert failing(name, SLOW) == []


def test_options_stand_in_the_signature_alone_and_are_read_from_the_source() -> None:
    for group, names in (("encoding", NAMES), ("modifier", MODIFIERS)):
        for path in (config_dir() / group / f"{name}.yaml" for name in names):
            part = yaml.safe_load(path.read_text(encoding="utf-8"))
            if "class" in part:
                options = {option.name: option for option in options_of(part["class"])}
                assert list(options) == [option.name for option in inspected(part["class"], ())]
                repeated = [
                    name for name in part.keys() & options.keys() if part[name] == options[name].default
                ]
                assert repeated == [] or "local" in part, path  # a preset shows the numbers of its model


@every_encoding
def test_label_is_the_files_name_or_the_bases_and_the_modifiers(name: str) -> None:
    one = case_of(name)
    modifiers = one.config.get("modifiers", {})
    assert list(modifiers) == [name] if modifiers else one.config["name"] == name
    if not any(part.example() or part.nested for part in one.spec.parts):
        assert one.spec.label == "+".join([one.config["name"], *modifiers])


@every_encoding
def test_docstring_says_what_happens_past_the_training_length_and_what_is_cited(name: str) -> None:
    for part in case_of(name).spec.parts:
        encoding = part.encoding_class
        page = inspect.getmodule(encoding).__doc__ or ""
        assert "\n\nPast the training length: " in page
        cited = encoding.paper.split(" ")[0]
        assert cited and cited in page, "the paper of the class is the one that the page cites"


@every_encoding
def test_positions_may_be_floats_and_differ_between_sequences(name: str) -> None:
    half = TRAIN_LENGTH // 2
    for layer in layers_of(case_of(name).encoding):
        x, q, k, v = layer_inputs(half)
        position = torch.stack([torch.arange(half), 2 * torch.arange(half)])
        both = attention(layer, x, q, k, v, position)
        for row in (0, 1):
            one = slice(row, row + 1)
            alone = attention(layer, x[one], q[one], k[one], v[one], position[row].float())
            assert worst(alone, both[one]) < 1e-5


@every_encoding
def test_a_window_from_outside_is_that_mask_whatever_keys_are_left_out(name: str) -> None:
    length, window = TRAIN_LENGTH, 4
    for layer in layers_of(case_of(name).encoding):
        arguments = (*layer_inputs(length), torch.arange(length))
        masked = reference_attention(Stack([layer, SlidingWindow(window)]), *arguments)
        in_blocks = reference_attention(layer, *arguments, window=window, block=3)
        assert worst(in_blocks, masked) < 1e-10


@every_encoding
def test_shared_key_heads_are_key_heads_repeated(name: str) -> None:
    one = case_of(name)
    grouped, every_head = one.model, replace(MODEL, n_kv_heads=MODEL.n_heads)
    full = Decoder(every_head, len(VOCABULARY), one.with_random_parameters()).double()
    weights = grouped.state_dict()
    for key, weight in weights.items():
        if "attention.key" in key or "attention.value" in key:
            weights[key] = weight.unflatten(0, (2, MODEL.d_head)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(weights)
    text = tokens(2, TRAIN_LENGTH)
    assert worst(hidden(grouped, text), hidden(full, text)) < 1e-10


@every_encoding
def test_parameters_follow_the_seed(name: str) -> None:
    first, again = case_of(name).as_built().state_dict(), case_of(name).as_built().state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)


@pytest.mark.parametrize("modifier", MODIFIERS)
@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_every_modifier_acts_on_every_encoding(name: str, modifier: str) -> None:
    try:
        one = with_enough_rows(find_case(name, (f"modifier=[{modifier}]",)))
    except UserError as refusal:
        if not re.search("both replace ids|which the encoding replaces", str(refusal)):
            raise
        return
    assert modifier in one.config["modifiers"]
    output = hidden(one.model, tokens(2, TRAIN_LENGTH))
    assert output.isfinite().all()
    (gradient,) = torch.autograd.grad(output[:, 4].sum(), one.model.embedding.weight)
    assert gradient.isfinite().all()


def with_enough_rows(one: Case) -> Case:
    """A table of positions must hold the ids of modifiers that spread them."""
    spread = [part["max_position"] for part in one.config["modifiers"].values() if "max_position" in part]
    if not spread or one.past_training != "undefined" or "max_position" not in one.config:
        return one
    return replace(one, spec=replace(one.spec, values=one.config | {"max_position": max(spread)}))
