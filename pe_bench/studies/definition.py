"""A study: the runs that it makes, and the claims of a paper that these are held against; one YAML file each.

The files lie with all other YAML, in configs/study: so they are installed with the package, and a user's
folder (--config-dir) can have more. They are no group of Hydra, because a study has no keys of one run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from pe_bench.config.groups import config_dir, names_in
from pe_bench.config.schema import Protocol
from pe_bench.errors import UserError, first_line, require
from pe_bench.runs.yaml_file import parse_mapping
from pe_bench.values import check_type, shown, unknown

GROUP = "study"
Comparing = Literal["order", "breaks_first"]  # two encodings, or one in two sweeps
OfTask = Literal["solves", "misses"]
OfProtocol = Literal["early_tokens", "reads_past_window", "stays_in_window"]
Kind = Literal[Comparing, OfTask, OfProtocol, "falls", "rises", "holds", "breaks"]
Measure = Literal["level", "change"]
MAX_SEEDS = 1_000
MIN_RANKED = 4  # of three encodings no order proves anything: one in six agrees by chance
QUICK_OVERRIDES = ("experiment=quick",)
QUICK_LENGTH = 32  # its sixteenfold is what experiment=quick scores
QUICK_SEEDS = 2
QUICK_SHARE = 50  # experiment=quick has a fiftieth of the default's tokens
MAX_QUICK_TOKENS = 81_920

Part = TypeVar("Part")


@dataclass(frozen=True)
class Sweep:
    """Runs of each encoding with each seed.

    tokens: that each trains on; 0 for those of the study. task: in place of text. overrides: after those of
    the study.
    """

    encodings: list[str]
    name: str = ""
    tokens: int = 0
    task: str = ""
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ScoringStep:
    """More scores of all runs, as `eval` makes them. times: lengths over the training length.

    scored_with: values of --with; all runs of the study must be able to take them.
    """

    times: list[float]
    protocol: Protocol = "paired"
    scored_with: list[str] | None = None
    controls: str = "none"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper as data. at: over the training length.

    of, than: names that tables give encodings. sweep, than_sweep: which of the study's sweeps they are of,
    where it has several. `order`: `of` is better than `than`. `falls`, `rises`: the sign of the change from
    the training length. `holds`: up to there. `breaks`: it degrades or fails there. `breaks_first`: before
    `than`, at any length. `early_tokens`: nonoverlapping windows score worse than sliding ones, whose targets
    have more context. `reads_past_window`: better than under the control `window`; `stays_in_window`: not.
    `solves`, `misses`: a task, by the rules of task_statistics.py.
    """

    kind: Kind
    of: str
    source: str
    at: float = 1.0
    than: str = ""
    sweep: str = ""
    than_sweep: str = ""
    measure: Measure = "level"
    protocol: Protocol = "paired"


@dataclass(frozen=True)
class Ranking:
    """The paper's numbers of four encodings or more at one length, of which the order counts; low is good."""

    at: float
    numbers: dict[str, float]
    source: str
    measure: Measure = "change"


@dataclass(frozen=True)
class Quick:
    """The changes of the toy size."""

    overrides: list[str]


@dataclass(frozen=True)
class Study:
    """A study as its file gives it.

    minutes: an estimate for two cores, or one GPU. times: lengths that are scored, over the training length.
    overrides: of every run.
    """

    name: str
    path: Path
    title: str
    question: str
    source: str
    minutes: int
    sweeps: tuple[Sweep, ...]
    times: list[float]
    claims: tuple[Claim, ...]
    seeds: int = 3
    length: int = 128
    tokens: int = 1_024_000
    overrides: list[str] = field(default_factory=list)
    scorings: tuple[ScoringStep, ...] = ()
    ranking: Ranking | None = None
    needs_gpu: bool = False
    quick: Quick | None = None

    @property
    def runs(self) -> int:
        return self.seeds * sum(len(sweep.encodings) for sweep in self.sweeps)

    @property
    def reads_text(self) -> bool:
        """Return whether any of its runs train on text: the others have tasks."""
        return not all(sweep.task for sweep in self.sweeps)

    @property
    def table(self) -> Path:
        """Return where its table lies: beside its file, so that it is installed with it."""
        return self.path.with_suffix(".csv")


def study_names(search: Sequence[Path] = ()) -> list[str]:
    return names_in(GROUP, search)


def read_study(name: str, search: Sequence[Path] = ()) -> Study:
    """Return the study of that name. Raises `UserError` where there is none, or its file cannot be used."""
    names = study_names(search)
    if name not in names:
        raise UserError(unknown(name, "study", names), name)
    folders = [*reversed(search), config_dir()]
    path = next(path for folder in folders if (path := folder / GROUP / f"{name}.yaml").is_file())
    try:
        values = parse_mapping(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    return _parse(name, path, values)


def _parse(name: str, path: Path, values: Mapping[str, Any]) -> Study:
    part = partial(_part, path=path)
    require("claims" in values and "sweeps" in values, f"{path}: a study has sweeps and claims")
    found = dict(values)
    for key, kind in (("sweeps", Sweep), ("claims", Claim), ("scorings", ScoringStep)):
        parts = values.get(key, [])
        require(isinstance(parts, list), f"{path}: {key} must be a list, not {shown(parts)}")
        found[key] = tuple(part(kind, one, key=key) for one in parts)
    for key, kind in (("ranking", Ranking), ("quick", Quick)):
        found[key] = part(kind, values[key], key=key) if values.get(key) else None
    study = part(Study, {**found, "name": name, "path": path}, key="study")
    _check(study)
    tasks = {sweep.name for sweep in study.sweeps if sweep.task}
    claims = [replace(claim, protocol="task") if claim.sweep in tasks else claim for claim in study.claims]
    return replace(study, claims=tuple(claims))


def _part(kind: type[Part], values: Any, *, path: Path, key: str) -> Part:
    """Return a mapping of a study's file as a dataclass. Raise `UserError` with the file and the key."""
    require(isinstance(values, Mapping), f"{path}: {key} must hold keys and values, not {values!r:.60}")
    types = get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        require(name in names, f"{path}: {unknown(str(name), f'key of {key}', names)}")
    try:
        typed = {
            name: value if _is_read(types[name]) else check_type(value, types[name], f"{key}.{name}")
            for name, value in values.items()
        }
        return kind(**typed)
    except (UserError, TypeError) as error:
        raise UserError(f"{path}: {str(error).replace('__init__() ', '')}") from error


def _is_read(kind: Any) -> bool:
    """Return whether values of this type are read already, and no plain YAML."""
    parts = (Sweep, Claim, ScoringStep, Ranking, Quick, Path)
    return kind in parts or any(inner in parts for inner in get_args(kind))


def _check(study: Study) -> None:
    """Raise `UserError` for claims that the study's runs cannot answer."""
    names = [sweep.name for sweep in study.sweeps]
    require(len({*names}) == len(names), f"{study.path}: two sweeps have one name")
    is_few = 1 <= study.seeds <= MAX_SEEDS
    require(is_few, f"{study.path}: seeds must lie between 1 and {MAX_SEEDS}, not {study.seeds}")
    require(
        any(study.times) and min(study.times) > 0,
        f"{study.path}: times must be lengths over the training length, such as [1, 2], not {study.times}",
    )
    longest = max(study.times)
    for time in (time for step in study.scorings for time in step.times):
        message = (
            f"scorings.times has {time:g}, and times ends at {longest:g}: longer ones have other targets"
        )
        require(time <= longest, f"{study.path}: {message}, so add it to times")
    scored = {("paired", time) for time in study.times}
    scored |= {(step.protocol, time) for step in study.scorings for time in step.times}
    for claim in study.claims:
        what = f"{study.path}: the claim '{claim.kind}' of {claim.of}"
        _check_encodings(study, claim, what)
        for protocol in ("nonoverlapping", "sliding") if claim.kind == "early_tokens" else (claim.protocol,):
            is_scored = (protocol, claim.at) in scored
            require(is_scored, f"{what}: {claim.at:g} is not among the times that are scored ({protocol})")
    if study.ranking is not None:
        few = len(study.ranking.numbers) < MIN_RANKED
        for name, number in study.ranking.numbers.items():
            check_type(number, float, f"{study.path}: ranking.numbers.{name}")
        at = study.ranking.at
        require(at in study.times, f"{study.path}: ranking.at={at:g} is not among the times that are scored")
        require(not few, f"{study.path}: a ranking needs {MIN_RANKED} encodings: fewer prove no order")


def _check_encodings(study: Study, claim: Claim, what: str) -> None:
    """Raise `UserError` for encodings that the sweeps do not train, or not on what the claim is about."""
    is_one, second = claim.kind not in get_args(Comparing), claim.than or claim.than_sweep
    require(bool(second) or is_one, f"{what} compares two encodings: add 'than' or 'than_sweep'")
    require(not (is_one and second), f"{what} is about one encoding: remove '{second}'")
    sweep_of, of_tasks = {sweep.name: sweep for sweep in study.sweeps}, get_args(OfTask)
    for label, name in ((claim.of, claim.sweep), (claim.than or claim.of, claim.than_sweep or claim.sweep)):
        sweep = sweep_of.get(name)
        if sweep is None:
            raise UserError(f"{what}: there is no sweep '{name}', but {', '.join(map(repr, sweep_of))}")
        trained = re.split("[ +@]", label)[0]
        known = ", ".join(sweep.encodings)
        require(trained in sweep.encodings, f"{what}: its sweep trains {known}, not {trained}")
        fits = claim.kind == "order" or (claim.kind in of_tasks) is bool(sweep.task)
        kinds = " and ".join(of_tasks)
        require(fits, f"{what}: {kinds} are claims about tasks, order about both, all others about text")
