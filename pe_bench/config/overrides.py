"""The arguments of a `train` command, put in order and checked before Hydra sees them."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pe_bench.errors import UserError, require
from pe_bench.values import unknown

CFG, INFO, PACKAGE = ("--cfg", "-c"), ("--info", "-i"), ("--package", "-p")
RUN, SWEEP = ("--run", "-r"), ("--multirun", "-m")
CONFIG_DIR, CONFIG_NAME = ("--config-dir", "-cd"), ("--config-name", "-cn")
MODES = (RUN, SWEEP, CFG, INFO)
# Flags that take a value must stay beside it.
FLAGS_WITH_VALUE = (*CONFIG_DIR, *CONFIG_NAME, *CFG, *PACKAGE)
FLAGS = (*FLAGS_WITH_VALUE, *INFO, *RUN, *SWEEP, "--resolve", "--hydra-help")
CFG_VALUES = ("job", "hydra", "all")
INFO_VALUES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
ONE_OF_EACH = ("encoding", "model", "data", "tokenizer", "experiment")
GROUPS = (*ONE_OF_EACH, "modifier")
OPTIONS_OF_GROUP = {"encoding": "encoding.", "modifier": "encoding.modifiers."}
KEY = re.compile(r"[+~]*[A-Za-z_][\w$/@.:-]*", re.ASCII)


def order_arguments(arguments: Sequence[str]) -> list[str]:
    """Overrides first, then flags: Hydra refuses overrides on both sides of a flag."""
    overrides, flags = [], []
    waiting = iter(_apart(arguments))
    for argument in waiting:
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flags.append(argument)
        if argument in FLAGS_WITH_VALUE:
            flags += [value for value in [next(waiting, None)] if value is not None]
    flags = _with_info_value(overrides, flags)
    return overrides + flags


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse what Hydra would take, or refuse at length. `arguments` are in order."""
    overrides = overrides_in(arguments)
    _check_flags(arguments[len(overrides) :])
    for before, argument in zip(["", *overrides], overrides, strict=False):
        require(
            not before.endswith(",") or "=" in argument,
            f"'{before} {argument}': no space may stand after the comma",
        )
        _check_override(argument)
    values = dict(argument.lstrip("+").split("=", 1) for argument in overrides if "=" in argument)
    if "train.steps" in values and "train.tokens" in values:
        raise UserError("train.steps and train.tokens both say how long to train: give one of them")
    for group in GROUPS:
        if values.get(group, "").startswith("{"):
            raise UserError(f"{group}={values[group]} is no name: say {group}=NAME, and {group}.KEY=VALUE")
    for group in ONE_OF_EACH:
        if values.get(group, "").startswith("["):
            raise UserError(
                f"{group}={values[group]}: a run has one {group}; say -m {group}={values[group].strip('[]')} "
                "for a run of each, or modifier=[NAME] for what acts on top of an encoding"
            )


def is_sweep(arguments: Sequence[str]) -> bool:
    return any(
        argument in SWEEP or argument.lstrip("+").upper() == "HYDRA.MODE=MULTIRUN" for argument in arguments
    )


def overrides_in(arguments: Sequence[str]) -> list[str]:
    """Those of arguments in order: they are before the first flag."""
    flags = [place for place, argument in enumerate(arguments) if argument.startswith("-")]
    return list(arguments[: flags[0]] if flags else arguments)


def values_of(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """What stands behind one of `flags`, such as the folders behind `--config-dir`."""
    return [value for flag, value in _pairs(arguments) if flag in flags]


def _apart(arguments: Sequence[str]) -> Iterator[str]:
    """`--cfg=job` as two arguments."""
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if equals and flag in (*FLAGS_WITH_VALUE, *INFO):
            yield from (flag, value)
        else:
            yield argument


def _with_info_value(overrides: list[str], flags: list[str]) -> list[str]:
    """Hydra's `--info` may take a value, which looks like an override until it is known."""
    found = [argument for argument in overrides if argument in INFO_VALUES]
    if not found or not set(INFO) & set(flags):
        return flags
    overrides.remove(found[0])
    return [part for flag in flags for part in ([flag, found[0]] if flag in INFO else [flag])]


def _check_override(argument: str) -> None:
    key, equals, _ = argument.partition("=")
    is_readable = KEY.fullmatch(key) is not None and (equals or key.startswith("~"))
    require(bool(is_readable), f"'{argument}' cannot be read: say KEY=VALUE, such as train.lr=0.001")


def _check_flags(arguments: Sequence[str]) -> None:
    waiting = iter(arguments)
    given = []
    for argument in waiting:
        flag, equals, _ = argument.partition("=")
        if flag not in FLAGS:
            if given and given[-1] in INFO and flag in INFO_VALUES:
                continue
            raise UserError(unknown(flag, "option", FLAGS))
        require(not equals, f"{flag} takes no value, and '{argument}' gives it one")
        given.append(flag)
        if flag in FLAGS_WITH_VALUE:
            value = next(waiting, "")
            require(value != "" and not value.startswith("-"), f"{flag} needs a value after it")
            shown = ", ".join(CFG_VALUES)
            require(flag not in CFG or value in CFG_VALUES, f"{flag} shows one of {shown}, not '{value}'")
    _check_modes(given)


def _check_modes(flags: Sequence[str]) -> None:
    chosen = [flag for flag in flags if any(flag in mode for mode in MODES)]
    modes = {mode for mode in MODES if set(mode) & set(chosen)}
    require(len(modes) <= 1, f"{' and '.join(chosen)} exclude each other: give one of them")
    for flag in ("--resolve", *PACKAGE):
        require(flag not in flags or CFG in modes, f"{flag} goes with --cfg job")


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    return pairwise([*arguments, ""])
