"""Where the numbers of runs come from: commands, data, versions and machines.

What is not known of a run (an older version kept less) stays empty and hides nothing else.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pe_bench.errors import UserError
from pe_bench.runs.commands import recorded_commands, takes_code_from
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.repeat import Repeater, with_scored_lengths


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

    commands: as they were typed, empty where they were not kept. repeat: a command that makes this run
    alone, empty where `missing` says why. needs: what that command needs beside pe-bench. trained: where;
    scored: wherever else scores come from. data: all that it was scored on. date: of the training, ISO 8601.
    """

    run: str
    commands: tuple[str, ...]
    repeat: str
    needs: tuple[str, ...]
    missing: str
    data: tuple[Dataset, ...]
    trained: Environment
    scored: tuple[Environment, ...]
    date: str


def provenance(folders: Iterable[RunFolder]) -> list[RunRecord]:
    """Return the records of runs, in the order of their names."""
    folders = sorted(folders, key=lambda folder: folder.path.name)
    repeater = Repeater(folder.path.parent.parent for folder in folders)
    return [_record(folder, repeater) for folder in folders]


def _record(run: RunFolder, repeater: Repeater) -> RunRecord:
    rows, found, results = run.rows, run.environment, run.path.parent.parent
    repeat, needs, missing = _repeat(run, repeater)
    trained = _environment(found)
    scored = dict.fromkeys(_environment(vars(row)) for row in rows)
    return RunRecord(
        run=run.path.name,
        commands=tuple(
            command for command in recorded_commands(run.path) if not takes_code_from(command, results)
        ),
        repeat=repeat,
        needs=needs,
        missing=missing,
        data=tuple(dict.fromkeys(Dataset(row.data, row.data_hash, row.tokenizer) for row in rows)),
        trained=trained,
        scored=tuple(environment for environment in scored if not _is_part(environment, trained)),
        date=str(found.get("date", "")) or min((row.date for row in rows), default=""),
    )


def _repeat(run: RunFolder, repeater: Repeater) -> tuple[str, tuple[str, ...], str]:
    """The command that repeats a run, what it needs, and why there is none."""
    try:
        config, rows = run.config, run.rows
        precision = rows[0].train_dtype if rows else config["precision"]
        overrides = repeater.overrides(with_scored_lengths(config, rows), precision)
        return shlex.join(["pe-bench", "train", *overrides]), tuple(repeater.requirements(config)), ""
    except UserError as error:
        return "", (), str(error)
    except FileNotFoundError:
        return "", (), "the run has no config.yaml"
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return "", (), "the run's config.yaml is damaged"


def _environment(values: dict[str, Any]) -> Environment:
    names = Environment.__dataclass_fields__
    return Environment(**{name: str(values[name]) for name in names if values.get(name) is not None})


def _is_part(environment: Environment, whole: Environment) -> bool:
    """Whether all that is known of the one is so in the other too."""
    known = {name: value for name, value in vars(environment).items() if value}
    return all(getattr(whole, name) == value for name, value in known.items())
