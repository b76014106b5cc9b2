"""The overrides of a command, checked before Hydra sees them."""

import re
from collections.abc import Sequence
from pathlib import Path

from pe_bench.config.groups import GROUPS, ONE_OF_EACH, names_in
from pe_bench.config.override import Override, parse_overrides
from pe_bench.encodings.signatures import require_class
from pe_bench.errors import UserError, require

EXAMPLES = {
    "encoding": "rope",
    "model": "small",
    "data": "stdlib",
    "task": "majority",
    "tokenizer": "bytes",
    "experiment": "quick",
    "modifier": "logn",
}
KEY = re.compile(r"[A-Za-z_][\w$/@.:-]*", re.ASCII)


def check_overrides(overrides: Sequence[str], search: Sequence[Path] = ()) -> None:
    """Refuse what Hydra would take, or would refuse at length. Raises `UserError`."""
    parsed = parse_overrides(overrides)
    for before, text, override in zip(["", *overrides], overrides, parsed, strict=False):
        require(
            not before.endswith(",") or override.value is not None,
            f"'{before} {text}': no space is allowed after the comma",
        )
        _check_form(text, override, search)
    values = {override.key: override.value or "" for override in parsed}
    if "train.steps" in values and "train.tokens" in values:
        raise UserError("train.steps and train.tokens both say how long to train: give one of them")
    for group in GROUPS:
        if values.get(group, "").startswith("{"):
            raise UserError(f"{group}={values[group]} is not a name: say {group}=NAME, and {group}.KEY=VALUE")
    for group in ONE_OF_EACH:
        if values.get(group, "").startswith("["):
            raise UserError(
                f"{group}={values[group]}: a run has one {group}; say -m {group}={values[group].strip('[]')} "
                "for a run with each, or modifier=[NAME] for something on top of an encoding"
            )


def _check_form(text: str, override: Override, search: Sequence[Path]) -> None:
    if override.key in GROUPS and not override.value and override.prefix != "~":
        group = override.key
        example = f"[{EXAMPLES[group]}]" if group == "modifier" else EXAMPLES[group]
        raise UserError(f"'{text}' has no value: say {group}=NAME, such as {group}={example}")
    if override.key == "encoding":
        for name in (override.value or "").split(","):
            require_class(name, search)
    elif override.key == "modifier" and ":" in (override.value or ""):
        raise UserError(
            f"{text} is a class: name it in a file FOLDER/modifier/NAME.yaml with 'class: {override.value}', "
            "and say modifier=NAME --config-dir FOLDER"
        )
    if KEY.fullmatch(override.key) and (override.value is not None or override.prefix == "~"):
        return
    group = next((group for group in GROUPS if text in names_in(group, search)), None)
    if group is not None:
        value = f"[{text}]" if group == "modifier" else text
        raise UserError(f"'{text}' cannot be read: say {group}={value}")
    raise UserError(f"'{text}' cannot be read: say KEY=VALUE, such as train.lr=0.001")
