"""From a run's resolved configuration back to the overrides of a command that repeats it.

The overrides name the groups, and then whatever differs from what those hold. They compose to the same
identity, and so to the same run: one of a sweep, or one whose command was not kept, can be made again.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import config_dir
from pe_bench.config.overrides import parse_overrides, quote
from pe_bench.config.schema import EvalConfig
from pe_bench.encodings.signatures import read_part
from pe_bench.encodings.source import digest
from pe_bench.errors import UserError
from pe_bench.runs.commands import lies_in
from pe_bench.runs.config_file import RETIRED_KEYS
from pe_bench.runs.rows import Row

# The key of each group that says which of its files was chosen.
NAME_IN_GROUP = {"model": "name", "data": "name", "tokenizer": "kind"}
LENGTHS_FOLLOW = ("lengths", "protocol")  # of eval, what its lengths follow from
NOT_OPTIONS = ("code_sha256", "derived", "modifiers")
CLASSES = ("encoding/", "modifier/")  # groups of files that name one
GROUP_FILE = re.compile(r"\w+/\w+", re.ASCII)  # a run's configuration may be a stranger's, and name any path
INTERPOLATION = "${"


class Repeater:
    """A writer of overrides that repeat runs; the groups that runs share are composed once.

    untrusted: folders of results, which may be a stranger's: no command takes code from them.
    """

    def __init__(self, untrusted: Iterable[Path] = ()) -> None:
        self._untrusted = set(untrusted)
        self._file = cache(_read_group_file)
        self._composed = cache(_compose)

    def overrides(self, config: Mapping[str, Any], precision: str) -> list[str]:
        """Return the overrides after `pe-bench train` for a resolved configuration and precision.

        Where results and caches lie and what machine is used stay open. Raises `UserError` for a
        configuration that this version cannot express, and for code from outside that is not here.
        """
        groups = [*self._encoding_overrides(config["encoding"]), f"seed={config.get('seed', 0)}"]
        return [*groups, f"precision={precision}", *self._section_overrides(config)]

    def requirements(self, config: Mapping[str, Any]) -> list[str]:
        """List what the command needs besides pe-bench: custom encodings, another run's weights."""
        encoding = config["encoding"]
        modifiers = encoding.get("modifiers") or {}
        files = [f"encoding/{encoding['name']}", *(f"modifier/{name}" for name in modifiers)]
        if str(encoding["class"]).endswith(f".py:{encoding['name']}"):
            files = files[1:]
        own = [f"{file}.yaml in a folder that --config-dir names" for file in files if not self._file(file)]
        parts = [encoding, *modifiers.values()]
        hashes = [
            f"{part['class']} (sha256 {part['code_sha256']})" for part in parts if "code_sha256" in part
        ]
        source = config.get("train", {}).get("from")
        return [*own, *hashes, *([f"the run {source}, whose weights it starts from"] if source else [])]

    def _encoding_overrides(self, encoding: Mapping[str, Any]) -> list[str]:
        name, modifiers = encoding["name"], encoding.get("modifiers") or {}
        if self._file(f"encoding/{name}") is None and str(encoding["class"]).endswith(f".py:{name}"):
            self._require_code_here(encoding["class"], encoding.get("code_sha256"))
            overrides = [f"encoding={encoding['class']}"]
        else:
            overrides = [f"encoding={quote(name)}"]
        overrides += [f"modifier=[{','.join(map(quote, modifiers))}]"] if modifiers else []
        parts = {"encoding": (f"encoding/{name}", encoding)}
        parts |= {f"encoding.modifiers.{key}": (f"modifier/{key}", part) for key, part in modifiers.items()}
        for key, (file, part) in parts.items():
            for prefix, name, value in self._differing(part, file):
                overrides.append(f"{prefix}{key}.{name}={quote(value)}")
            for name, value in _nested_in(part).items():
                overrides.append(f"{key}.{name}={quote(self._nested(value))}")
        return overrides

    def _nested(self, encoding: Mapping[str, Any]) -> dict[str, Any]:
        """Return the shortest mapping that stands for an encoding that an option of another holds."""
        file = f"encoding/{encoding['name']}"
        values = {name: value for _, name, value in self._differing(encoding, file)}
        values |= {name: self._nested(value) for name, value in _nested_in(encoding).items()}
        modifiers = {
            name: {option: value for _, option, value in self._differing(part, f"modifier/{name}")}
            for name, part in (encoding.get("modifiers") or {}).items()
        }
        return {"name": encoding["name"], **values, **({"modifiers": modifiers} if modifiers else {})}

    def _differing(self, part: Mapping[str, Any], file: str) -> Iterator[tuple[str, str, Any]]:
        """Yield options that differ from the shipped file, with a prefix; without a file, all not derived."""
        default, derived = self._file(file), part.get("derived") or []
        for name, value in part.items():
            if name in (*NOT_OPTIONS, *_nested_in(part)):
                continue
            if default is None:
                if name not in ("name", "class", *derived):
                    yield "", name, value
            elif name not in default:
                yield "+", name, value
            elif not (name in derived if _is_derived(default[name]) else default[name] == value):
                if name == "class":
                    self._require_code_here(value, part.get("code_sha256"))
                yield "", name, value

    def _require_code_here(self, specification: str, sha256: str | None) -> None:
        """Raise `UserError` unless a class is pe-bench's own or in a file of the user's with this hash."""
        if specification.startswith("pe_bench.encodings."):
            return
        path = Path(specification.rpartition(":")[0]).resolve()
        is_here = path.suffix == ".py" and path.is_file() and not lies_in(path, self._untrusted)
        if not is_here or digest(path) != sha256:
            raise UserError(
                f"the code of its encoding, {specification} with hash {sha256}, is not here, and none is "
                "taken from a folder of results: name a file that you trust with encoding.class=FILE.py:CLASS"
            )

    def _section_overrides(self, config: Mapping[str, Any]) -> list[str]:
        """Group by group: their files, options that the files give, and then what follows from neither."""
        task = self._task_overrides(config.get("task"))
        overrides = [*task]
        for group, key in NAME_IN_GROUP.items():
            values = config.get(group, {})
            default = self._file(f"{group}/{values.get(key)}") or {}
            literal = {name: value for name, value in default.items() if not _is_derived(value)}
            overrides += [f"{group}={quote(values[key])}"] if default else []
            overrides += [
                f"{group}.{name}={quote(value)}"
                for name, value in values.items()
                if name in literal and literal[name] != value
            ]
        composed = self._composed(tuple(overrides))
        for section in (*NAME_IN_GROUP, "train", "eval"):
            overrides += _differences(section, config.get(section, {}), composed[section])
        return [override for override in overrides if override not in self._default_overrides(task)]

    def _task_overrides(self, task: Mapping[str, Any] | None) -> list[str]:
        if task is None:
            return []
        name = task["name"]
        default = (self._file(f"task/{name}") or {}).get("task", {})
        changed = [f"task.{key}={quote(value)}" for key, value in task.items() if value != default.get(key)]
        return [f"task={quote(name)}", *changed]

    def _default_overrides(self, task: Sequence[str]) -> list[str]:
        """Return the groups that a command has without naming them; a task brings its model and its data."""
        default = self._composed(tuple(task))
        return [f"{group}={default[group][key]}" for group, key in NAME_IN_GROUP.items()]


def with_scored_lengths(config: Mapping[str, Any], rows: Iterable[Row]) -> Mapping[str, Any]:
    """Return the configuration with the lengths added at which its protocol has scored the run since."""
    evaluation, train_length = config.get("eval", {}), config["train"]["length"]
    known = EvalConfig(**{key: evaluation[key] for key in LENGTHS_FOLLOW if key in evaluation})
    asked = set(known.resolved_lengths(train_length))
    own = [row for row in rows if row.protocol == known.protocol and row.scored_with == row.encoding]
    scored = {row.length for row in own}
    if scored <= asked:
        return config
    return {**config, "eval": {**evaluation, "lengths": sorted(asked | scored)}}


def _nested_in(part: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the encodings that options of a part hold."""
    return {
        name: value
        for name, value in part.items()
        if name != "modifiers" and isinstance(value, Mapping) and "class" in value
    }


def _differences(section: str, values: Mapping[str, Any], default: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if f"{section}.{name}" in RETIRED_KEYS:
            continue
        if name not in default:
            raise UserError(f"{section}.{name} is no key of this version of pe-bench")
        decided_by_steps = (section, name) == ("train", "tokens") and values.get("steps") is not None
        if value != default[name] and not decided_by_steps:
            yield f"{section}.{name}={quote(value)}"


def _is_derived(value: object) -> bool:
    return isinstance(value, str) and value.startswith(INTERPOLATION)


def _read_group_file(name: str) -> dict[str, Any] | None:
    """Return the keys of `configs/NAME.yaml`, with all options of a class; None for any other file."""
    path = config_dir() / f"{name}.yaml"
    if GROUP_FILE.fullmatch(name) is None or not path.is_file():
        return None
    return read_part(path) if name.startswith(CLASSES) else yaml.safe_load(path.read_text(encoding="utf-8"))


def _compose(overrides: tuple[str, ...]) -> dict[str, Any]:
    from pe_bench.config.compose import compose

    return compose(overrides)


def sweep_commands(commands: Iterable[str]) -> list[str]:
    """Join commands of one run each into as few commands that make the same runs.

    Runs that differ in nothing but encoding and seed become one sweep, of as many encodings as were
    run with the same seeds.
    """
    seeds: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for command in commands:
        overrides = parse_overrides(shlex.split(command)[2:])
        values = {override.key: override.value or "" for override in overrides}
        rest = tuple(str(override) for override in overrides if override.key not in ("encoding", "seed"))
        seeds.setdefault(rest, {}).setdefault(values["encoding"], []).append(values["seed"])
    return [command for rest, found in seeds.items() for command in _sweeps(found, rest)]


def _sweeps(seeds_of: Mapping[str, Sequence[str]], rest: Sequence[str]) -> Iterator[str]:
    encodings_of: dict[tuple[str, ...], list[str]] = {}
    for encoding, seeds in seeds_of.items():
        each = tuple(sorted(set(seeds), key=lambda seed: (len(seed), seed)))
        encodings_of.setdefault(each, []).append(encoding)
    for seeds, encodings in encodings_of.items():
        sweep = ["-m"] if len(seeds) * len(encodings) > 1 else []
        chosen = [f"encoding={','.join(encodings)}", f"seed={','.join(seeds)}"]
        yield shlex.join(["pe-bench", "train", *sweep, *chosen, *rest])
