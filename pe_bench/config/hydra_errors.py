"""Hydra's errors as one line that names the override and the way out.

The overrides are read anew to find what is wrong with them: nothing here reads the English of an error.
"""

import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.config.groups import GROUPS, SEARCH_PATH, config_dir, names_in
from pe_bench.config.overrides import Override, parse_override, parse_overrides, quote
from pe_bench.config.schema import FIELD_OF_KEY, SECTIONS
from pe_bench.errors import UserError, first_line
from pe_bench.values import close_to, unknown

CONFIG = "train"  # the file that every configuration is composed from
LAUNCHER = "hydra/launcher"
NOT_OPTIONS = ("name", "class", "defaults", "derived", "chosen", "modifiers")  # keys of an encoding
# What other programs call a key.
KEYS_BY_OTHER_NAMES = {
    "dtype": "precision",
    "batch_size": "train.batch_tokens",
    "learning_rate": "train.lr",
    "epochs": "train.steps",
    "max_steps": "train.steps",
    "seq_len": "train.length",
    "context_length": "train.length",
    "dim": "model.d_model",
    "hidden_size": "model.d_model",
    "layers": "model.n_layers",
    "heads": "model.n_heads",
    "gpu": "device",
    "output_dir": "results_dir",
}


def search_override(search: Sequence[Path]) -> list[str]:
    """Return the override that lets Hydra find files in a person's own folders, or none without folders."""
    files = [f"file://{folder.resolve()}" for folder in search]
    return [f"{SEARCH_PATH}={quote(files)}"] if files else []


def unknown_key(key: str, values: Mapping[str, Any]) -> UserError:
    """Return the error for a key that is none of `values`, a configuration as it was composed."""
    keys = [*_flatten(values), "modifier", "experiment"]
    section, _, name = key.rpartition(".")
    part = _part_at(values, section)
    if part is not None:
        return UserError(_unknown_option(key, part), key)
    other_name = close_to(name, KEYS_BY_OTHER_NAMES, 0.9)
    if other_name and not close_to(key, keys, 0.9):
        meant = KEYS_BY_OTHER_NAMES[other_name[0]]
        return UserError(f"unknown key '{key}': did you mean '{meant}'?", key)
    dotted = [other for other in keys if "." in other]
    return UserError(unknown(key, "key", dotted if "." in key else keys), key)


def _part_at(values: Mapping[str, Any], section: str) -> Mapping[str, Any] | None:
    """Return the encoding or the modifier whose options have keys that begin with `section`."""
    group, *inner = section.split(".")
    part = values.get("encoding")
    for key in inner if group == "encoding" else [""]:
        part = part.get(key) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) and "class" in part else None


def _unknown_option(key: str, part: Mapping[str, Any]) -> str:
    section, _, option = key.rpartition(".")
    close = close_to(option, options_of(part)) or close_to(option, part)
    if close:
        return f"unknown key '{key}': did you mean '{section}.{close[0]}'?"
    name = part.get("name", section.rpartition(".")[2])
    options = ", ".join(f"{section}.{name}" for name in options_of(part))
    return f"unknown key '{key}': {name} has {options or 'no options'}"


def options_of(part: Mapping[str, Any]) -> list[str]:
    """Return the options of a composed encoding or modifier, without those that the model decides."""
    return [
        key for key, value in part.items() if key not in NOT_OPTIONS and not str(value).startswith("${model.")
    ]


def find_unknown_key(overrides: Sequence[Override], search: Sequence[Path]) -> UserError | None:
    """Return the error for the first override whose key Hydra does not find; None where it finds all."""
    values = _compose_unresolved(overrides, search)
    keys = set(_flatten(values))
    for override in overrides:
        key = override.key
        if override.value is None or override.prefix in ("+", "++") or "/" in key or "@" in key:
            continue
        if key in keys or key in GROUPS:
            continue
        if key.startswith("hydra.launcher.") and not any(other.key == LAUNCHER for other in overrides):
            return UserError(
                f"{key} is not an option of the basic launcher: name the launcher it belongs to, such as "
                f"{LAUNCHER}=joblib for n_jobs and {LAUNCHER}=submitit_slurm for nodes"
            )
        own = values if key.startswith("hydra.") else {k: v for k, v in values.items() if k != "hydra"}
        return unknown_key(key, own)
    return None


def _compose_unresolved(overrides: Sequence[Override], search: Sequence[Path]) -> dict[str, Any]:
    """Compose the configuration with the groups that `overrides` choose and the keys that they add."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    def composed(chosen: Sequence[str]) -> Any:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            return compose(CONFIG, [*chosen, *search_override(search)], return_hydra_config=True)

    chosen = [str(override) for override in overrides if _defines_keys(override)]
    try:
        composition = composed(chosen)
    except (HydraException, ValueError):
        composition = composed([])
    values: Any = OmegaConf.to_container(composition, resolve=False)
    return {str(key): value for key, value in values.items()}


def _defines_keys(override: Override) -> bool:
    chooses = override.key in (*GROUPS, LAUNCHER) and "," not in (override.value or "")
    return chooses or override.key == SEARCH_PATH or override.prefix == "+"


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")


EXTRA_OF_LAUNCHER = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm", "ray": "ray"}


@contextmanager
def explain_hydra_errors(
    overrides: Sequence[str], search: Sequence[Path] = (), is_sweep: bool = False
) -> Iterator[None]:
    """Turn Hydra's and OmegaConf's errors into a `UserError` of one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except UserError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        answer = cause(error) or _explain(error, overrides, search, is_sweep)
        raise (answer if isinstance(answer, UserError) else UserError(answer)) from error


@contextmanager
def name_job_in_error(overrides: Sequence[str]) -> Iterator[None]:
    """Name the job of a sweep in its error, unless the error is about one key, which it names."""
    try:
        yield
    except UserError as error:
        if error.key:
            raise
        raise UserError(f"{error} (the job {' '.join(overrides)})") from error


def cause(error: BaseException | None) -> UserError | None:
    """Return the `UserError` that an error of Hydra's was raised from, where there is one."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error


def _explain(
    error: Exception, overrides: Sequence[str], search: Sequence[Path], is_sweep: bool
) -> UserError | str:
    unreadable = _explain_unreadable(error)
    if unreadable:
        return unreadable
    several = "" if is_sweep else _explain_several_values(overrides)
    missing = _explain_missing_file(error, search)
    return several or missing or find_unknown_key(parse_overrides(overrides), search) or first_line(error)


def _explain_unreadable(error: Exception) -> str:
    from hydra.errors import OverrideParseException

    if not isinstance(error, OverrideParseException):
        return ""
    override = parse_override(error.override)
    quoted = shlex.quote(f'{override.prefix}{override.key}="{override.value}"')
    return f"'{error.override}' cannot be read: say KEY=VALUE with quotes around the value, such as {quoted}"


def _explain_several_values(overrides: Sequence[str]) -> str:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for text, parsed in zip(
        overrides, OverridesParser.create().parse_overrides(list(overrides)), strict=True
    ):
        if parsed.is_sweep_override():
            key, value = parse_override(text).key, parse_override(text).value
            runs = f"-m {text} makes a run for each"
            may_be_list = takes_list(key) or key == "modifier" or key.startswith("encoding.")
            is_list = f"'{key}=[{value}]' is a list, and " if may_be_list else ""
            return f"{text} is several values: {is_list}{runs}"
    return ""


def takes_list(key: str) -> bool:
    """Whether a key of a section takes a list of values."""
    section, _, name = key.partition(".")
    if section not in SECTIONS:
        return False
    hint: Any = typing.get_type_hints(SECTIONS[section]).get(FIELD_OF_KEY.get(key, name))
    return any(typing.get_origin(kind) in (list, tuple) for kind in (hint, *typing.get_args(hint)))


def _explain_missing_file(error: Exception, search: Sequence[Path]) -> str:
    missing = getattr(error, "missing_cfg_file", None)
    if not missing:
        return ""
    group, _, name = str(missing).rpartition("/")
    if group == LAUNCHER and name in EXTRA_OF_LAUNCHER:
        return f"{LAUNCHER}={name} is not installed: pip install 'pe-bench[{EXTRA_OF_LAUNCHER[name]}]'"
    options = getattr(error, "options", None)
    return unknown(name, group or "configuration", options or names_in(group, search))
