"""The encodings that trained weights can be scored with: the catalogue's table against the classes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from pe_bench.config.compose import compose
from pe_bench.config.groups import names_in
from pe_bench.config.parse import parse_config
from pe_bench.encodings.spec import EncodingSpec, PartSpec
from pe_bench.scoring.other_encodings import incompatibility

NAMES = names_in("encoding", [])
MODIFIERS = names_in("modifier", [])

# The catalogue's section 3, line by line: trained with, may be evaluated with.
LENGTHENED = frozenset(
    {
        *("rope_pi", "rope_ntk", "rope_dynamic_ntk", "rope_ntk_by_parts", "yarn", "llama3", "longrope"),
        "rope_clipped",
        *("rerope", "leaky_rerope", "self_extend", "dca", "lm_infinite", "streaming", "sliding_window"),
        *("logn", "log_steps", "temperature", "nope"),
    }
)
ITSELF = ("alibi", "kerple_log", "kerple_power", "sandwich", "t5", "fire", "fox", "cope", "shaw")
WHITELIST = {
    **dict.fromkeys(("rope", "partial_rope", "p_rope"), LENGTHENED),
    "sinusoidal": {"sliding_window", "logn", "log_steps"},
    "learned": {"sliding_window"},
    "nope": {"temperature", "logn", "log_steps", "sliding_window"},
    **dict.fromkeys((*ITSELF, "transformer_xl", "deberta"), frozenset({"sliding_window", "temperature"})),
}
# With other options: ids / s, clamp and interpolate, slope_scale, random and even and arange.
CHANGES = {
    "sinusoidal": {"factor=4.0"},
    "learned": {"overflow=clamp", "overflow=interpolate"},
    "alibi": {"slope_scale=0.5"},
    "randomized": {"scored_with=arange", "scored_with=even"},
}
# Modifiers of a trained model that leave the meaning of its weights as it is; the others have made them learn
# other positions (randomized, pose, shape, cape, bipe) or have parameters of their own (ssmax).
NEUTRAL = {"logn", "log_steps", "sliding_window", "temperature"}


@cache
def spec(name: str, *overrides: str) -> EncodingSpec:
    return EncodingSpec(parse_config(compose([f"encoding={name}", *overrides])).encoding)


def named_part(name: str) -> PartSpec:
    """The modifier of that name, or the encoding."""
    return spec(name).modifiers.get(name, spec(name).base)


def scored_with(trained: EncodingSpec, name: str) -> EncodingSpec:
    """A modifier on top of what was trained, any other encoding in the place of its base."""
    kept = trained.values.get("modifiers") or {}
    if name in MODIFIERS:
        return EncodingSpec({**trained.values, "modifiers": {**kept, **spec(name).values["modifiers"]}})
    return EncodingSpec({**spec(name).values, "modifiers": kept})


def allowed(trained: str, name: str) -> bool:
    """Return whether the table above allows it; an encoding's own weights always can."""
    base, kept = spec(trained).base.name, set(spec(trained).modifiers)
    if name == spec(trained).values["name"] or name in kept:
        return True
    return name in WHITELIST.get(base, set()) and kept <= NEUTRAL


@pytest.mark.parametrize("trained", NAMES)
def test_compatible_encodings_are_those_of_the_catalogues_table(trained: str) -> None:
    before = spec(trained)
    may = {name for name in NAMES if incompatibility(before, scored_with(before, name)) is None}
    assert may == {name for name in NAMES if allowed(trained, name)}


@pytest.mark.parametrize(
    ("name", "override"), [(name, override) for name in CHANGES for override in sorted(CHANGES[name])]
)
def test_an_option_named_in_the_catalogue_may_change_after_training(name: str, override: str) -> None:
    place = f"encoding.modifiers.{name}" if name in MODIFIERS else "encoding"
    assert incompatibility(spec(name), spec(name, f"{place}.{override}")) is None


def test_no_other_option_may_change_after_training() -> None:
    """No class declares an option that the table lacks."""
    found = {}
    for name in NAMES:
        if changeable := named_part(name).encoding_class.changeable_after_training:
            found[name] = set(changeable)
    assert found == {
        name: {override.partition("=")[0] for override in overrides} for name, overrides in CHANGES.items()
    }


def test_a_changed_option_is_refused_with_both_values() -> None:
    reason = incompatibility(spec("rope"), spec("rope", "encoding.base=500"))
    assert reason == (
        "this run was trained with rope base=10000.0, and base cannot change to 500.0 after training "
        "(changeable: none)"
    )
    reason = incompatibility(spec("alibi"), spec("alibi", "encoding.n_heads=2"))
    assert reason is not None and reason.endswith("(changeable: slope_scale)")


def test_what_a_class_implies_is_an_option_of_its_compatible_encodings() -> None:
    """A fraction means two things in p_rope and partial_rope, and a scaling can have either."""
    assert {name for name in NAMES if implied(spec(name))} == {"p_rope"}, "of the features it is the default"
    assert not implied(spec("p_rope", "encoding.fraction=1.0")), "of all of them it means nothing"
    scalings = [name for name in LENGTHENED if name in NAMES and name not in (*MODIFIERS, "nope")]
    for name in scalings:
        assert {"fraction", "fraction_of", "base", "layout"} <= set(spec(name).with_examples().base.options)


def implied(encoding: EncodingSpec) -> Mapping[str, Any]:
    return encoding.base.encoding_class.implied(encoding.values)


@pytest.mark.parametrize(
    ("trained", "other", "reason"),
    [
        ("{name: rope}", "{name: yarn, factor: 4}", None),
        ("{name: rope}", "{name: rope, modifiers: {logn: {}}}", None),
        (
            "{name: rope}",
            "{name: rope, base: 500}",
            "global: this run was trained with rope base=10000.0, and base cannot change to 500.0 after",
        ),
        (
            "{name: nope}",
            "{name: yarn}",
            "global: yarn works on weights trained with p_rope, partial_rope or rope;",
        ),
    ],
)
def test_an_encoding_in_an_option_may_change_as_it_could_alone(
    trained: str, other: str, reason: str | None
) -> None:
    before, after = (spec("local_global", f"encoding.global={value}") for value in (trained, other))
    found = incompatibility(before, after)
    assert found is None if reason is None else found is not None and found.startswith(reason)
