"""The configuration of one job: Hydra composes it from a command's overrides, or starts many.

An option of an encoding may hold another encoding: `encoding.global={name: p_rope, fraction: 0.25}`. A file
names it by `name`, or by an entry `/encoding@global: p_rope` of its defaults; an override does so by a
mapping with a `name`, which replaces what was there. Whatever it leaves out is that of the file of this name.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import yaml

from pe_bench.config.groups import SEARCH_PATH, config_dir, find_name
from pe_bench.config.overrides import (
    CONFIG,
    NOT_OPTIONS,
    cause,
    check_overrides,
    explain_hydra_errors,
    for_hydra,
    parse_override,
    search_override,
    unknown_key,
    values_of,
)
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.encodings.signatures import read_part
from pe_bench.errors import UserError, first_line, require
from pe_bench.system.files import expand_path


def compose(overrides: Sequence[str], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Compose the configuration of one job as plain values, without running anything."""
    overrides = for_hydra(overrides, search)
    with explain_hydra_errors(overrides, search):
        return _compose(overrides, search)


def _compose(overrides: Sequence[str], search: Sequence[Path]) -> dict[str, Any]:
    return to_plain_values(_hydra_compose(overrides, search), search)


def _hydra_compose(overrides: Sequence[str], search: Sequence[Path]) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register_resolvers()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return hydra_compose(CONFIG, [*overrides, *search_override(search)])


def _unresolved(composed: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(composed, resolve=False)
    return values


def to_plain_values(composed: Any, search: Sequence[Path] = ()) -> dict[str, Any]:
    """Resolve to plain values; each part of the encoding names its options that were derived."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        composed = _with_nested(composed, search)
        raw = OmegaConf.to_container(composed, resolve=False)
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise cause(error) or UserError(first_line(error)) from error
    assert isinstance(raw, dict)
    assert isinstance(values, dict)
    plain = {
        str(key): value for key, value in values.items() if key not in ("hydra", "modifier", "experiment")
    }
    if isinstance(plain.get("encoding"), dict):
        preset = _read_preset(str(raw["encoding"].get("name")), search)
        plain["encoding"] = _mark_derived(raw["encoding"], plain["encoding"], preset)
    return plain


def _with_nested(composed: Any, search: Sequence[Path]) -> Any:
    """Complete the encodings that options of the encoding hold."""
    from omegaconf import OmegaConf

    def compose_encoding(overrides: Sequence[str]) -> dict[str, Any]:
        with _lent_hydra():
            return _unresolved(_hydra_compose(overrides, search))["encoding"]

    raw = _unresolved(composed)
    if not isinstance(raw.get("encoding"), dict):
        return composed
    encoding = complete_nested(raw["encoding"], compose_encoding, search)
    return composed if encoding == raw["encoding"] else OmegaConf.create({**raw, "encoding": encoding})


@contextmanager
def _lent_hydra() -> Iterator[None]:
    """Let Hydra compose something else in a job of its own."""
    from hydra.core.global_hydra import GlobalHydra

    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer


def register_resolvers() -> None:
    """Register what reads the files of encodings, and the functions that the YAML files call."""
    from omegaconf import OmegaConf

    from pe_bench.config.hydra_source import register

    register()
    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("quotient", lambda a, b: max(1, a // b), replace=True)
    OmegaConf.register_new_resolver("times", lambda a, b: a * b, replace=True)
    OmegaConf.register_new_resolver("required", _require_value, replace=True)
    OmegaConf.register_new_resolver("seed_of", _seed_of, replace=True)
    OmegaConf.register_new_resolver(
        "expanduser", lambda path: str(expand_path(path, "results_dir=")), replace=True
    )


def _require_value(otherwise: str) -> NoReturn:
    raise UserError(otherwise)


def _seed_of(run: str) -> int:
    match = re.search(r"-s(\d+)-[0-9a-f]+$", run)
    if match is None:
        raise UserError(f"the name of {run} has no seed: give a run's name in full")
    return int(match[1])


def _divide(d_model: int, n_heads: int) -> int:
    is_possible = all(isinstance(value, int) and value > 0 for value in (d_model, n_heads))
    message = f"model.d_model={d_model} is not divisible by model.n_heads={n_heads}"
    require(is_possible and d_model % n_heads == 0, message)
    return d_model // n_heads


def parse_composed(composed: Any) -> Config:
    """Parse what Hydra hands to a task."""
    from hydra.core.hydra_config import HydraConfig

    register_resolvers()  # a launcher may have begun this process
    sources = HydraConfig.get().runtime.config_sources
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    search = [folder for folder in folders if folder != config_dir()]
    return parse_config(to_plain_values(composed, search), search)


def _read_preset(name: str, search: Sequence[Path]) -> dict[str, Any]:
    """Return the options that pe-bench's own file of this name sets; none if `search` has such a file."""
    file = config_dir() / "encoding" / f"{name}.yaml"
    if not file.is_file() or any((folder / "encoding" / file.name).is_file() for folder in search):
        return {}
    options = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {option: value for option, value in read_part(file).items() if option in options}


def _mark_derived(raw: dict[str, Any], values: dict[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part that names its derived options: those with a formula, and those with a preset's value.

    It also names those that differ from the preset, because their new value may be the default of the class.
    """
    modifiers, preset_modifiers = values.get("modifiers"), preset.get("modifiers") or {}
    if isinstance(modifiers, dict) and modifiers:
        parts = {
            name: _mark_derived(raw["modifiers"][name], part, preset_modifiers.get(name, {}))
            if isinstance(part, dict)
            else part
            for name, part in modifiers.items()
        }
        values = {**values, "modifiers": parts}
    for name, part in values.items():
        if name != "modifiers" and isinstance(part, dict) and "class" in part:
            of_preset = preset.get(name) or {}
            is_same = of_preset.get("class") == part["class"]
            values = {**values, name: _mark_derived(raw[name], part, of_preset if is_same else {})}
    derived = [
        name
        for name, value in raw.items()
        if name not in NOT_OPTIONS
        and (str(value).startswith("${") or (name in preset and value == preset[name]))
    ]
    chosen = [name for name in preset if name not in NOT_OPTIONS and raw.get(name) != preset[name]]
    return {**values, "derived": derived, **({"chosen": chosen} if chosen else {})}


Compose = Callable[[Sequence[str]], dict[str, Any]]  # from overrides to an encoding, unresolved


def complete_nested(
    encoding: Mapping[str, Any], compose: Compose, search: Sequence[Path], prefix: str = "encoding"
) -> dict[str, Any]:
    """Return an encoding, as it was composed, whose nested ones have all of their options.

    Raises `UserError` for a name or an option that is unknown.
    """
    return {
        option: _completed(value, compose, search, f"{prefix}.{option}") for option, value in encoding.items()
    }


def _completed(value: Any, compose: Compose, search: Sequence[Path], prefix: str) -> Any:
    if isinstance(value, str) and value.startswith("{"):
        value = yaml.safe_load(value)
    if not isinstance(value, dict) or "name" not in value:
        return value
    changes = {key: inner for key, inner in value.items() if key not in ("name", "modifiers")}
    if "class" not in value:
        name = find_name("encoding", str(value["name"]), search)
        modifiers = value.get("modifiers") or {}
        if not isinstance(modifiers, dict):
            raise UserError(f"{prefix}.modifiers must be a mapping such as {{logn: {{}}}}")
        chosen = [f"modifier=[{','.join(modifiers)}]"] if modifiers else []
        value = compose([f"encoding={name}", *chosen])
        _refuse_unknown(changes, value, prefix)
        value = {**value, **changes}
        for modifier, options in modifiers.items():
            modifier = find_name("modifier", modifier, search)
            _refuse_unknown(options or {}, value["modifiers"][modifier], f"{prefix}.modifiers.{modifier}")
            value["modifiers"][modifier] |= options or {}
    return complete_nested(value, compose, search, prefix)


def _refuse_unknown(options: Mapping[str, Any], part: Mapping[str, Any], prefix: str) -> None:
    for option in options:
        if option not in part:
            values: Any = part
            for key in reversed(prefix.split(".")):
                values = {key: values}
            raise unknown_key(f"{prefix}.{option}", values)


# Overrides before the user's own: how tests run the README's commands on shorter budgets.
OVERRIDES_VARIABLE = "PE_BENCH_OVERRIDES"


def complete_overrides(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Put the environment's overrides before a command's, and check all. Raises `UserError`."""
    overrides = [*os.environ.get(OVERRIDES_VARIABLE, "").split(), *overrides]
    check_overrides(overrides, search)
    return for_hydra(overrides, search)


def compose_config(overrides: Sequence[str], search: Sequence[Path] = ()) -> Config:
    """Return the configuration of the one job that a command's overrides ask for. Raises `UserError`."""
    overrides = complete_overrides(overrides, search)
    named = [each for text in overrides if (each := parse_override(text)).key == SEARCH_PATH]
    folders = [Path(str(name).removeprefix("file://")) for text in named for name in values_of(text)[0]]
    return parse_config(compose(overrides, search), [*search, *folders])


def is_sweep(overrides: Sequence[str]) -> bool:
    """Return whether a command's overrides ask Hydra for a sweep, as its -m does."""
    return any(
        (override.key.lower(), (override.value or "").upper()) == ("hydra.mode", "MULTIRUN")
        for override in map(parse_override, overrides)
    )


def call_hydra(
    overrides: Sequence[str], search: Sequence[Path], flags: Sequence[str], task: Callable[[Any], None]
) -> None:
    """Call Hydra with overrides and flags: it prints, or its launcher calls `task` for each job."""
    import hydra

    if sys.version_info >= (3, 14):  # which refuses Hydra 1.3's help texts, because they are not text
        argparse.ArgumentParser._check_help = lambda self, action: None  # pyright: ignore
    register_resolvers()
    main = hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")(task)
    arguments = [*overrides, *config_flags(search), *flags]  # Hydra refuses overrides on both sides of a flag
    with explain_hydra_errors(overrides, search, is_sweep="--multirun" in flags), _lent_arguments(arguments):
        main()


def config_flags(search: Sequence[Path]) -> list[str]:
    """Return the flags without which overrides would compose something else."""
    return [word for folder in search for word in ("--config-dir", str(folder))]


@contextmanager
def _lent_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Lend Hydra `sys.argv`, and have it raise its errors instead of printing them."""
    before, shown = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["pe-bench train", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if shown is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = shown
