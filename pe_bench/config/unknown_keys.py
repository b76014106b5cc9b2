"""The answer to an override whose key is unknown."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_bench.config.groups import GROUPS, SEARCH_PATH, config_dir
from pe_bench.config.override import Override, quote
from pe_bench.errors import UserError
from pe_bench.values import close_to, unknown

CONFIG = "train"  # the file that every configuration is composed from
LAUNCHER = "hydra/launcher"
NOT_OPTIONS = ("name", "class", "defaults", "derived", "modifiers")  # keys of an encoding
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
    known = [*_flatten(values), "modifier", "experiment"]
    section, _, name = key.rpartition(".")
    part = _part_at(values, section)
    if part is not None:
        return UserError(_unknown_option(key, part), key)
    other_name = close_to(name, KEYS_BY_OTHER_NAMES, 0.9)
    if other_name and not close_to(key, known, 0.9):
        meant = KEYS_BY_OTHER_NAMES[other_name[0]]
        return UserError(f"unknown key '{key}': did you mean '{meant}'?", key)
    dotted = [other for other in known if "." in other]
    return UserError(unknown(key, "key", dotted if "." in key else known), key)


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
    options = ", ".join(f"{section}.{known}" for known in options_of(part))
    return f"unknown key '{key}': {name} has {options or 'no options'}"


def options_of(part: Mapping[str, Any]) -> list[str]:
    """Return the options of a composed encoding or modifier, without those that the model decides."""
    return [
        key for key, value in part.items() if key not in NOT_OPTIONS and not str(value).startswith("${model.")
    ]


def find_unknown_key(overrides: Sequence[Override], search: Sequence[Path]) -> UserError | None:
    """Return the error for the first override whose key Hydra does not find; None where it finds all."""
    values = _compose_unresolved(overrides, search)
    known = set(_flatten(values))
    for override in overrides:
        key = override.key
        if override.value is None or override.prefix in ("+", "++") or "/" in key or "@" in key:
            continue
        if key in known or key in GROUPS:
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
        found = composed(chosen)
    except (HydraException, ValueError):
        found = composed([])
    values: Any = OmegaConf.to_container(found, resolve=False)
    return {str(key): value for key, value in values.items()}


def _defines_keys(override: Override) -> bool:
    chooses = override.key in (*GROUPS, LAUNCHER) and "," not in (override.value or "")
    return chooses or override.key == SEARCH_PATH or override.prefix == "+"


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
