"""Read the arguments of a command: names of encodings, and overrides."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import GROUPS, find_name, keys_in
from pe_bench.config.overrides import Override, parse_override, unknown_key, with_full_key
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import KEYS, Config
from pe_bench.errors import require
from pe_bench.values import close_to

OVERRIDE_WORD = re.compile(r"""(?:[^\s'"\[]|'[^']*'|"[^"]*"|\[[^\]]*\])+""")


def names_and_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into names of encodings, NAME or `encoding=NAME`, each once, and other overrides.

    Raises `UserError` for a name and its options in one argument, which `try` and `--with` take.
    """
    prefix = "encoding="
    names: list[str] = []
    overrides: list[str] = []
    for text in arguments:
        name, equals, _ = text.removeprefix(prefix).partition("=")
        message = f"'{text}': take the quotes away, so that each option is an argument"
        require(not (equals and " " in name.strip()), message)
        if "=" not in text or text.startswith(prefix):
            names.append(text.removeprefix(prefix))
        else:
            overrides.append(text)
    return list(dict.fromkeys(names)), overrides


def configs_of(arguments: Sequence[str], search: Sequence[Path] = ()) -> dict[str, Config]:
    """Return a configuration for each encoding that the arguments name, with the overrides among them.

    An option of an encoding changes all encodings that have it. Nothing is trained, so the batch may have any
    size. Raises `UserError`.
    """
    typed_names, texts = names_and_overrides(arguments)
    require(bool(typed_names), "name an encoding; `pe-bench list encodings` has them")
    names = dict.fromkeys(find_name("encoding", name, search) for name in typed_names)
    overrides = [parse_override(text) for text in texts]
    options = [override for override in overrides if is_encoding_option(override)]
    shared = [str(override) for override in overrides if not is_encoding_option(override)]
    composed_configs: dict[str, dict[str, Any]] = {}
    used_options: set[Override] = set()
    for name in names:
        values = compose([f"encoding={name}", *shared], search)
        full = {option: with_full_key(name, values["encoding"], option) for option in options}
        used_options |= {option for option, found in full.items() if found or option.prefix}
        chosen = [str(option) for option in full.values() if option]
        if chosen:
            values = compose([f"encoding={name}", *shared, *chosen], search)
        composed_configs[name] = values
    for key in [option.key for option in options if option not in used_options]:
        keys = [*chain.from_iterable(map(keys_in, composed_configs.values()))]
        is_whole = "." in key or close_to(key, keys)
        raise unknown_key(key if is_whole else f"encoding.{key}", keys)
    return {name: parse_config(values, search, is_trained=False) for name, values in composed_configs.items()}


def is_encoding_option(override: Override) -> bool:
    """Return true for an option of an encoding, such as `encoding.base=500` or in short `base=500`."""
    is_short = "." not in override.key and override.key not in (*GROUPS, *KEYS)
    return is_short or override.section == "encoding"


def in_sections(overrides: Sequence[str], sections: Sequence[str]) -> list[str]:
    """Return the overrides of keys in these sections; a key without section is its own section."""
    return [text for text in overrides if parse_override(text).section in sections]


def without_keys(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return the overrides of all keys but these."""
    return [text for text in overrides if parse_override(text).key not in keys]


def value_texts(overrides: Sequence[str]) -> dict[str, str | None]:
    """Return the text of each override's value, as it was typed, by key; None for `~KEY`."""
    parsed = [parse_override(text) for text in overrides]
    return {override.key: override.value for override in parsed}


def overrides_in(text: str) -> list[str]:
    """Return the overrides of a text such as `rope base=500000`, `my.py:RootBias` or `rope+logn`.

    Raises `UserError`.
    """
    words = OVERRIDE_WORD.findall(text)
    require(bool(words), f"'{text}' names no encoding; say my.py:RootBias, 'rope base=500000' or rope+logn")
    name, *options = words
    encoding, *modifiers = name.split("+")
    for option in options:
        require("=" in option, f"'{text}': {option} is no option; say KEY=VALUE, such as base=500000")
    overrides = [f"encoding={encoding}"]
    if modifiers:
        overrides.append(f"modifier=[{','.join(modifiers)}]")
    for option in options:
        is_full_key = "." in option.partition("=")[0]
        overrides.append(option if is_full_key else f"encoding.{option}")
    return overrides
