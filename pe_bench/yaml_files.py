"""Reading a run's configuration, which may be a stranger's: plain values, in time and memory of its size."""

from pathlib import Path
from typing import Any

import yaml

from pe_bench.strangers import DEEPEST, MOST_BYTES, check_values


class DamagedYamlError(ValueError):
    """A file that holds no mapping of plain values; the text says why."""


# libyaml's reader is as safe as Python's, and reads thousands of files in a second.
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(SAFE):
    """Refuses deep nesting before libyaml's own recursion ends the process."""

    depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise DamagedYamlError("it is nested too deeply")

    def ascend_resolver(self) -> None:
        self.depth -= 1


def read_mapping(path: Path) -> dict[str, Any]:
    """The file's values. Raises `DamagedYamlError`, and `OSError` where there is no file.

    Aliases are refused: a few lines of them can stand for more than any memory holds, and no file of ours
    has one.
    """
    try:
        return _mapping_in(_text_of(path))
    except DamagedYamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise DamagedYamlError(" ".join(str(error).split())) from error


def _text_of(path: Path) -> str:
    """Text, for YAML would take bytes in UTF-16 too, where an alias looks different."""
    most = MOST_BYTES[".yaml"]
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise DamagedYamlError(f"it has over {most:,} bytes")
    return found.decode("utf-8")


def _mapping_in(text: str) -> dict[str, Any]:
    if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader)):
        raise DamagedYamlError("it has aliases, such as *name")
    if "${" in text:  # which Hydra would fill in, with a secret of the environment for one
        raise DamagedYamlError("it has interpolations, such as ${name}, and a run's values are resolved")
    values = yaml.load(text, Loader)
    if not isinstance(values, dict):
        raise DamagedYamlError("it holds no keys")
    check_values(values)
    return values
