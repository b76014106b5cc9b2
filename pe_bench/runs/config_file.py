"""A run's config.yaml, with a checksum."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import Config, DataConfig
from pe_bench.errors import UserError
from pe_bench.runs.untrusted import read_regular, unreadable
from pe_bench.runs.yaml_file import InvalidYamlError, parse_mapping
from pe_bench.system.files import write_text
from pe_bench.system.terminal import say

OLD_OPTIMIZER = "adamw"  # of runs whose version had no key for it
RETIRED_KEYS = ("train.shard",)  # of older versions; a run with any value of them has the same weights
# The first line shows that there was a last one, so that a file that was cut short is no older one.
HEAD = "# made by pe-bench; the last line is a checksum\n"
CHECKSUM = "# sha256 of what stands above: "
_IF_CHANGED = "delete its first and its last line if you changed it"


def write_config(run: Path, config: Config) -> None:
    text = HEAD + yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
    write_text(run / "config.yaml", f"{text}{CHECKSUM}{_checksum(text)}\n")


def read_config(run: Path) -> Config:
    """Return the configuration of a run. Raise `UserError` where it is damaged."""
    try:
        return parse_config(without_retired_keys(read_values(run), run))
    except PermissionError as error:
        raise UserError(unreadable(error)) from error
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{run / 'config.yaml'} is missing or damaged ({reason}): train the run again"
        ) from error


def read_values(run: Path) -> dict[str, Any]:
    """Return the plain values of a run's configuration.

    Raise `InvalidYamlError` where they are damaged, and `OSError` where there is no such file.
    """
    try:
        text = read_regular(run / "config.yaml")
    except ValueError as error:
        raise InvalidYamlError(str(error)) from error
    values = parse_mapping(text)
    _refuse_changed(text)
    if isinstance(values.get("train"), dict):
        values["train"].setdefault("optimizer", OLD_OPTIMIZER)
    return values


def is_whole(run: Path) -> bool:
    """Return whether a configuration is as it was written, which its checksum shows without reading it.

    Raise `OSError` where it cannot be read, and `ValueError` where it is no text.
    """
    written, has_checksum, checksum = read_regular(run / "config.yaml").rpartition(CHECKSUM)
    return bool(has_checksum) and checksum.strip() == _checksum(written)


def without_retired_keys(values: dict[str, Any], run: Path) -> dict[str, Any]:
    """Leave out the keys that runs of older versions may have, and warn where one of them had an effect."""
    train = values.get("train")
    if not isinstance(train, dict):
        return values
    if train.get("shard"):
        say(f"warning: {run.name} has train.shard=true, a key of older versions: its weights are whole")
    return {**values, "train": {key: train[key] for key in train if f"train.{key}" not in RETIRED_KEYS}}


def _refuse_changed(text: str) -> None:
    """Raise `InvalidYamlError` for a text that differs from its checksum; one that never had any passes."""
    written, has_checksum, checksum = text.rpartition(CHECKSUM)
    if has_checksum and checksum.strip() != _checksum(written):
        raise InvalidYamlError(f"its checksum is of something else: {_IF_CHANGED}")
    if text.startswith(HEAD) and not has_checksum:
        raise InvalidYamlError(f"its end is missing: {_IF_CHANGED}")


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def with_absolute_paths(data: DataConfig) -> DataConfig:
    """Make local paths absolute, so that the run can be scored from another folder."""
    if data.source != "files":
        return data
    paths = {name: getattr(data, name) for name in ("path", "validation_path")}
    return replace(data, **{name: str(Path(path).resolve()) for name, path in paths.items() if path})
