"""Configurations of a run, which may be a stranger's, as plain values: no aliases, tags or interpolations."""

from typing import Any

import yaml

from pe_bench.runs.untrusted import MAX_DEPTH, check_values


class InvalidYamlError(ValueError):
    """An error about a file that holds no mapping of plain values; its text says why."""


MAX_KNOWN, MAX_LENGTH = 4096, 100  # scalars that are remembered, and their characters
_TAGS: dict[tuple[str, tuple[bool, bool]], str] = {}  # by a scalar's text, and whether it was plain or quoted
_SCALARS: dict[tuple[str, str], Any] = {}  # by a scalar's tag and text


def _remember(known: dict[Any, Any], key: tuple[str, Any], value: Any) -> None:
    if len(known) < MAX_KNOWN and sum(len(part) for part in key) < MAX_LENGTH:
        known[key] = value


# libyaml's reader is as safe as Python's, and reads thousands of files in a second.
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(SAFE):
    """A loader that refuses deep nesting before libyaml's own recursion ends the process."""

    depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidYamlError("it is nested too deeply")

    def ascend_resolver(self) -> None:
        self.depth -= 1

    # Runs have nearly all of their values in common, and PyYAML finds out what a scalar is in Python.

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is not yaml.ScalarNode:
            return super().resolve(kind, value, implicit)
        found = _TAGS.get((value, implicit))
        if found is None:
            found = super().resolve(kind, value, implicit)
            _remember(_TAGS, (value, implicit), found)
        return found

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        found = _SCALARS.get((node.tag, node.value), _SCALARS)
        if found is _SCALARS:
            found = super().construct_object(node, deep)
            if found is None or isinstance(found, (str, int, float)):  # a tag can make a scalar anything
                _remember(_SCALARS, (node.tag, node.value), found)
        return found


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the values in a text of YAML. Raise `InvalidYamlError`.

    Aliases are refused: a few lines of them can stand for more than any memory holds, and no file of ours
    has one.
    """
    try:
        return _mapping_in(text)
    except InvalidYamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidYamlError(" ".join(str(error).split())) from error


def _mapping_in(text: str) -> dict[str, Any]:
    if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader)):
        raise InvalidYamlError("it has aliases, such as *name")
    values = yaml.load(text, Loader)
    if not isinstance(values, dict):
        raise InvalidYamlError("it holds no keys")
    check_values(values)
    # Of the values, because an escape such as \x24 hides a dollar sign in the text. Hydra would resolve one,
    # to a secret of the environment for example.
    if _has_interpolation(values):
        raise InvalidYamlError("it has interpolations, such as ${name}, and a run's values are resolved")
    return values


def _has_interpolation(value: Any) -> bool:
    """Return whether a text in plain values, a key included, holds what OmegaConf would resolve."""
    if isinstance(value, dict):
        return any(_has_interpolation(inner) for pair in value.items() for inner in pair)
    if isinstance(value, list):
        return any(map(_has_interpolation, value))
    return isinstance(value, str) and "${" in value
