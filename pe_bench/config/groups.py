"""The groups of the configuration: where their YAML files are, and the names they offer."""

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

ALSO = re.compile(r"\A# also: (.+)$", re.MULTILINE)
DIRECTIVES = ("# also: ", "# @package ")  # comments that are read by programs
CHOICE = re.compile(r"(\+?encoding=)([\w,]+)", re.ASCII)


def aliases() -> dict[str, str]:
    """Each other name, and the name that it stands for."""
    found = {}
    for path in sorted((config_dir() / "encoding").glob("*.yaml")):
        also = ALSO.search(path.read_text(encoding="utf-8"))
        found |= dict.fromkeys(also[1].split(", ") if also else [], path.stem)
    return found


def without_aliases(overrides: Sequence[str], directories: Sequence[str] = ()) -> list[str]:
    """The overrides with encodings by their first names; files in a person's own folders come first."""
    chosen = [CHOICE.fullmatch(override) for override in overrides]
    if not any(chosen):
        return list(overrides)
    known = aliases()
    own = {path.stem for folder in directories for path in (Path(folder) / "encoding").glob("*.yaml")}

    def first_name(name: str) -> str:
        return name if name in own else known.get(name, name)

    return [
        match[1] + ",".join(map(first_name, match[2].split(","))) if match else override
        for override, match in zip(overrides, chosen, strict=True)
    ]


def config_dir() -> Path:
    """The folder of shipped YAML: inside the installed package, or beside it in a checkout."""
    installed = Path(__file__).parent / "yaml"
    checkout = Path(__file__).parents[2] / "configs"
    return installed if installed.is_dir() else checkout


def description(group: str, name: str) -> str:
    """Return the first sentence of the comment at the head of a shipped YAML file."""
    lines = (config_dir() / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    comment = " ".join(line.lstrip("# ") for line in head if not line.startswith(DIRECTIVES))
    return re.split(r"(?<=\w)\. |\.$", comment, maxsplit=1)[0]


def names_in(group: str, directories: Iterable[str | Path] = ()) -> list[str]:
    """What a group offers, in the shipped folder and in the user's own."""
    folders = [config_dir(), *map(Path, directories)]
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
