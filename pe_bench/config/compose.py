"""The configuration of a job: Hydra composes it from a command's overrides, and starts the jobs of a sweep.

An option of an encoding may hold another encoding: `encoding.global={name: p_rope, fraction: 0.25}`. A file
names the other encoding by `name`, or by an entry `/encoding@global: p_rope` of its defaults. An override
replaces it by a mapping with a `name`; options that are not given come from the file of this name.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import (
    GROUPS,
    check_search,
    config_dir,
    find_name,
    is_model_file,
    keys_in,
    plain_keys,
    read_choice,
    read_model,
)
from pe_bench.config.overrides import (
    ROOT_CONFIG,
    Override,
    escape_interpolations,
    explain_hydra_errors,
    for_hydra,
    parse_override,
    quote,
    unknown_key,
    user_error_behind,
    values_of,
)
from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import KEYS, Config
from pe_bench.encodings.signatures import NOT_OPTIONS, with_all_options
from pe_bench.errors import UserError, first_line, require

# The environment variable with overrides before the user's own, for tests of the README's commands.
OVERRIDES_VARIABLE = "PE_BENCH_OVERRIDES"
LAUNCH_CONFIG = "launch"  # the file of a sweep whose jobs are called by number, `job=0,1,2`
CATALOGUE_KEY = "catalogue"  # a temporary key, under which several encodings are resolved together


def compose(overrides: Sequence[str], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Compose the configuration of one job as plain values, without overrides of the environment.

    Raises `UserError` for an override that cannot be read, or whose key or file is unknown.
    """
    return _compose_completed(for_hydra(overrides, search), search)


def _compose_completed(overrides: Sequence[str], search: Sequence[Path]) -> dict[str, Any]:
    """Compose the configuration of overrides that `complete_overrides` has completed, as plain values."""
    with explain_hydra_errors(overrides, search), _hydra(search):
        return _values_of_job(_merge(overrides, search), search)


def complete_overrides(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Return the overrides of the environment and the command, in Hydra's grammar. Raises `UserError`."""
    from_environment = os.environ.get(OVERRIDES_VARIABLE, "").split()
    return for_hydra([*from_environment, *overrides], search)


def compose_config(overrides: Sequence[str], search: Sequence[Path] = ()) -> Config:
    """Return the configuration of a command's single job. Raises `UserError`."""
    completed = complete_overrides(overrides, search)
    return parse_config(_compose_completed(completed, search), search, keys_given_by(completed))


def compose_over(
    values: Mapping[str, Any], choice: Sequence[str], overrides: Sequence[str], search: Sequence[Path] = ()
) -> dict[str, Any]:
    """Compose a job's configuration with plain values by key, such as the values of a run.

    Values replace settings of groups, the environment and `choice`; `overrides` replace values. Raises
    `UserError`.
    """
    from omegaconf import OmegaConf

    completed = complete_overrides([*choice, *overrides], search)
    if not values:
        return _compose_completed(completed, search)
    named = keys_given_by(overrides)
    with explain_hydra_errors(completed, search), _hydra(search):
        composed = _merge(completed, search)
        for key, value in values.items():
            if key not in named:
                OmegaConf.update(composed, key, escape_interpolations(value), merge=False, force_add=True)
        return _values_of_job(composed, search)


def _merge(overrides: Sequence[str], search: Sequence[Path]) -> Any:
    """Return Hydra's configuration of overrides, with interpolations. Call this within `_hydra(search)`.

    Merging files takes most of Hydra's time. Shipped files are merged once for all jobs that choose them; the
    values of a job are applied as Hydra applies them.
    """
    from hydra import compose as hydra_compose
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    choices, values = _choices_and_values(overrides)
    if values is not None and not _has_file_of(choices, search):
        try:
            parsed = OverridesParser.create().parse_overrides(values)
            if not any(override.is_sweep_override() for override in parsed):
                merged = deepcopy(_merged_files(tuple(choices), tuple(search), _changes_of_files()))
                ConfigLoaderImpl._apply_overrides_to_config(parsed, merged)
                return merged
        except HydraException:
            pass  # Hydra's own composition says what is wrong
    return hydra_compose(ROOT_CONFIG, [*overrides])


def _choices_and_values(overrides: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the overrides that choose shipped files, and the overrides that set values of keys.

    The second list is None if an override does something else.
    """
    choices: list[str] = []
    values: list[str] = []
    for text in overrides:
        override = parse_override(text)
        is_value = override.section in KEYS and not re.search("[@/:]", override.key)
        if override.key in GROUPS and not re.search("[:/{]|[.]ya?ml", str(override.value)):
            choices.append(text)
        elif is_value and override.key not in GROUPS:
            values.append(text)
        else:
            return [], None
    return choices, values


def _has_file_of(choices: Sequence[str], search: Sequence[Path]) -> bool:
    """Return whether a user's folder may hold a chosen file; if so, Hydra has to compose.

    The answer is too often yes, because a file's name may be part of another name: Hydra is only slower.
    """
    named = " ".join(choices)
    for folder in search:
        for group in GROUPS:
            if any(file.stem in named for file in (folder / group).glob("*.yaml")):
                return True
    return False


@lru_cache(maxsize=64)
def _merged_files(choices: Sequence[str], search: Sequence[Path], changes: Sequence[tuple[str, int]]) -> Any:
    """Return the chosen shipped files, merged by Hydra.

    `search` (the folders of `_hydra`) and `changes` (the result of `_changes_of_files`) are only part of the
    cache's key, so that a changed file is read again.
    """
    from hydra import compose as hydra_compose

    return hydra_compose(ROOT_CONFIG, [*choices])


def _changes_of_files() -> tuple[tuple[str, int], ...]:
    """Return the path of each shipped YAML file, and when the file was changed."""
    paths = [config_dir() / f"{ROOT_CONFIG}.yaml"]
    for group in GROUPS:
        paths += (config_dir() / group).glob("*.yaml")
    return tuple((str(path), path.stat().st_mtime_ns) for path in paths)


def keys_given_by(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that overrides set, each once."""
    parsed = map(parse_override, overrides)
    return tuple(dict.fromkeys(chain.from_iterable(map(_keys_of, parsed))))


def _keys_of(override: Override) -> Iterator[str]:
    """Yield the keys that an override sets; `train={lr: 0.1}` sets train.lr."""
    values = values_of(override) if "{" in (override.value or "") else []
    if any(isinstance(value, Mapping) for value in values):
        for value in values:
            yield from keys_in(value, f"{override.key}.")
    else:
        yield override.key


def choose_encoding(name: str, modifiers: Sequence[str], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Return an encoding with all its options and modifiers; interpolations are not resolved."""
    encoding = read_choice("encoding", find_name("encoding", name, search), search)
    for modifier in modifiers:
        found = find_name("modifier", modifier, search)
        encoding.setdefault("modifiers", {})[found] = read_choice("modifier", found, search)
    return encoding


def resolve_encoding(
    encoding: Mapping[str, Any], options: Mapping[str, Any], config: Config
) -> dict[str, Any]:
    """Return an encoding with its interpolations resolved, as it would be in a configuration.

    options: values by keys such as `encoding.base`; a nested encoding as a value replaces all of the option.
    Raises `UserError`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    register_resolvers()
    composed = OmegaConf.create({**escape_interpolations(to_plain(config)), "encoding": dict(encoding)})
    OmegaConf.set_struct(composed, True)
    for key, value in options.items():
        is_encoding = isinstance(value, Mapping) and "name" in value
        try:
            OmegaConf.update(composed, key, value, merge=not is_encoding)
        except OmegaConfBaseException as error:
            raise unknown_key(key, [*plain_keys(), *keys_in(encoding, "encoding.")]) from error
    return _plain_values(composed, config.search)["encoding"]


def resolve_encodings(names: Sequence[str], config: Config) -> dict[str, dict[str, Any]]:
    """Return encodings of pe-bench by name, with interpolations resolved as in a configuration.

    This does not call Hydra, which would take 20 ms for each.
    """
    from omegaconf import OmegaConf

    register_resolvers()
    chosen = {name: choose_encoding(name, ()) for name in names}
    composed = OmegaConf.create({**escape_interpolations(to_plain(config)), CATALOGUE_KEY: chosen})
    return _plain_values(composed)[CATALOGUE_KEY]


def parse_composed(composed: Any) -> Config:
    """Parse the composed configuration that Hydra passes to the function of a job."""
    from hydra.core.hydra_config import HydraConfig

    register_resolvers()  # a launcher may have begun this process
    sources = HydraConfig.get().runtime.config_sources
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    search = [folder for folder in folders if folder != config_dir()]
    given = keys_given_by(HydraConfig.get().overrides.task)
    return parse_config(_values_of_job(composed, search), search, given)


def multirun(
    overrides: Sequence[str], search: Sequence[Path], task: Callable[[Any], None], folder: Path
) -> None:
    """Let Hydra's launcher call `task` for each job of a sweep in a folder. Raises `UserError`."""
    # Each process would resolve an interpolation to another folder.
    in_folder = [*overrides, f"hydra.sweep.dir={quote(str(folder))}"]
    with explain_hydra_errors(in_folder, search), _hydra(search) as hydra:
        hydra.multirun(ROOT_CONFIG, task, in_folder)


def call_by_number(jobs: int, launcher: Sequence[str], task: Callable[[int], None], folder: Path) -> None:
    """Let Hydra's launcher call `task` with each number below `jobs`. Raises `UserError`.

    launcher: overrides of Hydra's own keys. folder: the folder of the sweep.
    """
    numbers = f"job={','.join(map(str, range(jobs)))}"
    overrides = [*launcher, numbers, f"hydra.sweep.dir={quote(str(folder))}"]

    def call_task(composed: Any) -> None:  # maybe in another process
        task(int(composed.job))

    with explain_hydra_errors(overrides), _hydra() as hydra:
        hydra.multirun(LAUNCH_CONFIG, call_task, overrides)


def refuse_unknown_launcher(launcher: Sequence[str]) -> None:
    """Raise `UserError` for overrides that are unknown to Hydra's launchers."""
    from hydra import compose as hydra_compose

    with explain_hydra_errors(launcher), _hydra():
        hydra_compose(LAUNCH_CONFIG, [*launcher], return_hydra_config=True)


def print_config(overrides: Sequence[str], search: Sequence[Path]) -> None:
    """Print the composed configuration of a job as YAML. Raises `UserError`."""
    with explain_hydra_errors(overrides, search), _hydra(search) as hydra:
        hydra.show_cfg(ROOT_CONFIG, [*overrides], cfg_type="job", package=None)


@contextmanager
def _hydra(search: Sequence[Path] = ()) -> Iterator[Any]:
    """Provide a Hydra with the files of pe-bench and of the folders `search`, also inside a job of Hydra.

    Raises `UserError` if one of `search` is no folder, or has a file with the name of a shipped file.
    """
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    register_resolvers()
    version.setbase("1.3")
    path = create_config_search_path(str(config_dir()))
    check_search(search)
    for folder in search:
        path.prepend("command-line", f"file://{folder.resolve()}", SearchPathQuery(provider="schema"))
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2("train", path)
    finally:
        GlobalHydra.instance().hydra = outer


def register_resolvers() -> None:
    """Register with Hydra the reader of encodings' files, and the functions that interpolations call."""
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    Plugins.instance()  # registers Hydra's own sources
    SourcesRegistry.instance().types["file"] = _encoding_source()
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


@cache
def _encoding_source() -> type[Any]:
    """Return Hydra's reader for a folder of YAML files, which completes encodings with all options."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import OmegaConf

    class EncodingSource(FileConfigSource):
        """A folder of YAML files; it also provides encodings of Python files, and a user's model files."""

        def is_config(self, config_path: str) -> bool:
            is_class = re.match("encoding/.*:", config_path) is not None
            return is_class or _model_file(config_path) is not None or super().is_config(config_path)

        def load_config(self, config_path: str) -> ConfigResult:
            group, _, name = config_path.partition("/")
            if group == "encoding" and ":" in name:
                raw_part = OmegaConf.create(read_choice("encoding", name))
                return ConfigResult(self.provider, config_path, raw_part, {"package": None})
            if (file := _model_file(config_path)) is not None:
                raw_part = OmegaConf.create(read_model(file))
                return ConfigResult(self.provider, config_path, raw_part, {"package": None})
            result = super().load_config(config_path)
            raw_part: Any = OmegaConf.to_container(result.config, resolve=False)
            if group in ("encoding", "modifier") and isinstance(raw_part, dict):
                is_named = group == "encoding" and "class" in raw_part
                named = {"name": name.removesuffix(".yaml")} if is_named else {}
                completed = with_all_options({**named, **raw_part}, (Path(self.path),))
                result.config = OmegaConf.create(completed)
            return result

    # A new process of a launcher finds Hydra's reader by this name.
    EncodingSource.__name__ = FileConfigSource.__name__
    return EncodingSource


def _model_file(config_path: str) -> Path | None:
    """Return the file of `model=my.yaml`, which Hydra asks for as `model/my.yaml`; None for another path."""
    group, _, name = config_path.partition("/")
    return Path(name) if group == "model" and is_model_file(name) else None


def _refuse_missing_value(message: str) -> None:
    """Raise `UserError` with the message of `${required:MESSAGE}`, which an override has to replace."""
    raise UserError(message)


def _in_proportion(size: int, width: int, usual_width: int) -> int:
    """Scale a size from the usual width to another width, rounded to a multiple of 8."""
    if width == usual_width:
        return size
    eighths = round(size * width / usual_width / 8)
    return max(8, 8 * eighths)


def _one_if_undefined(compute: Callable[..., int]) -> Callable[..., int]:
    """Return a function that returns 1 where `compute` fails, such as for words or a division by zero.

    The check of the configuration then refuses the wrong argument by the name of its key.
    """

    def compute_or_one(*arguments: Any) -> int:
        try:
            return compute(*arguments)
        except (ArithmeticError, TypeError, ValueError):
            return 1

    return compute_or_one


RESOLVERS: dict[str, Callable[..., Any]] = {
    "quotient": _one_if_undefined(lambda a, b: max(1, a // b)),
    "in_proportion": _one_if_undefined(_in_proportion),
    "times": lambda a, b: a * b,
    "required": _refuse_missing_value,
    "expanduser": os.path.expanduser,
}


# Conversion of Hydra's configuration to plain values


def _values_of_job(composed: Any, search: Sequence[Path]) -> dict[str, Any]:
    """Return the composed configuration of a new job as plain values. Raises `UserError`.

    An empty list of lengths is refused in a new job only: in older runs it stands for the default lengths.
    """
    values = _plain_values(composed, search)
    section = values.get("eval")
    lengths = section.get("lengths") if isinstance(section, dict) else None
    way_out = "leave it out, or give lengths such as eval.lengths=[128,512]"
    require(lengths != [], f"eval.lengths is an empty list: {way_out}")
    return values


def _plain_values(composed: Any, search: Sequence[Path] = ()) -> dict[str, Any]:
    """Return a composed configuration as plain values, without interpolations. Raises `UserError`.

    Each part of the encoding gets the lists of `_mark_derived`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        raw_values: Any = OmegaConf.to_container(composed, resolve=False)
        if isinstance(raw_values.get("encoding"), dict):
            raw_values["encoding"] = _with_nested(raw_values["encoding"], search, "encoding")
        values: Any = OmegaConf.to_container(OmegaConf.create(raw_values), resolve=True)
    except OmegaConfBaseException as error:
        raise user_error_behind(error) or UserError(first_line(error)) from error
    parts = [(raw_values, values, "encoding")]
    for name in raw_values.get(CATALOGUE_KEY, ()):
        parts.append((raw_values[CATALOGUE_KEY], values[CATALOGUE_KEY], name))
    for source, target, key in parts:
        if isinstance(target.get(key), dict):
            preset = _read_preset(str(source[key].get("name")), search)
            target[key] = _mark_derived(source[key], target[key], preset)
    for key in ("hydra", "modifier", "experiment"):
        values.pop(key, None)
    return values


def _with_nested(encoding: Mapping[str, Any], search: Sequence[Path], prefix: str) -> dict[str, Any]:
    """Return an encoding whose nested encodings have all their options. Raises `UserError`.

    A nested encoding is the value of an option. prefix: the key that has `encoding`, for messages.
    """
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
    """Return the encoding named in `values`, with the other values as its options and modifiers.

    prefix: the key that has the values, for messages. Raises `UserError`.
    """
    part = _chosen_part("encoding", str(values["name"]), search)
    modifiers = values.get("modifiers") or {}
    require(isinstance(modifiers, dict), f"{prefix}.modifiers must be a mapping such as {{logn: {{}}}}")
    for typed, options in modifiers.items():
        modifier = _chosen_part("modifier", typed, search)
        changed = _with_options(modifier, options or {}, f"{prefix}.modifiers.{typed}")
        part.setdefault("modifiers", {})[find_name("modifier", typed, search)] = changed
    changes = dict(values)
    for key in ("name", "modifiers"):
        changes.pop(key, None)
    return _with_options(part, changes, prefix)


def _chosen_part(group: str, typed: str, search: Sequence[Path]) -> dict[str, Any]:
    """Return the encoding or modifier that the user calls `typed`, with all its options.

    group: encoding or modifier.
    """
    return read_choice(group, find_name(group, typed, search), search)


def _with_options(part: Mapping[str, Any], options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a part with `options` in place of its own values. Raise `UserError` for an option that it lacks.

    part: an encoding or a modifier. prefix: the key that has the part, for messages.
    """
    for option in options:
        if option not in part:
            known = keys_in(part, f"{prefix}.")
            raise unknown_key(f"{prefix}.{option}", known)
    return {**part, **options}


def _read_preset(name: str, search: Sequence[Path]) -> dict[str, Any]:
    """Return the options in pe-bench's own file of this name; empty if `search` has a file of the name."""
    file = config_dir() / "encoding" / f"{name}.yaml"
    own_files = [folder / "encoding" / file.name for folder in search]
    if not file.is_file() or any(map(Path.is_file, own_files)):
        return {}
    options = yaml.safe_load(file.read_text(encoding="utf-8"))
    completed = with_all_options(options, (config_dir(),))
    return {option: completed[option] for option in options}


def _mark_derived(raw: dict[str, Any], values: dict[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoding or a modifier with two lists of its options, `derived` and `chosen`.

    Derived options have a formula or the preset's value. Chosen options differ from the preset, even if they
    have the default of the class. raw: the values before interpolation. preset: the shipped file's options.
    """
    modifiers = preset.get("modifiers") or {}
    if preset.get("class") != values.get("class"):
        preset = {}
    marked = dict(values)
    for name, value in values.items():
        if name == "modifiers":
            marked[name] = {}
            for each, part in (value or {}).items():
                own_preset = modifiers.get(each) or {}
                marked[name][each] = _mark_derived(raw[name][each], part, own_preset)
        elif isinstance(value, dict) and "class" in value:
            marked[name] = _mark_derived(raw[name], value, preset.get(name) or {})
    derived: list[str] = []
    for name in raw:
        is_same = name in preset and raw[name] == preset[name]
        is_formula = str(raw[name]).startswith("${")
        if name not in NOT_OPTIONS and (is_same or is_formula):
            derived.append(name)
    preset_options = [name for name in preset if name not in NOT_OPTIONS]
    chosen = [name for name in preset_options if raw.get(name) != preset[name]]
    marked["derived"] = derived
    if chosen:
        marked["chosen"] = chosen
    return marked
