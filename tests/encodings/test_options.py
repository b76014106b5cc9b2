"""Every option of every encoding is obeyed: another value is another output."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from support.cases import find_case

from pe_bench.config.groups import names_in
from pe_bench.encodings.base import LengthError, NestedEncoding
from pe_bench.encodings.signatures import argument_of
from pe_bench.encodings.spec import EncodingSpec, PartSpec
from pe_bench.errors import UserError
from pe_bench.inspection.check.case import TRAIN_LENGTH, Case, ids_of, largest_difference, tokens

SIZES = {"d_model", "n_heads", "d_head", "n_layers"}  # the model's, not the encoding's
EQUAL = {"rope.form"}  # other ways to calculate the same thing
# Without these an option has nothing to act on: in so small a model one pair of features, or a frequency that
# lies where every bound leaves it; in so short a text one group; or it is of another choice, and is refused.
GIVEN = {
    "partial_rope": ["encoding.fraction=0.5"],
    "dape": ["encoding.inner=fire"],
    "self_extend": ["encoding.group_size=2"],
    "yarn": ["encoding.base=10"],
    "rope_ntk_by_parts": ["encoding.base=10"],
    "fraction_of": ["encoding.fraction=0.5"],
    "last": ["encoding.every=3"],
}


def other_values(part: PartSpec, option: str) -> list[Any]:
    value = part.values[option]
    kind = get_type_hints(part.encoding_class.__init__)[argument_of(option)]
    if kind == NestedEncoding:
        return [dict(find_case("alibi").spec.values)]
    if get_origin(kind) is Literal:
        return [choice for choice in get_args(kind) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [2 * value, value / 2 if isinstance(value, float) else max(1, value // 2), value + 1, 2]
    if isinstance(value, list):
        return [value[:1]] if isinstance(value[0], str) else [[2 * number for number in value]]
    return [8, 2, 2.0, -2.0, [1.5] * 4]  # null stands for a number, or for one of each pair or head


@torch.no_grad()
def outcome(case: Case) -> list[torch.Tensor | str]:
    """Return initial parameters, and hidden states with the ids of training and of scoring, or the error."""
    initial = torch.cat([torch.zeros(1), *map(torch.flatten, case.as_built().parameters())])
    results: list[torch.Tensor | str] = [initial]
    for length, train in ((TRAIN_LENGTH, True), (3 * TRAIN_LENGTH, False)):
        text = tokens(2, length)
        try:
            results.append(case.model.hidden(text, ids_of(case.model.encoding, text, train)))
        except LengthError as error:
            results.append(str(error))
    return results


def differ(one: torch.Tensor | str, other: torch.Tensor | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one != other
    return one.shape != other.shape or largest_difference(one, other) > 1e-6


def is_obeyed(name: str, key: str, option: str) -> bool:
    """Return whether another value is another output; of a choice, each of the other values."""
    plain, changes = find_case(name, (*GIVEN.get(name, ()), *GIVEN.get(option, ()))), []
    part, usual = next(part for part in plain.spec.parts if part.key == key), outcome(plain)
    for value in other_values(part, option):
        values = deepcopy(plain.spec.values) | dict.fromkeys(plain.examples)
        (values if key == "encoding" else values["modifiers"][key.rpartition(".")[2]])[option] = value
        try:
            changed = replace(plain, spec=EncodingSpec(values).with_examples())
            changes.append(any(map(differ, outcome(changed), usual)))
        except UserError as error:
            if option not in str(error).replace("train.length", "train_length"):
                raise
    assert changes, f"no other value of {option} could be had"
    is_choice = get_origin(get_type_hints(part.encoding_class.__init__)[argument_of(option)]) is Literal
    # Every choice is a way of its own; of numbers, one may lie where nothing depends on it.
    return (all if is_choice else any)(changes) == (f"{name}.{option}" not in EQUAL)


@pytest.mark.parametrize("name", names_in("encoding"))
def test_another_value_of_an_option_is_another_output(name: str) -> None:
    case = find_case(name)
    if case.spec.base.nested and name != "local_global":
        return  # a preset of it
    # What stands under a modifier is the modifier's test; its base has its own.
    parts = list(case.spec.modifiers.values()) or [case.spec.base]
    options = [(part.key, option) for part in parts for option in part.defaults if option not in SIZES]
    assert [option for key, option in options if not is_obeyed(name, key, option)] == []
