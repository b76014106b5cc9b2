"""Configurations of a run, which may be a stranger's, as plain values: no aliases, tags or interpolations."""

from typing import Any

import yaml

from pe_bench.runs.untrusted import MAX_DEPTH, check_values


class InvalidYamlError(ValueError):
    """An error about a file that holds no mapping of plain values; its text says why."""


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
