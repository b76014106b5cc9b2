"""The configuration of one job: Hydra composes it from a command's overrides, or starts many.

An option of an encoding may hold another encoding: `encoding.global={name: p_rope, fraction: 0.25}`. A file
names it by `name`, or by an entry `/encoding@global: p_rope` of its defaults; an override does so by a
mapping with a `name`, which replaces what was there. Whatever it leaves out is that of the file of this name.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import (
    config_dir,
    find_name,
    is_model_file,
    keys_in,
    plain_keys,
    read_choice,
    read_model,
)
from pe_bench.config.overrides import (
    CONFIG,
    Override,
    cause,
    explain_hydra_errors,
    for_hydra,
    literal,
    parse_override,
    quote,
    unknown_key,
    values_of,
)
from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import Config
from pe_bench.encodings.signatures import NOT_OPTIONS, complete
from pe_bench.errors import UserError, first_line, require

# Overrides before the user's own: how tests run the README's commands on shorter budgets.
OVERRIDES_VARIABLE = "PE_BENCH_OVERRIDES"
LAUNCH = "launch"  # the file that a launcher's numbers are composed from
CATALOGUE = "catalogue"  # a key that holds several encodings, by their names


def compose(overrides: Sequence[str], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Compose the configuration of one job as plain values, without running anything. Raises `UserError`."""
    return _compose(for_hydra(overrides, search), search)


def _compose(overrides: Sequence[str], search: Sequence[Path]) -> dict[str, Any]:
    from hydra import compose as hydra_compose

    with explain_hydra_errors(overrides, search), _hydra(search):
        return _plain_values(hydra_compose(CONFIG, [*overrides]), search)


def complete_overrides(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Put the environment's overrides before a command's, as Hydra takes them. Raises `UserError`."""
    return for_hydra([*os.environ.get(OVERRIDES_VARIABLE, "").split(), *overrides], search)


def compose_config(overrides: Sequence[str], search: Sequence[Path] = ()) -> Config:
    """Return the configuration of the one job that a command's overrides ask for. Raises `UserError`."""
    return parse_config(_compose(complete_overrides(overrides, search), search), search)


def compose_over(
    values: Mapping[str, Any], choice: Sequence[str], overrides: Sequence[str], search: Sequence[Path] = ()
) -> dict[str, Any]:
    """Compose a job's configuration with plain values of keys, such as those of a run. Raises `UserError`.

    Values come after what groups, the environment and `choice` set, and before the keys that overrides name.
    """
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf

    completed = complete_overrides([*choice, *overrides], search)
    if not values:
        return _compose(completed, search)
    named = {*chain.from_iterable(_keys_of(parse_override(text)) for text in overrides)}
    with explain_hydra_errors(completed, search), _hydra(search):
        composed = hydra_compose(CONFIG, completed)
        for key, value in values.items():
            if key not in named:
                OmegaConf.update(composed, key, literal(value), merge=False, force_add=True)
        return _plain_values(composed, search)


def _keys_of(override: Override) -> Iterator[str]:
    """Yield the keys that an override sets; `train={lr: 0.1}` sets train.lr."""
    values = values_of(override)
    if any(isinstance(value, Mapping) for value in values):
        for value in values:
            yield from keys_in(value, f"{override.key}.")
    else:
        yield override.key


def choose_encoding(name: str, modifiers: Sequence[str], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Return an encoding with all its options and modifiers, before a configuration gives them values."""
    encoding = read_choice("encoding", find_name("encoding", name, search), search)
    for modifier in modifiers:
        found = find_name("modifier", modifier, search)
        encoding.setdefault("modifiers", {})[found] = read_choice("modifier", found, search)
    return encoding


def resolve_encoding(
    encoding: Mapping[str, Any], options: Mapping[str, Any], config: Config
) -> dict[str, Any]:
    """Return a chosen encoding with the values that it has in a configuration, in place of the one there.

    options: values by keys such as `encoding.base`; an encoding as a value replaces the one of its option.
    Raises `UserError`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    register_resolvers()
    composed = OmegaConf.create({**literal(to_plain(config)), "encoding": dict(encoding)})
    OmegaConf.set_struct(composed, True)
    for key, value in options.items():
        is_encoding = isinstance(value, Mapping) and "name" in value
        try:
            OmegaConf.update(composed, key, value, merge=not is_encoding)
        except OmegaConfBaseException as error:
            raise unknown_key(key, [*plain_keys(), *keys_in(encoding, "encoding.")]) from error
    return _plain_values(composed, config.search)["encoding"]


def parse_composed(composed: Any) -> Config:
    """Parse what Hydra hands to a task."""
    from hydra.core.hydra_config import HydraConfig

    register_resolvers()  # a launcher may have begun this process
    sources = HydraConfig.get().runtime.config_sources
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    search = [folder for folder in folders if folder != config_dir()]
    return parse_config(_plain_values(composed, search), search)


def multirun(
    overrides: Sequence[str], search: Sequence[Path], task: Callable[[Any], None], folder: Path
) -> None:
    """Have Hydra's launcher call `task` for each job of a sweep, whose folder this is. Raises `UserError`."""
    # An interpolation, resolved anew in each process, would find another folder.
    in_folder = [*overrides, f"hydra.sweep.dir={quote(str(folder))}"]
    with explain_hydra_errors(in_folder, search), _hydra(search) as hydra:
        hydra.multirun(CONFIG, task, in_folder)


def call_by_number(jobs: int, launcher: Sequence[str], task: Callable[[int], None], folder: Path) -> None:
    """Have Hydra's launcher call `task` with each number below `jobs`. Raises `UserError`.

    launcher: overrides of Hydra's own keys. folder: of the sweep.
    """
    numbers = f"job={','.join(map(str, range(jobs)))}"
    overrides = [*launcher, numbers, f"hydra.sweep.dir={quote(str(folder))}"]

    def call(composed: Any) -> None:  # maybe in another process
        task(int(composed.job))

    with explain_hydra_errors(overrides), _hydra() as hydra:
        hydra.multirun(LAUNCH, call, overrides)


def compose_launcher(launcher: Sequence[str]) -> None:
    """Raise `UserError` for overrides that Hydra's launchers do not have."""
    from hydra import compose as hydra_compose

    with explain_hydra_errors(launcher), _hydra():
        hydra_compose(LAUNCH, [*launcher], return_hydra_config=True)


def print_config(overrides: Sequence[str], search: Sequence[Path]) -> None:
    """Print the keys of a job. Raises `UserError`."""
    with explain_hydra_errors(overrides, search), _hydra(search) as hydra:
        hydra.show_cfg(CONFIG, [*overrides], cfg_type="job", package=None)


@contextmanager
def _hydra(search: Sequence[Path] = ()) -> Iterator[Any]:
    """Lend a Hydra that finds the files of pe-bench and of a person's own folders; it may be inside a job."""
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    register_resolvers()
    version.setbase("1.3")
    path = create_config_search_path(str(config_dir()))
    for folder in search:
        require(folder.is_dir(), f"--config-dir {folder} is not a folder: name the one with encoding/")
        path.prepend("command-line", f"file://{folder.resolve()}", SearchPathQuery(provider="schema"))
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2("train", path)
    finally:
        GlobalHydra.instance().hydra = outer


def register_resolvers() -> None:
    """Register what reads the files of encodings, and the functions that the YAML files call."""
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    Plugins.instance()  # which registers Hydra's own sources
    SourcesRegistry.instance().types["file"] = _encoding_source()
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


@cache
def _encoding_source() -> type[Any]:
    """Return what Hydra reads a folder of YAML files with: an encoding has all options of its class."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import OmegaConf

    class EncodingSource(FileConfigSource):
        """A folder of YAML files in which `encoding/FILE.py:Class` exists wherever the file lies."""

        def is_config(self, config_path: str) -> bool:
            is_class = re.match("encoding/.*:", config_path) is not None
            return is_class or _model_file(config_path) is not None or super().is_config(config_path)

        def load_config(self, config_path: str) -> ConfigResult:
            group, _, name = config_path.partition("/")
            if group == "encoding" and ":" in name:
                part = OmegaConf.create(read_choice("encoding", name))
                return ConfigResult(self.provider, config_path, part, {"package": None})
            if (file := _model_file(config_path)) is not None:
                part = OmegaConf.create(read_model(file))
                return ConfigResult(self.provider, config_path, part, {"package": None})
            result = super().load_config(config_path)
            part: Any = OmegaConf.to_container(result.config, resolve=False)
            if group in ("encoding", "modifier") and isinstance(part, dict):
                is_named = group == "encoding" and "class" in part
                named = {"name": name.removesuffix(".yaml")} if is_named else {}
                result.config = OmegaConf.create(complete({**named, **part}, (Path(self.path),)))
            return result

    # Hydra takes no class of another name for folders, where a launcher's process begins anew.
    EncodingSource.__name__ = FileConfigSource.__name__
    return EncodingSource


def _model_file(config_path: str) -> Path | None:
    """Return the user's file that `model=my.yaml` names; None for a shipped name."""
    group, _, name = config_path.partition("/")
    return Path(name) if group == "model" and is_model_file(name) else None


def _require_value(otherwise: str) -> None:
    raise UserError(otherwise)


def _in_proportion(size: int, width: int, usual_width: int) -> int:
    """Return a size that belongs to one width for another width, rounded to a multiple of 8."""
    return size if width == usual_width else max(8, 8 * round(size * width / usual_width / 8))


RESOLVERS: dict[str, Callable[..., Any]] = {
    "quotient": lambda a, b: max(1, a // b),
    "in_proportion": _in_proportion,
    "times": lambda a, b: a * b,
    "required": _require_value,
    "expanduser": os.path.expanduser,
}


# From what Hydra composed to plain values


def _plain_values(composed: Any, search: Sequence[Path] = ()) -> dict[str, Any]:
    """Resolve to plain values; each part of the encoding names its options that were derived."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        raw: Any = OmegaConf.to_container(composed, resolve=False)
        if isinstance(raw.get("encoding"), dict):
            raw["encoding"] = _with_nested(raw["encoding"], search, "encoding")
        values: Any = OmegaConf.to_container(OmegaConf.create(raw), resolve=True)
    except OmegaConfBaseException as error:
        raise cause(error) or UserError(first_line(error)) from error
    parts = [(raw, values, "encoding")]
    parts += [(raw[CATALOGUE], values[CATALOGUE], name) for name in raw.get(CATALOGUE, ())]
    for source, target, key in parts:
        if isinstance(target.get(key), dict):
            preset = _read_preset(str(source[key].get("name")), search)
            target[key] = _mark_derived(source[key], target[key], preset)
    return {key: value for key, value in values.items() if key not in ("hydra", "modifier", "experiment")}


def _with_nested(encoding: Mapping[str, Any], search: Sequence[Path], prefix: str) -> dict[str, Any]:
    """Return an encoding whose nested ones, in its options, have all of theirs. Raises `UserError`."""
    values = dict(encoding)
    for option, value in encoding.items():
        if isinstance(value, str) and value.startswith("{"):
            values[option] = yaml.safe_load(value)
        if isinstance(part := values[option], dict) and "name" in part:
            key = f"{prefix}.{option}"
            part = part if "class" in part else _named_part(part, search, key)
            values[option] = _with_nested(part, search, key)
    return values


def _named_part(values: Mapping[str, Any], search: Sequence[Path], prefix: str) -> dict[str, Any]:
    """Return the encoding of a name with the options and modifiers that stand beside the name."""
    part = _chosen_part("encoding", str(values["name"]), search)
    modifiers = values.get("modifiers") or {}
    require(isinstance(modifiers, dict), f"{prefix}.modifiers must be a mapping such as {{logn: {{}}}}")
    for typed, options in modifiers.items():
        modifier = _chosen_part("modifier", typed, search)
        changed = _changed(modifier, options or {}, f"{prefix}.modifiers.{typed}")
        part.setdefault("modifiers", {})[find_name("modifier", typed, search)] = changed
    changes = {option: value for option, value in values.items() if option not in ("name", "modifiers")}
    return _changed(part, changes, prefix)


def _chosen_part(group: str, typed: str, search: Sequence[Path]) -> dict[str, Any]:
    return read_choice(group, find_name(group, typed, search), search)


def _changed(part: Mapping[str, Any], options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    for option in options:
        if option not in part:
            raise unknown_key(f"{prefix}.{option}", keys_in(part, f"{prefix}."))
    return {**part, **options}


def _read_preset(name: str, search: Sequence[Path]) -> dict[str, Any]:
    """Return the options that pe-bench's own file of this name sets; none if `search` has such a file."""
    file = config_dir() / "encoding" / f"{name}.yaml"
    if not file.is_file() or any((folder / "encoding" / file.name).is_file() for folder in search):
        return {}
    options = yaml.safe_load(file.read_text(encoding="utf-8"))
    completed = complete(options, (config_dir(),))
    return {option: completed[option] for option in options}


def _mark_derived(raw: dict[str, Any], values: dict[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part that names its derived options: those with a formula, and those with a preset's value.

    It also names those that differ from the preset, because their new value may be the default of the class.
    """
    modifiers = preset.get("modifiers") or {}
    if preset.get("class") != values.get("class"):
        preset = {}
    marked = dict(values)
    for name, value in values.items():
        if name == "modifiers":
            marked[name] = {
                each: _mark_derived(raw[name][each], part, modifiers.get(each) or {})
                for each, part in (value or {}).items()
            }
        elif isinstance(value, dict) and "class" in value:
            marked[name] = _mark_derived(raw[name], value, preset.get(name) or {})
    options = [name for name in raw if name not in NOT_OPTIONS]
    same = {name for name in options if name in preset and raw[name] == preset[name]}
    derived = [name for name in options if name in same or str(raw[name]).startswith("${")]
    chosen = [name for name in preset if name not in NOT_OPTIONS and raw.get(name) != preset[name]]
    return {**marked, "derived": derived, **({"chosen": chosen} if chosen else {})}
