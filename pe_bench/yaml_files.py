"""Reading a run's configuration, which may be a stranger's: plain values, in time and memory of its size."""

import re
from pathlib import Path
from typing import Any

import yaml

# libyaml's reader is as safe as Python's, and reads thousands of files in a second.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ALIAS = re.compile(rb"(?:^|[\s,:\[{-])\*[^\s*]", re.MULTILINE)


class DamagedYamlError(ValueError):
    """A file that holds no mapping of plain values; the text says why."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The file's values. Raises `DamagedYamlError`, and `OSError` where there is no file.

    Aliases are refused: a few lines of them can stand for more than any memory holds, and no file of ours
    has one.
    """
    text = path.read_bytes()
    try:
        if ALIAS.search(text) and any(
            isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, LOADER)
        ):
            raise DamagedYamlError("it has aliases, such as *name")
        values = yaml.load(text, LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise DamagedYamlError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise DamagedYamlError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise DamagedYamlError("it holds no keys")
    return values
