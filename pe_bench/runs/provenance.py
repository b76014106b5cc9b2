"""Where the numbers of runs come from: commands, data, versions and machines.

What is not known of a run stays empty and hides nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pe_bench.runs.commands import recorded_commands, takes_code_from
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.untrusted import InvalidYamlError


@dataclass(frozen=True)
class Environment:
    """Versions and a machine; what is not known of them is empty. git: the commit, + where changed since."""

    pe_bench: str = ""
    git: str = ""
    torch: str = ""
    python: str = ""
    platform: str = ""
    processor: str = ""
    device: str = ""
    threads: str = ""


@dataclass(frozen=True)
class Dataset:
    """The data that a run was trained or scored on: names, and the hash of the text that was tokenized."""

    name: str
    hash: str
    tokenizer: str


@dataclass(frozen=True)
class RunRecord:
    """How one run was made.

    commands: as they were typed; `missing` says why some or all are not there. needs: what they need beside
    pe-bench. trained: where; scored: wherever else scores come from. data: all that it was scored on. date:
    of the training, ISO 8601.
    """

    run: str
    commands: tuple[str, ...]
    needs: tuple[str, ...]
    missing: str
    data: tuple[Dataset, ...]
    trained: Environment
    scored: tuple[Environment, ...]
    date: str


def provenance(folders: Iterable[RunFolder]) -> list[RunRecord]:
    """Return the records of runs, in the order of their names."""
    return [_record(folder) for folder in sorted(folders, key=lambda folder: folder.path.name)]


def _record(run: RunFolder) -> RunRecord:
    rows, results = run.rows, run.path.parent.parent
    typed = recorded_commands(run.path)
    commands = tuple(command for command in typed if not takes_code_from(command, results))
    missing = "" if typed else "none was kept"
    if len(commands) < len(typed):
        missing = "the code that it names is not here, and none is taken from a folder of results"
    trained = _environment(run.environment)
    scored = dict.fromkeys(_environment(vars(row)) for row in rows)
    return RunRecord(
        run=run.path.name,
        commands=commands,
        needs=_needs(run),
        missing=missing,
        data=tuple(dict.fromkeys(Dataset(row.data, row.data_hash, row.tokenizer) for row in rows)),
        trained=trained,
        scored=tuple(environment for environment in scored if not _is_part(environment, trained)),
        date=str(run.environment.get("date", "")) or min((row.date for row in rows), default=""),
    )


def _needs(run: RunFolder) -> tuple[str, ...]:
    """Return what a run's commands need besides pe-bench: files of code, and another run's weights."""
    try:
        encoding, source = run.config["encoding"], run.config["train"].get("from")
        parts = [encoding, *(encoding.get("modifiers") or {}).values()]
        code = [f"{part['class']} (sha256 {part['code_sha256']})" for part in parts if "code_sha256" in part]
    except (OSError, InvalidYamlError, AttributeError, LookupError, TypeError):
        return ()
    return (*code, *([f"the run {source}, whose weights it starts from"] if source else []))


def _environment(values: dict[str, Any]) -> Environment:
    names = Environment.__dataclass_fields__
    return Environment(**{name: str(values[name]) for name in names if values.get(name) is not None})


def _is_part(environment: Environment, other: Environment) -> bool:
    """Whether all that is known of the one is so in the other too."""
    facts = {name: value for name, value in vars(environment).items() if value}
    return all(getattr(other, name) == value for name, value in facts.items())
