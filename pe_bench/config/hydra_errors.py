"""What Hydra says of a mistake, as one line that names the argument and the way out."""

import glob
import re
import shlex
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.config.groups import names_in
from pe_bench.config.overrides import CONFIG_DIR, GROUPS, values_of
from pe_bench.config.schema import FIELD_OF_KEY, SECTIONS
from pe_bench.errors import UserError, first_line
from pe_bench.values import unknown

EXTRA_OF_LAUNCHER = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm", "ray": "ray"}


@contextmanager
def one_line(arguments: Sequence[str], known_keys: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Turn Hydra's and OmegaConf's errors into a `UserError` of one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except UserError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(cause(error) or _explain(error, arguments, known_keys)) from error


@contextmanager
def of_job(arguments: Sequence[str]) -> Iterator[None]:
    """Have a mistake in a job of a sweep say which one it is, where its text names no value of the job's."""
    try:
        yield
    except UserError as error:
        text = str(error)
        if any(argument in text or f"'{argument.partition('=')[2]}'" in text for argument in arguments):
            raise
        raise UserError(f"{text} (the job {' '.join(arguments)})") from error


def known_to_other(option: str, argument: str, other: str) -> str:
    """What to do with an option of a swept group that is for `other` and not for `argument`."""
    group, _, name = other.partition("=")
    key, _, value = option.partition("=")
    line = f"{key.removeprefix(f'{group}.')}: {value}"
    return (
        f"{option} is for {other} and not for {argument}: to sweep over both, write it into a file of your "
        f"own, FOLDER/{group}/NAME.yaml with the lines 'defaults: [{name}]' and '{line}', and say "
        f"--config-dir FOLDER and {group}=NAME for {other}"
    )


def cause(error: BaseException | None) -> str | None:
    """The text of the `UserError` behind an error of Hydra's, where there is one."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return str(error) if error else None


def _explain(error: Exception, arguments: Sequence[str], known_keys: Callable[[], Iterable[str]]) -> str:
    text = first_line(error)
    for told in (_missing_file, _not_a_name, _unknown_key, _several_values, _unreadable):
        found = told(error, text, arguments, known_keys)
        if found is not None:
            return found
    return text


Known = Callable[[], Iterable[str]]


def _missing_file(error: Exception, text: str, arguments: Sequence[str], known_keys: Known) -> str | None:
    missing = getattr(error, "missing_cfg_file", None)
    if not missing:
        return None
    group, _, name = str(missing).rpartition("/")
    if group == "hydra/launcher" and name in EXTRA_OF_LAUNCHER:
        extra = EXTRA_OF_LAUNCHER[name]
        return f"hydra/launcher={name} is not installed: pip install 'pe-bench[{extra}]'"
    options = getattr(error, "options", None)
    directories = values_of(arguments, CONFIG_DIR)
    told = unknown(name, group or "configuration", options or names_in(group, directories))
    return told if directories or not group else told + _own_file(group, name, "did you mean" in told)


def _own_file(group: str, name: str, is_close: bool) -> str:
    """How a file of the user's own is found: the one that lies here, or any, where no name is close."""
    file = f"{glob.escape(group)}/{glob.escape(name)}.yaml"
    here = [*Path().glob(file), *sorted(Path().glob(f"*/{file}"))]
    if here:
        return f"; {here[0]} is found with --config-dir {here[0].parent.parent}"
    return "" if is_close else f"; FOLDER/{group}/{name}.yaml of your own is found with --config-dir FOLDER"


def _not_a_name(error: Exception, text: str, arguments: Sequence[str], known_keys: Known) -> str | None:
    """`encoding=null`, `data=3`: a group takes the name of a file."""
    if "Config group override must be" not in text:
        return None
    for argument in arguments:
        group, _, value = argument.lstrip("+").partition("=")
        names = names_in(group, values_of(arguments, CONFIG_DIR)) if group in GROUPS else []
        if names and value not in names and not value.startswith("["):
            none = {"modifier": "; modifier=[] is none", "experiment": "; without the argument there is none"}
            return unknown(value, group, names) + none.get(group, "")
    return None


def _unknown_key(error: Exception, text: str, arguments: Sequence[str], known_keys: Known) -> str | None:
    complaints = ("Could not override", "Could not find", "not in struct")
    if not any(complaint in str(error) for complaint in complaints):
        return None
    keys = [argument.split("=", 1)[0].lstrip("+~") for argument in arguments if "=" in argument]
    wrong = [key for key in keys if f"'{key}'" in text or f"Key '{key.split('.')[-1]}'" in str(error)]
    launchers = [key for key in wrong if key.startswith("hydra.launcher.")]
    if launchers and not any(argument.startswith("hydra/launcher=") for argument in arguments):
        return (
            f"{launchers[0]} is no option of the basic launcher: name the one that it is for, such as "
            "hydra/launcher=joblib for n_jobs and hydra/launcher=submitit_slurm for nodes"
        )
    known = set(known_keys()) if wrong else set()
    dotted = [key for key in known if "." in key]
    return next(
        (unknown(key, "key", dotted if "." in key else known) for key in wrong if key not in known), None
    )


def _several_values(error: Exception, text: str, arguments: Sequence[str], known_keys: Known) -> str | None:
    ambiguous = re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text)
    if not ambiguous:
        return None
    key, value = ambiguous.groups()
    each = f"-m {key}={value} makes a run of each"
    return f"{key}={value} is several values: " + (
        f"'{key}=[{value}]' is a list, and {each}" if _takes_list(key.lstrip("+")) else each
    )


def _takes_list(key: str) -> bool:
    section, _, name = key.partition(".")
    if section not in SECTIONS:
        return key == "modifier" or (section == "encoding" and name != "")
    wanted: Any = typing.get_type_hints(SECTIONS[section]).get(FIELD_OF_KEY.get(key, name))
    return any(typing.get_origin(one) in (list, tuple) for one in (wanted, *typing.get_args(wanted)))


def _unreadable(error: Exception, text: str, arguments: Sequence[str], known_keys: Known) -> str | None:
    from hydra.errors import OverrideParseException

    if not isinstance(error, OverrideParseException):
        return None
    key, _, value = error.override.partition("=")
    quoted = shlex.quote(f'{key}="{value}"')
    return f"'{error.override}' cannot be read: say KEY=VALUE with quotes around the value, such as {quoted}"
