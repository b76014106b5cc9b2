"""Hands a command's arguments to Hydra, which composes the configuration of each job."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pe_bench.config.groups import config_dir, without_aliases
from pe_bench.config.hydra_errors import cause, one_line
from pe_bench.config.overrides import CONFIG_DIR, GROUPS, values_of
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.errors import UserError, first_line

CONFIG = "train"


def compose(overrides: Sequence[str], directories: Sequence[str] = (), name: str = CONFIG) -> dict[str, Any]:
    """The configuration of one job as plain values, without running anything."""
    overrides = without_aliases(overrides, directories)
    arguments = [*overrides, *(argument for path in directories for argument in ("--config-dir", path))]
    with one_line(arguments, lambda: known_keys(arguments)):
        return _compose(overrides, directories, name)


def _compose(overrides: Sequence[str], directories: Sequence[str], name: str) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register_resolvers()
    searched = [f"hydra.searchpath=[{','.join(map(_quoted_path, directories))}]"] if directories else []
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return to_plain_values(hydra_compose(name, [*overrides, *searched]))


def _quoted_path(directory: str) -> str:
    """For Hydra's grammar, in which brackets, commas and most letters mean something."""
    path = str(Path(directory).resolve()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"file://{path}"'


def to_plain_values(composed: Any) -> dict[str, Any]:
    """Plain, resolved values; each part of the encoding names its options that were derived."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        raw = OmegaConf.to_container(composed, resolve=False)
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(cause(error) or first_line(error)) from error
    assert isinstance(raw, dict)
    assert isinstance(values, dict)
    plain = {
        str(key): value for key, value in values.items() if key not in ("hydra", "modifier", "experiment")
    }
    if isinstance(plain.get("encoding"), dict):
        plain["encoding"] = _mark_derived(raw["encoding"], plain["encoding"])
    return plain


def register_resolvers() -> None:
    """What the YAML files compute."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("quotient", lambda a, b: max(1, a // b), replace=True)
    OmegaConf.register_new_resolver("times", lambda a, b: a * b, replace=True)
    OmegaConf.register_new_resolver("required", _require_value, replace=True)
    OmegaConf.register_new_resolver("expanduser", lambda path: os.path.expanduser(str(path)), replace=True)


def _require_value(otherwise: str) -> NoReturn:
    raise UserError(otherwise)


def _divide(d_model: int, n_heads: int) -> int:
    if not all(isinstance(value, int) and value > 0 for value in (d_model, n_heads)):
        raise UserError(f"model.d_model={d_model} and model.n_heads={n_heads} must be positive whole numbers")
    if d_model % n_heads:
        near = max(n_heads, round(d_model / n_heads) * n_heads)
        raise UserError(
            f"model.d_model={d_model} is not divisible by model.n_heads={n_heads}: try model.d_model={near}"
        )
    return d_model // n_heads


def parse_composed(composed: Any) -> tuple[Config, list[Path]]:
    """What Hydra hands to a task, and the folders of configurations that the command named."""
    from hydra.core.hydra_config import HydraConfig

    register_resolvers()  # a launcher may have begun this process
    sources = HydraConfig.get().runtime.config_sources
    search = [Path(source.path) for source in sources if source.schema == "file"]
    return parse_config(to_plain_values(composed)), [path for path in search if path != config_dir()]


def _mark_derived(raw: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    modifiers = values.get("modifiers")
    if isinstance(modifiers, dict) and modifiers:
        parts = {
            name: _mark_derived(raw["modifiers"][name], part) if isinstance(part, dict) else part
            for name, part in modifiers.items()
        }
        values = {**values, "modifiers": parts}
    derived = [name for name, value in raw.items() if isinstance(value, str) and value.startswith("${")]
    return {**values, "derived": derived}


def known_keys(arguments: Sequence[str]) -> list[str]:
    """Every key of the configuration, with the groups and the options of encoding and launcher chosen."""
    from hydra.errors import HydraException

    chosen = [
        argument for argument in arguments if argument.partition("=")[0] in GROUPS and "," not in argument
    ]
    try:
        values = _compose(chosen, values_of(arguments, CONFIG_DIR), CONFIG)
    except (HydraException, ValueError):
        values = compose([])
    return [*_flatten(values), *_launcher_keys(arguments), "modifier", "experiment"]


def _launcher_keys(arguments: Sequence[str]) -> Iterator[str]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    chosen = [argument for argument in arguments if argument.startswith("hydra/launcher=")]
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            launcher = hydra_compose(CONFIG, chosen, return_hydra_config=True).hydra.launcher
    except HydraException:  # a launcher's file of the user's own
        return
    values: Any = OmegaConf.to_container(launcher, resolve=False)
    yield from (key for key in _flatten(values, "hydra.launcher.") if not key.endswith("_"))


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
