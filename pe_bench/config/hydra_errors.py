"""Hydra's errors as one line that names the override and the way out.

The overrides are read anew to find what is wrong with them: nothing here reads the English of an error.
"""

import shlex
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.config.groups import names_in
from pe_bench.config.override import parse_override, parse_overrides
from pe_bench.config.schema import FIELD_OF_KEY, SECTIONS
from pe_bench.config.unknown_keys import LAUNCHER, find_unknown_key
from pe_bench.errors import UserError, first_line
from pe_bench.values import unknown

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
        found = cause(error) or _explain(error, overrides, search, is_sweep)
        raise (found if isinstance(found, UserError) else UserError(found)) from error


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
    wanted: Any = typing.get_type_hints(SECTIONS[section]).get(FIELD_OF_KEY.get(key, name))
    return any(typing.get_origin(kind) in (list, tuple) for kind in (wanted, *typing.get_args(wanted)))


def _explain_missing_file(error: Exception, search: Sequence[Path]) -> str:
    missing = getattr(error, "missing_cfg_file", None)
    if not missing:
        return ""
    group, _, name = str(missing).rpartition("/")
    if group == LAUNCHER and name in EXTRA_OF_LAUNCHER:
        return f"{LAUNCHER}={name} is not installed: pip install 'pe-bench[{EXTRA_OF_LAUNCHER[name]}]'"
    options = getattr(error, "options", None)
    return unknown(name, group or "configuration", options or names_in(group, search))
