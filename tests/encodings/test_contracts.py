"""What every encoding under configs/encoding promises, whatever it is: nothing here knows a name."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
import yaml
from support.cases import find_case
from support.encodings import one_of_a_kind
from support.reference_numbers import NUMBERS, error_of, wrong_numbers

from pe_bench.config.groups import config_dir, paper
from pe_bench.encodings.base import LengthError
from pe_bench.encodings.load import find_class
from pe_bench.encodings.signatures import defaults_of, options_of
from pe_bench.errors import UserError
from pe_bench.inspection.check import PROPERTIES, Property, check
from pe_bench.inspection.check.case import MODEL, TRAIN_LENGTH, VOCABULARY, Case, hidden, tokens, worst
from pe_bench.model.decoder import Decoder

NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
MODIFIERS = sorted(path.stem for path in (config_dir() / "modifier").glob("*.yaml"))
QUICK = [one for one in PROPERTIES if one.name != "long_context"]
SLOW = [one for one in PROPERTIES if one not in QUICK]

torch.set_num_threads(1)  # tensors are tiny here, and tests run side by side
case_of = cache(find_case)


def failing(name: str, properties: list[Property]) -> list[str]:
    findings = [(one, check(case_of(name), one)) for one in properties]
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
    pages = [
        (sys.modules[part.encoding_class.__module__].__doc__ or "", part.encoding_class.paper)
        for part in case.spec.parts
    ]
    if paper(case.name):
        text = (config_dir() / "encoding" / f"{case.name}.yaml").read_text().replace("# ", "")
        pages.append((text.replace("#\n", "\n").partition("paper: ")[2].partition("\n")[2], paper(case.name)))
    return all("\n\nPast the training length: " in page and cited and cited in page for page, cited in pages)


def has_its_reference_numbers(case: Case) -> bool:
    return wrong_numbers(case.spec.parts) == []


def treats_shared_key_heads_as_key_heads_repeated(case: Case) -> bool:
    grouped, every_head = case.model, replace(MODEL, n_kv_heads=MODEL.n_heads)
    full = Decoder(every_head, len(VOCABULARY), case.with_random_parameters()).double()
    weights = grouped.state_dict()
    for key, weight in weights.items():
        if "attention.key" in key or "attention.value" in key:
            weights[key] = weight.unflatten(0, (2, MODEL.d_head)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(weights)
    text = tokens(2, TRAIN_LENGTH)
    return worst(hidden(grouped, text), hidden(full, text)) < 1e-10


PROMISES: list[Callable[[Case], bool]] = [
    has_the_label_of_its_file_or_of_base_and_modifiers,
    says_what_happens_past_the_training_length_and_what_it_cites,
    has_its_reference_numbers,
    treats_shared_key_heads_as_key_heads_repeated,
]


@pytest.mark.parametrize("name", NAMES)
def test_an_encoding_keeps_all_promises(name: str) -> None:
    broken = [promise.__name__ for promise in PROMISES if not promise(case_of(name))]
    assert failing(name, QUICK) + broken == []


def test_reference_numbers_are_of_encodings_and_can_fail() -> None:
    assert set(NUMBERS) <= {*NAMES, *MODIFIERS}
    entry = {"of": "bias_of_heads", "options": {"n_heads": 2}, "numbers": [-0.0625, -0.25]}
    assert error_of(case_of("alibi").spec.base, entry) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_what_is_checked_far_out_holds(name: str) -> None:
    assert failing(name, SLOW) == []


def test_options_stand_in_the_signature_alone_and_are_read_from_the_source() -> None:
    for path in (
        path for group in ("encoding", "modifier") for path in (config_dir() / group).glob("*.yaml")
    ):
        part = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "class" in part:
            options = options_of(part["class"])
            read = [(option.name, option.default) for option in options]
            assert read == list(defaults_of(find_class(part["class"])).items()), path
            repeated = [name for name, default in read if name in part and part[name] == default]
            assert repeated == [] or "local" in part, path  # a preset shows the numbers of its model


@pytest.mark.parametrize("name", one_of_a_kind(NAMES, ("rope", "alibi", "cope")))
def test_every_modifier_acts_on_every_encoding(name: str) -> None:
    for modifier in MODIFIERS:
        try:
            case = find_case(name, (f"modifier=[{modifier}]",))
        except UserError as refusal:
            if not re.search("both replace ids|which the encoding replaces", str(refusal)):
                raise
            continue
        assert modifier in case.spec.values["modifiers"]
        try:
            output = hidden(case.model, tokens(2, TRAIN_LENGTH))
        except LengthError:  # a table without rows for the ids of modifiers that spread them
            assert "max_position" in case.spec.values
            continue
        (gradient,) = torch.autograd.grad(output[:, 4].sum(), case.model.embedding.weight)
        assert output.isfinite().all() and gradient.isfinite().all(), modifier
