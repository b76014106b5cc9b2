"""Where the numbers of runs come from: commands, data, versions and machines.

What is not known of a run (an older version kept less) stays empty and hides nothing else.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.errors import RunError, UserError
from pe_bench.runs.commands import recorded_commands
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.repeat import Repeater, with_scored_lengths
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.untrusted import read_mapping


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
    """What a run was trained on or scored on: names, and the hash of what was tokenized."""

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


def provenance(results_dir: Path, run_names: Sequence[str]) -> list[RunRecord]:
    """The records of runs, in the order of their names; each run once."""
    repeater = Repeater()
    folder = runs_folder(results_dir)
    return [_record(folder / name, repeater) for name in sorted(set(run_names))]


def _record(run: Path, repeater: Repeater) -> RunRecord:
    rows, found = _rows(run), _read_json(run / "environment.json")
    repeat, needs, missing = _repeat(run, rows, repeater)
    trained = _environment(found)
    scored = dict.fromkeys(_environment(vars(row)) for row in rows)
    return RunRecord(
        run=run.name,
        commands=recorded_commands(run),
        repeat=repeat,
        needs=needs,
        missing=missing,
        data=tuple(dict.fromkeys(Dataset(row.data, row.data_hash, row.tokenizer) for row in rows)),
        trained=trained,
        scored=tuple(environment for environment in scored if not _is_part(environment, trained)),
        date=str(found.get("date", "")) or min((row.date for row in rows), default=""),
    )


def _repeat(run: Path, rows: Sequence[Row], repeater: Repeater) -> tuple[str, tuple[str, ...], str]:
    """The command that repeats a run, what it needs, and why there is none."""
    try:
        config = read_mapping(run / "config.yaml")
        precision = rows[0].train_dtype if rows else config["precision"]
        overrides = repeater.overrides(with_scored_lengths(config, rows), precision)
        return shlex.join(["pe-bench", "train", *overrides]), tuple(repeater.needs(config)), ""
    except UserError as error:
        return "", (), str(error)
    except FileNotFoundError:
        return "", (), "the run has no config.yaml"
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return "", (), "the run's config.yaml is damaged"


def _rows(run: Path) -> list[Row]:
    try:
        return read_rows(run / "eval.csv")
    except RunError:
        return []  # the report names the damage


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _environment(values: dict[str, Any]) -> Environment:
    names = Environment.__dataclass_fields__
    return Environment(**{name: str(values[name]) for name in names if values.get(name) is not None})


def _is_part(environment: Environment, whole: Environment) -> bool:
    """Whether all that is known of the one is so in the other too."""
    known = {name: value for name, value in vars(environment).items() if value}
    return all(getattr(whole, name) == value for name, value in known.items())
