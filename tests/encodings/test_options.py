"""Every option of every encoding is obeyed: another value is another output, or another error."""

import inspect
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from support.cases import find_case
from support.encodings import ONE_OF_A_KIND

from pe_bench.config.groups import config_dir
from pe_bench.encodings.base import LayerEncoding, LengthError, NestedEncoding, PositionalEncoding
from pe_bench.encodings.load import find_class
from pe_bench.errors import UserError
from pe_bench.inspection.check.case import TRAIN_LENGTH, Case, ids_of, tokens
from pe_bench.inspection.check.result import worst

torch.set_num_threads(1)

SIZES = {"d_model", "n_heads", "d_head", "n_layers"}  # the model's, not the encoding's
# Other ways to calculate the same thing.
EQUAL = {"rope.form"}
# Without these an option has nothing to act on: in so small a model one pair of features, or a frequency that
# lies where every bound leaves it; in so short a text one group; or it is of another choice, and then
# test_option_that_nothing_would_read_is_refused holds.
GIVEN = {
    "partial_rope": ["encoding.fraction=0.5"],
    "dape": ["encoding.inner=fire"],
    "self_extend": ["encoding.group_size=2"],
    "yarn": ["encoding.base=10"],
    "rope_ntk_by_parts": ["encoding.base=10"],
}
GIVEN_FOR = {"fraction_of": ["encoding.fraction=0.5"], "last": ["encoding.every=3"]}

case_of = cache(find_case)


def options() -> list[tuple[str, str, str]]:
    """Encoding, where its part stands in the configuration, and option."""
    found = []
    for path in sorted((config_dir() / "encoding").glob("*.yaml")):
        config = case_of(path.stem).config
        if "local" in config and path.stem != "local_global":  # a preset of it
            continue
        modifiers = config.get("modifiers", {})
        # What stands under a modifier is the modifier's test; its base has its own.
        parts = {f"modifiers.{name}.": part for name, part in modifiers.items()} or {"": config}
        for place, part in parts.items():
            encoding = find_class(part["class"])
            has_options = encoding.__init__ not in (LayerEncoding.__init__, PositionalEncoding.__init__)
            wanted = inspect.signature(encoding.__init__).parameters if has_options else {}
            names = [name.removesuffix("_") for name in wanted if name not in SIZES | {"self"}]
            found += [(path.stem, place, name) for name in names]
    return found


def hint_of(one: Case, place: str, option: str) -> Any:
    hints = get_type_hints(find_class(part_class(one, place)).__init__)
    return hints[option] if option in hints else hints[f"{option}_"]


def other_values(one: Case, place: str, option: str) -> list[Any]:
    part = one.config["modifiers"][place.split(".")[1]] if place else one.config
    value = part[option]
    wanted = hint_of(one, place, option)
    if wanted == NestedEncoding:
        return ["{name: alibi}"]
    if get_origin(wanted) is Literal:
        return [choice for choice in get_args(wanted) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [2 * value, value / 2 if isinstance(value, float) else max(1, value // 2), value + 1, 2]
    if isinstance(value, list):
        return [value[:1]] if isinstance(value[0], str) else [[2 * number for number in value]]
    return [8, 2, 2.0, [1.5] * 4]  # null stands for a number, or for one of each pair or head


def outcome(one: Case) -> list[torch.Tensor | str]:
    """The initial parameters, and hidden states of others, or the error where there is one.

    The states have the ids of training and of scoring.
    """
    found: list[torch.Tensor | str] = [
        torch.cat([torch.zeros(1), *map(torch.flatten, one.as_built().parameters())]).detach()
    ]
    for length, train in ((TRAIN_LENGTH, True), (3 * TRAIN_LENGTH, False)):
        text = tokens(2, length)
        try:
            ids = ids_of(one.model.encoding, text, train)
            found.append(one.model.hidden(text, ids).detach())
        except LengthError as error:
            found.append(str(error))
    return found


def differs(some: list[torch.Tensor | str], others: list[torch.Tensor | str]) -> bool:
    return any(
        a != b if isinstance(a, str) or isinstance(b, str) else a.shape != b.shape or worst(a, b) > 1e-6
        for a, b in zip(some, others, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "place", "option"),
    [
        case if case[0] in (*ONE_OF_A_KIND, "local_global") else pytest.param(*case, marks=pytest.mark.full)
        for case in options()
    ],
)
def test_another_value_of_an_option_is_another_output(name: str, place: str, option: str) -> None:
    given = (*GIVEN.get(name, ()), *GIVEN_FOR.get(option, ()))
    plain, changes = case_of(name, given), []
    usual = outcome(plain)
    for value in other_values(plain, place, option):
        override = f"encoding.{place}{option}={str(value).lower() if isinstance(value, bool) else value}"
        try:
            changed = outcome(find_case(name, (*given, override.replace("'", ""))))
        except UserError as error:
            if option not in str(error).replace("train.length", "train_length"):
                raise
        else:
            changes.append(differs(changed, usual))
    assert changes, "no other value could be had"
    expected = f"{name}.{option}" not in EQUAL
    is_choice = get_origin(hint_of(plain, place, option)) is Literal
    # Every choice is a way of its own; of numbers, one may lie where nothing depends on it.
    assert all(changes) == expected if is_choice else any(changes) == expected


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("dape", ["encoding.threshold=8"]),
        ("dape", ["encoding.threshold=8", "encoding.inner=alibi"]),
        ("yarn", ["encoding.fraction_of=frequencies"]),
        ("tupe", ["encoding.overflow=clamp", "encoding.positions=sinusoidal"]),
        ("multiplicative", ["encoding.overflow=interpolate", "encoding.positions=sinusoidal"]),
    ],
)
def test_option_that_nothing_would_read_is_refused(name: str, overrides: list[str]) -> None:
    with pytest.raises(UserError, match=f"{overrides[0]} .*: leave it out"):
        find_case(name, tuple(overrides))


def part_class(one: Case, place: str) -> str:
    return one.config["modifiers"][place.split(".")[1]]["class"] if place else one.config["class"]
