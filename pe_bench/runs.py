"""A run: its identity, its directory, its lock, and finding runs again.

A run is named by its content, so that repeating a command finds what was done before:
`<encoding>-s<seed>-<hash>`.
"""

import dataclasses
import fnmatch
import hashlib
import json
import os
import re
import shlex
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pe_bench.config import Config, ModelConfig, TrainConfig, parse_config, to_plain
from pe_bench.errors import RunError, UserError
from pe_bench.files import write_text
from pe_bench.results import read_result, runs_folder
from pe_bench.strangers import check_files
from pe_bench.yaml_files import read_mapping

IDENTITY_VERSION = 1
ERROR = "error.txt"
CHECKSUM = "# sha256 of what stands above: "
# Names are for people, and how often something is written changes no weights. Steps stand in place of
# what they were computed from.
NOT_IDENTITY = {
    "name",
    "steps",
    "tokens",
    "log_every",
    "validate_every",
    "validation_tokens",
    "checkpoint_every",
    "processes",
    "shard",
}


def identity(
    config: Config, data_hash: str, train_dtype: str, encoding_options: list[dict[str, Any]]
) -> dict[str, Any]:
    """What makes a run this run. Values that equal their defaults are left out.

    The data stands here by the hash of what was tokenized, wherever it lay. `encoding_options`
    are the parts of the encoding, without options that equal the constructors' defaults.
    """
    return {
        "version": IDENTITY_VERSION,
        "encoding": encoding_options,
        "seed": config.seed,
        "model": _changed(config.model, ModelConfig()),
        "train": {**_changed(config.train, TrainConfig()), "steps": config.train.total_steps},
        "data": data_hash,
        "precision": train_dtype,
    }


def run_name(config: Config, identity: dict[str, Any]) -> str:
    parts = [config.encoding["name"], *(config.encoding.get("modifiers") or {})]
    return f"{'+'.join(parts)}-s{config.seed}-{_hash(identity)}"


def encoding_in(run_name: str) -> str:
    """The encoding that a run's name begins with; the whole name where it is none of ours."""
    return re.sub(r"-s\d+-[0-9a-f]+$", "", run_name)


def setting(identity: dict[str, Any]) -> str:
    """The hash of all but encoding and seed: runs with one setting may be compared."""
    return _hash({key: value for key, value in identity.items() if key not in ("encoding", "seed")})


def write_config(run: Path, config: Config) -> None:
    text = yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
    write_text(run / "config.yaml", f"{text}{CHECKSUM}{_checksum(text)}\n")


def read_config(run: Path) -> Config:
    """The configuration of a run directory. Raises `UserError` when it is damaged."""
    try:
        values = read_mapping(run / "config.yaml")
        _refuse_changed((run / "config.yaml").read_text(encoding="utf-8"))
        return parse_config(values)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{run / 'config.yaml'} is missing or damaged ({reason}): train the run again"
        ) from error


def _refuse_changed(text: str) -> None:
    """What has no checksum, as if written by hand, is taken as it is; else a byte may make it another run."""
    written, has_checksum, checksum = text.rpartition(CHECKSUM)
    if has_checksum and checksum.strip() != _checksum(written):
        raise ValueError("its checksum is of something else: delete its last line if you changed it")


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def finished_runs(results_dir: Path) -> list[Path]:
    """The runs with a `result.json`, the one that finished last at the end."""
    found = runs_folder(results_dir).glob("*/result.json")
    return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


def find_run(word: str, results_dir: Path) -> Path:
    """The finished run that a path, a name or the beginning of one name stands for."""
    folder = runs_folder(results_dir)
    path = _run_at(word)
    if path is not None:
        return _finished(path)
    names = sorted(path.name for path in folder.glob("*") if path.is_dir())
    name = word.rstrip("/")
    matching = [name] if name in names else [one for one in names if name and one.startswith(name)]
    if len(matching) == 1:
        return _finished(folder / matching[0])
    if matching:
        raise UserError(f"'{word}' is the beginning of several runs: {', '.join(matching)}")
    raise UserError(f"no run '{word}' in {folder}: `pe-bench list runs` names those there are")


def matching_runs(word: str, results_dir: Path) -> list[Path]:
    """The finished runs that a word selects.

    By their encoding, their name, its beginning or a pattern, by the name that tables call their encoding, or
    by the path of one of them.
    """
    names = {run.name: run for run in finished_runs(results_dir)}
    name = word.rstrip("/")
    ways: tuple[Callable[[str], bool], ...] = (
        lambda one: one == name,
        lambda one: one.rpartition("-s")[0] == name,
        lambda one: one.startswith(name),
        lambda one: fnmatch.fnmatch(one, name),
        lambda one: name in names_of_label(_label(names[one])),
    )
    for is_selected in ways if name else ():
        selected = [run for one, run in names.items() if is_selected(one)]
        if selected:
            return selected
    path = _run_at(word)
    if path is not None:
        return [_of_folder(path, word, results_dir)]
    raise UserError(f"no finished run '{word}' in {runs_folder(results_dir)}: see `pe-bench list runs`")


def names_of_label(label: str) -> tuple[str, ...]:
    """What an encoding may be called: as tables do, without its options, and without the letters of its code.

    `root_bias@1a2b strength=0.25` is `root_bias@1a2b` and `root_bias` too.
    """
    name = label.split(" ")[0]
    return label, name, re.sub(r"@[0-9a-f]+", "", name)


def newest_run(results_dir: Path) -> Path:
    finished = finished_runs(results_dir)
    if not finished:
        raise UserError(
            f"no finished run in {runs_folder(results_dir)}: make one with `pe-bench train encoding=rope`"
        )
    return finished[-1]


@contextmanager
def locked(run: Path, *, waits: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the run. Where another process does, one that `waits` is told so first; else it is a `RunError`.

    `RunError` also for what is not safe to write to.
    """
    check_files(run)
    lock = FileLock(run / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if waits is None:
            raise RunError(f"another process is working on {run}: wait for it, or stop it") from error
        waits(f"waits for another process that is working on {run}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def error_kept(run: Path) -> Iterator[None]:
    """What fails in here stands in the run's `error.txt`, until it succeeds; the holder of the lock's."""
    try:
        yield
    except Exception as error:
        write_error(run, "".join(traceback.format_exception(error)))
        raise
    (run / ERROR).unlink(missing_ok=True)


def write_error(run: Path, text: str) -> None:
    """Where the disk takes no more, the error is only said."""
    with suppress(RunError, OSError):
        write_text(run / ERROR, f"{text.rstrip()}\n")


def _run_at(word: str) -> Path | None:
    """The run that a path leads to, if one does: whatever a person typed, it is no error here."""
    return Path(word).resolve() if word and os.path.isfile(os.path.join(word, "config.yaml")) else None


def _of_folder(run: Path, word: str, results_dir: Path) -> Path:
    """The finished run of the results folder that lies at this path. Raises `UserError` for another."""
    folder = runs_folder(results_dir)
    if run.parent == folder.resolve():
        return folder / _finished(run).name
    if run.parent.name == "runs":
        way_out = f"say --results-dir {shlex.quote(str(run.parent.parent))}"
    else:
        way_out = "put it into a folder runs/, and name with --results-dir the folder that holds that"
    raise UserError(f"the run {word} is not one of {folder}: {way_out}")


def _label(run: Path) -> str:
    """What tables call the encoding of a finished run; empty where its result does not say."""
    with suppress(RunError):
        return str((read_result(run) or {}).get("encoding", ""))
    return ""


def _finished(run: Path) -> Path:
    try:
        result = read_result(run)
    except RunError as error:
        raise UserError(str(error)) from error
    if result is None:
        raise UserError(f"{run} is not finished: repeat the command that trained it, and it goes on")
    return run


def _changed(section: Any, defaults: Any) -> dict[str, Any]:
    values, usual = dataclasses.asdict(section), dataclasses.asdict(defaults)
    return {key: value for key, value in values.items() if value != usual[key] and key not in NOT_IDENTITY}


def _hash(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
