"""Every option of every encoding is obeyed, and one that cannot work is refused in one line."""

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from support.cases import find_case
from support.encodings import one_of_a_kind

from pe_bench.config.groups import config_dir
from pe_bench.encodings.base import LengthError, NestedEncoding
from pe_bench.encodings.signatures import argument_of
from pe_bench.encodings.spec import PartSpec
from pe_bench.errors import UserError
from pe_bench.inspection.check.case import TRAIN_LENGTH, Case, ids_of, tokens, worst

torch.set_num_threads(1)

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
}
GIVEN_FOR = {"fraction_of": ["encoding.fraction=0.5"], "last": ["encoding.every=3"]}
NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
case_of = cache(find_case)


def other_values(part: PartSpec, option: str) -> list[Any]:
    value = part.values[option]
    kind = get_type_hints(part.encoding_class.__init__)[argument_of(option)]
    if kind == NestedEncoding:
        return ["{name: alibi}"]
    if get_origin(kind) is Literal:
        return [choice for choice in get_args(kind) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [2 * value, value / 2 if isinstance(value, float) else max(1, value // 2), value + 1, 2]
    if isinstance(value, list):
        return [value[:1]] if isinstance(value[0], str) else [[2 * number for number in value]]
    return [8, 2, 2.0, [1.5] * 4]  # null stands for a number, or for one of each pair or head


def outcome(case: Case) -> list[torch.Tensor | str]:
    """Return initial parameters, and hidden states with the ids of training and of scoring, or the error."""
    results: list[torch.Tensor | str] = [
        torch.cat([torch.zeros(1), *map(torch.flatten, case.as_built().parameters())])
    ]
    for length, train in ((TRAIN_LENGTH, True), (3 * TRAIN_LENGTH, False)):
        text = tokens(2, length)
        try:
            results.append(case.model.hidden(text, ids_of(case.model.encoding, text, train)))
        except LengthError as error:
            results.append(str(error))
    return results


def differs(some: list[torch.Tensor | str], others: list[torch.Tensor | str]) -> bool:
    return any(
        a != b if isinstance(a, str) or isinstance(b, str) else a.shape != b.shape or worst(a, b) > 1e-6
        for a, b in zip(some, others, strict=True)
    )


@torch.no_grad()
def is_obeyed(name: str, key: str, option: str) -> bool:
    """Return whether another value is another output; of a choice, each of the other values."""
    given = (*GIVEN.get(name, ()), *GIVEN_FOR.get(option, ()))
    plain, changes = case_of(name, given), []
    part = next(part for part in plain.spec.parts if part.key == key)
    usual = outcome(plain)
    for value in other_values(part, option):
        text = str(value).lower() if isinstance(value, bool) else str(value).replace("'", "")
        try:
            changes.append(differs(outcome(find_case(name, (*given, f"{key}.{option}={text}"))), usual))
        except UserError as error:
            if option not in str(error).replace("train.length", "train_length"):
                raise
    assert changes, f"no other value of {option} could be had"
    is_choice = get_origin(get_type_hints(part.encoding_class.__init__)[argument_of(option)]) is Literal
    # Every choice is a way of its own; of numbers, one may lie where nothing depends on it.
    return (all if is_choice else any)(changes) == (f"{name}.{option}" not in EQUAL)


@pytest.mark.parametrize(
    "name", one_of_a_kind(NAMES, ("learned", "t5", "yarn", "fox", "streaming", "local_global"))
)
def test_another_value_of_an_option_is_another_output(name: str) -> None:
    case = case_of(name)
    if case.spec.base.nested and name != "local_global":
        return  # a preset of it
    # What stands under a modifier is the modifier's test; its base has its own.
    parts = list(case.spec.modifiers.values()) or [case.spec.base]
    options = [(part.key, option) for part in parts for option in part.defaults if option not in SIZES]
    assert [option for key, option in options if not is_obeyed(name, key, option)] == []
