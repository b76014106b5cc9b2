"""Hands a command's words to Hydra, and turns what Hydra says of a mistake into one line."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.config import Config, config_dir, parse_config, unknown
from pe_bench.errors import UserError, first_line

# Hydra's flags; those that take a value must stay beside it.
FLAGS_WITH_VALUE = (
    "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--cfg", "-c", "--package", "-p",
    "--experimental-rerun",
)  # fmt: skip
FLAGS = (
    *FLAGS_WITH_VALUE, "--hydra-help", "--resolve", "--run", "-r", "--multirun", "-m", "--info", "-i",
    "--shell-completion", "-sc",
)  # fmt: skip
INFO_VALUES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
OPTIONS_OF_GROUP = {"encoding": "encoding.", "modifier": "encoding.modifiers."}
ONE_OF_EACH = ("encoding", "model", "data", "tokenizer", "experiment")
# Words put before the user's own: how tests run the README's commands on shorter budgets.
WORDS_VARIABLE = "PE_BENCH_WORDS"

Job = Callable[[Config, Sequence[Path]], Any]


def run_job(words: Sequence[str], job: Job) -> list[Exception]:
    """Compose the configuration of each job that `words` ask for, and call `job` with it.

    Returns what the jobs of a sweep raised; a single job raises. `UserError` for words that
    Hydra cannot use, before any job runs.
    """
    words = order_words([*os.environ.get(WORDS_VARIABLE, "").split(), *words])
    _check_words(words)
    sweep = any(word in ("-m", "--multirun") for word in words)
    failures: list[Exception] = []

    def task(composed: Any) -> None:
        # Kept, not raised: Hydra would print a report of its own and stop at a sweep's first.
        try:
            job(*_parse(composed))
        except Exception as error:
            failures.append(error)
            if sweep:
                print(f"error: {_job_words()}: {first_line(error)}", file=sys.stderr, flush=True)

    if sweep:
        words = _with_swept_options(words)
        _check_every_value(words)
    _call_hydra(words, task)
    if failures and not sweep:
        raise failures[0]
    return failures


def order_words(words: Sequence[str]) -> list[str]:
    """Overrides first, then flags: Hydra refuses overrides on both sides of a flag."""
    overrides, flags = [], []
    waiting = iter(words)
    for word in waiting:
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flags.append(word)
        if word in FLAGS_WITH_VALUE:
            flags += [value for value in [next(waiting, None)] if value is not None]
    flags = _with_info_value(overrides, flags)
    return overrides + flags


def _with_info_value(overrides: list[str], flags: list[str]) -> list[str]:
    """Hydra's `--info` may take a value, which looks like an override until it is known."""
    found = [word for word in overrides if word in INFO_VALUES]
    if not found or not {"--info", "-i"} & set(flags):
        return flags
    overrides.remove(found[0])
    return [part for flag in flags for part in ([flag, found[0]] if flag in ("--info", "-i") else [flag])]


def compose(overrides: Sequence[str], directories: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration of one job as plain values, without running anything."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register_resolvers()
    searched = [f"hydra.searchpath=[{','.join('file://' + str(Path(d).resolve()) for d in directories)}]"]
    with _guarded(overrides), initialize_config_dir(str(config_dir()), version_base="1.3"):
        return to_plain_values(hydra_compose("train", [*overrides, *(searched if directories else [])]))


def to_plain_values(composed: Any) -> dict[str, Any]:
    """Plain, resolved values; each part of the encoding names its options that were derived."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        raw = OmegaConf.to_container(composed, resolve=False)
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(_cause(error) or first_line(error)) from error
    assert isinstance(raw, dict)
    assert isinstance(values, dict)
    plain = {
        str(key): value for key, value in values.items() if key not in ("hydra", "modifier", "experiment")
    }
    if isinstance(plain.get("encoding"), dict):
        plain["encoding"] = _mark_derived(raw["encoding"], plain["encoding"])
    return plain


def register_resolvers() -> None:
    """The sums that the YAML files do."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("times", lambda a, b: a * b, replace=True)
    OmegaConf.register_new_resolver("process_id", os.getpid, replace=True)


def _divide(d_model: int, n_heads: int) -> int:
    if not all(isinstance(value, int) and value > 0 for value in (d_model, n_heads)):
        raise UserError(f"model.d_model={d_model} and model.n_heads={n_heads} must be positive whole numbers")
    if d_model % n_heads:
        near = max(n_heads, round(d_model / n_heads) * n_heads)
        raise UserError(
            f"model.d_model={d_model} is not divisible by model.n_heads={n_heads}: try model.d_model={near}"
        )
    return d_model // n_heads


def _parse(composed: Any) -> tuple[Config, list[Path]]:
    from hydra.core.hydra_config import HydraConfig

    sources = HydraConfig.get().runtime.config_sources
    search = [Path(source.path) for source in sources if source.schema == "file"]
    return parse_config(to_plain_values(composed)), [path for path in search if path != config_dir()]


def _mark_derived(raw: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    modifiers = {
        name: _mark_derived(raw["modifiers"][name], part)
        for name, part in (values.get("modifiers") or {}).items()
    }
    derived = [name for name, value in raw.items() if isinstance(value, str) and value.startswith("${")]
    return {**values, "derived": derived, **({"modifiers": modifiers} if modifiers else {})}


def _call_hydra(words: Sequence[str], task: Callable[[Any], None]) -> None:
    import hydra

    _mend_argparse()
    register_resolvers()
    main = hydra.main(config_path=str(config_dir()), config_name="train", version_base="1.3")(task)
    with _guarded(words), _lent_arguments(words):
        main()


@contextmanager
def _lent_arguments(words: Sequence[str]) -> Iterator[None]:
    """Hydra reads `sys.argv`, and shows its own errors unless it is told to raise them."""
    before, shown = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["pe-bench train", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if shown is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = shown


@contextmanager
def _guarded(words: Sequence[str]) -> Iterator[None]:
    """Turn Hydra's and OmegaConf's errors into a `UserError` of one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_cause(error) or _explain(error, words)) from error


def _cause(error: BaseException | None) -> str | None:
    """The text of the `UserError` behind an error of Hydra's, where there is one."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return str(error) if error else None


def _explain(error: Exception, words: Sequence[str]) -> str:
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        folders = [config_dir(), *map(Path, _directories(words))]
        known = {path.stem for folder in folders for path in (folder / group).glob("*.yaml")}
        return unknown(name, group or "configuration", error.options or known)
    text = first_line(error)
    keys = [word.split("=", 1)[0].lstrip("+~") for word in words if "=" in word]
    wrong = next(
        (key for key in keys if f"'{key}'" in text or f"Key '{key.split('.')[-1]}'" in str(error)), None
    )
    if wrong is not None and (
        "Could not override" in text or "Could not find" in text or "not in struct" in str(error)
    ):
        return unknown(wrong, "key", _known_keys(words))
    ambiguous = re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text)
    if ambiguous:
        key, value = ambiguous.groups()
        return f"{key}={value} is several values: '{key}=[{value}]' is a list, and -m sweeps over them"
    if "parsing override" in text:
        return f"{text}: say KEY=VALUE, with quotes around what the shell would change"
    return text


def _known_keys(words: Sequence[str]) -> list[str]:
    """Every key of the configuration, with the groups and the options of the encoding chosen."""
    chosen = [word for word in words if re.match(r"(encoding|modifier|model|data|tokenizer)=[^,]*$", word)]
    try:
        values = compose(chosen, _directories(words))
    except UserError:
        values = compose([])
    return [
        *_flatten(values),
        "modifier",
        "experiment",
        *(group for group in values if isinstance(values[group], dict)),
    ]


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")


def _directories(words: Sequence[str]) -> list[str]:
    pairs = list(zip(words, [*words[1:], ""], strict=True))
    split = [word.split("=", 1)[1] for word in words if word.startswith("--config-dir=")]
    return split + [value for flag, value in pairs if flag in ("--config-dir", "-cd")]


def _check_every_value(words: Sequence[str]) -> None:
    """Compose a sweep's values one by one, so that a mistake in the last is told before the first runs."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = [word for word in order_words(words) if "=" in word and not word.startswith("-")]
    with _guarded(words):
        parsed = OverridesParser.create().parse_overrides(overrides)
    plain = [
        word for word, override in zip(overrides, parsed, strict=True) if not override.is_sweep_override()
    ]
    swept = [override for override in parsed if override.is_choice_sweep()]
    firsts = [[f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()] for o in swept]
    for number, values in enumerate(firsts):
        others = [options[0] for place, options in enumerate(firsts) if place != number]
        for value in values:
            parse_config(compose([*plain, *others, value], _directories(words)))
    if not firsts:
        parse_config(compose(plain, _directories(words)))


def _with_swept_options(words: Sequence[str]) -> list[str]:
    """Options of a group that is swept, as sweeps of one value.

    Hydra composes a sweep without what it sweeps over before it composes the jobs, and would
    refuse `encoding.n_buckets=8` of `encoding=t5,t5_wide` for not being an option of the default.
    """
    swept = [
        word.split("=")[0] for word in words if re.match(r"(encoding|modifier)=(?!\[[^]]*\]$).*[,(]", word)
    ]
    options = tuple(OPTIONS_OF_GROUP[group] for group in swept)

    def adapt(word: str) -> str:
        key, equals, value = word.partition("=")
        choice = equals and key.lstrip("+").startswith(options) and not re.search(r"[,(]", value)
        return f"{key}=choice({value})" if choice else word

    return [adapt(word) for word in words] if options else list(words)


def _check_words(words: Sequence[str]) -> None:
    """Refuse what Hydra would take, or refuse at length."""
    values = dict(
        word.lstrip("+").split("=", 1) for word in words if "=" in word and not word.startswith("-")
    )
    if "train.steps" in values and "train.tokens" in values:
        raise UserError("train.steps and train.tokens both say how long to train: give one of them")
    for group in ONE_OF_EACH:
        if values.get(group, "").startswith("["):
            raise UserError(
                f"{group}={values[group]}: a run has one {group}; say -m {group}={values[group].strip('[]')} "
                "for a run of each, or modifier=[NAME] for what acts on top of an encoding"
            )
    flags = {word.split("=")[0]: word for word in words if word.startswith("-")}
    for flag in flags:
        if flag not in FLAGS and not flag.removeprefix("-").isdecimal():
            raise UserError(unknown(flag, "option", FLAGS))
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        if flag in FLAGS_WITH_VALUE and not value:
            raise UserError(f"{flag} needs a value after it")
        if flag in ("--cfg", "-c") and value not in ("job", "hydra", "all"):
            raise UserError(f"{flag} shows one of job, hydra, all, not '{value}'")


def _job_words() -> str:
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.get().job.override_dirname or "the job"


def _mend_argparse() -> None:
    """Python 3.14 checks every help text when it is added, and Hydra 1.3's are not text."""
    if sys.version_info >= (3, 14):
        argparse.ArgumentParser._check_help = lambda self, action: None  # pyright: ignore
