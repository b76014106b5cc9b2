"""The request of a caller of `evaluate` or `probe`, in Python or on the command line."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pe_bench.config.schema import EvalConfig
from pe_bench.errors import UserError, require
from pe_bench.interface.values import plain
from pe_bench.runs.config_file import read_config
from pe_bench.scoring.needles import Probe
from pe_bench.scoring.other_encodings import WithOption, read_with


@dataclass(frozen=True)
class Request:
    """The changes of a run's configuration for a scoring; None leaves the run's own.

    evaluation: keys of `eval`. base: the section `eval` that these keys change; the run's own if None.
    machine: device, threads and cache_dir. code: trusted files of custom encodings. data_path: where the
    data is now. others: encodings to score the weights under too. judge: a run whose scores decide which
    targets are key. probe: the needles to score in the place of a protocol's lengths.
    """

    evaluation: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    code: Sequence[Path] = ()
    data_path: Path | None = None
    others: WithOption = field(default_factory=WithOption)
    judge: Path | None = None
    probe: Probe | None = None
    base: EvalConfig | None = None

    def check_code(self) -> None:
        """Raise `UserError` for a path of code that is not a file."""
        for path in self.code:
            require(path.is_file(), f"--code {path} is not a file")

    def check_runs(self, runs: Sequence[Path]) -> None:
        """Raise `UserError` for runs of a task where a probe needs text."""
        if self.probe is None:
            return
        tasks = {run.name: config.task["name"] for run in runs if (config := read_config(run)).task}
        if not tasks:
            return
        condition = shlex.quote(f"data!={','.join(sorted({*tasks.values()}))}")
        others = f", or leave it out with --where {condition}" if len(runs) > 1 else ""
        run, task = next(iter(tasks.items()))
        raise UserError(
            f"a probe needs text, and {run} answers task={task}: score it with pe-bench eval{others}"
        )


def read_request(
    evaluation: Mapping[str, Any],
    machine: Mapping[str, Any],
    with_: str | Sequence[str] | None,
    code: str | Path | Sequence[str | Path] | None,
    data_path: str | Path | None,
    config_dir: str | Path | Sequence[str | Path] | None,
    *,
    force: bool,
    probe: Probe | None = None,
) -> Request:
    """Return the arguments of a call in Python as a request. Raises `UserError`."""
    files = [*map(Path, listed(code))]
    others = read_with(listed(with_), [*map(Path, listed(config_dir))], force, has_code=bool(files))
    data = None if data_path is None else Path(data_path)
    return Request(
        evaluation, {key: plain(value) for key, value in machine.items()}, files, data, others, probe=probe
    )


def read_lengths(lengths: int | Sequence[int] | None) -> list[int] | None:
    """Return lengths, or a single one, as a list."""
    values = plain(lengths)
    return values if isinstance(values, list | None) else [values]


def listed(values: str | Path | Sequence[Any] | None) -> list[Any]:
    """Return values, or a single one, as a list; None stands for no value."""
    if values is None:
        return []
    return [values] if isinstance(values, str | Path) else [*values]
