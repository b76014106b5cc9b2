"""A study: the runs that it makes, and the claims of a paper that these are held against; one YAML file each.

The files lie with all other YAML, in configs/study: so they are installed with the package, and a user's
folder (--config-dir) can have more. They are no group of Hydra, because a study has no keys of one run.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pe_bench.config.groups import config_dir, names_in
from pe_bench.config.overrides import quote
from pe_bench.config.schema import Protocol
from pe_bench.data.sources import files_in
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.identity import IDENTITY_VERSION
from pe_bench.runs.rows import read_rows
from pe_bench.runs.untrusted import parse_mapping
from pe_bench.system.files import write_text
from pe_bench.values import check_type, shown, unknown

GROUP = "study"
STDLIB = "stdlib"
Kind = Literal[
    "order",
    "breaks_first",
    "falls",
    "rises",
    "holds",
    "breaks",
    "early_tokens",
    "reads_past_window",
    "stays_in_window",
    "solves",
    "misses",
]
COMPARING = ("order", "breaks_first")  # two encodings, or one in two sweeps
OF_TASK = ("solves", "misses")
Measure = Literal["level", "change"]
MAX_SEEDS = 1_000
MIN_RANKED = 4  # of three encodings no order proves anything: one in six agrees by chance
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
    """A sentence of a paper as data; `claims.py` says what each kind means. at: over the training length.

    of, than: names that tables give encodings. sweep, than_sweep: which of the study's sweeps they are of,
    where it has several.
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
class Study:
    """A study as its file gives it.

    minutes: an estimate for two cores, or one GPU. times: lengths that are scored, over the training length.
    overrides: of every run. quick_overrides: of the toy size, after all others.
    """

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
    quick_overrides: list[str] = field(default_factory=list)
    scorings: tuple[ScoringStep, ...] = ()
    ranking: Ranking | None = None
    needs_gpu: bool = False
    name: str = ""  # its file's
    path: Path = Path()

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
    try:
        study = _part(Study, values, "study")
        _check(study)
    except (UserError, TypeError) as error:  # a key that is missing is a TypeError
        raise UserError(f"{path}: {str(error).replace('__init__() ', '')}") from error
    tasks = {sweep.name for sweep in study.sweeps if sweep.task}
    claims = [replace(claim, protocol="task") if claim.sweep in tasks else claim for claim in study.claims]
    return replace(study, name=name, path=path, claims=tuple(claims))


def _part(kind: type[Part], values: Any, key: str) -> Part:
    """Return a mapping of a study's file as a dataclass. Raise `UserError` with the key."""
    require(isinstance(values, Mapping), f"{key} must hold keys and values, not {shown(values)}")
    types = get_type_hints(kind)
    for name in values:
        require(name in types, unknown(str(name), f"key of {key}", types))
    return kind(**{name: _value(types[name], value, key, name) for name, value in values.items()})


def _value(kind: Any, value: Any, key: str, name: str) -> Any:
    [part] = [inner for inner in get_args(kind) if is_dataclass(inner)] or [None]
    if part is None:
        return check_type(value, kind, f"{key}.{name}")
    if get_origin(kind) is not tuple:
        return None if value is None else _part(part, value, name)  # type: ignore[type-var]
    require(isinstance(value, list), f"{name} must be a list, not {shown(value)}")
    return tuple(_part(part, one, name) for one in value)  # type: ignore[type-var]


def _check(study: Study) -> None:
    """Raise `UserError` for claims that the study's runs cannot answer."""
    names, times = [sweep.name for sweep in study.sweeps], study.times
    require(len({*names}) == len(names), "two sweeps have one name")
    require(1 <= study.seeds <= MAX_SEEDS, f"seeds must lie between 1 and {MAX_SEEDS}, not {study.seeds}")
    is_positive = bool(times) and min(times) > 0
    require(is_positive, f"times must be lengths over the training length, such as [1, 2], not {times}")
    scored = {("paired", time) for time in times}
    for step in study.scorings:
        for time in step.times:
            message = f"scorings.times has {time:g}, and times ends at {max(times):g}"
            require(time <= max(times), f"{message}: longer ones have other targets, so add it to times")
            scored.add((step.protocol, time))
    for claim in study.claims:
        what = f"the claim '{claim.kind}' of {claim.of}"
        _check_encodings(study, claim, what)
        for protocol in ("nonoverlapping", "sliding") if claim.kind == "early_tokens" else (claim.protocol,):
            is_scored = (protocol, claim.at) in scored
            require(is_scored, f"{what}: {claim.at:g} is not among the times that are scored ({protocol})")
    if study.ranking is not None:
        at, numbers = study.ranking.at, study.ranking.numbers
        for name, number in numbers.items():
            check_type(number, float, f"ranking.numbers.{name}")
        require(at in times, f"ranking.at={at:g} is not among the times that are scored")
        is_enough = len(numbers) >= MIN_RANKED
        require(is_enough, f"a ranking needs {MIN_RANKED} encodings: fewer prove no order")


def _check_encodings(study: Study, claim: Claim, what: str) -> None:
    """Raise `UserError` for encodings that the sweeps do not train, or not on what the claim is about."""
    is_one, second = claim.kind not in COMPARING, claim.than or claim.than_sweep
    require(bool(second) or is_one, f"{what} compares two encodings: add 'than' or 'than_sweep'")
    require(not (is_one and second), f"{what} is about one encoding: remove '{second}'")
    sweep_of = {sweep.name: sweep for sweep in study.sweeps}
    for label, name in ((claim.of, claim.sweep), (claim.than or claim.of, claim.than_sweep or claim.sweep)):
        sweep = sweep_of.get(name)
        if sweep is None:
            raise UserError(f"{what}: there is no sweep '{name}', but {', '.join(map(repr, sweep_of))}")
        trained = re.split("[ +@]", label)[0]
        names = ", ".join(sweep.encodings)
        require(trained in sweep.encodings, f"{what}: its sweep trains {names}, not {trained}")
        fits = claim.kind == "order" or (claim.kind in OF_TASK) is bool(sweep.task)
        kinds = " and ".join(OF_TASK)
        require(fits, f"{what}: {kinds} are claims about tasks, order about both, all others about text")


@dataclass(frozen=True)
class Variant:
    """A study, its size (full, or a toy) and its text: `stdlib`, or a folder with text files.

    search: folders with the user's own YAML.
    """

    study: Study
    is_quick: bool = False
    text: str = STDLIB
    search: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        return "quick" if self.is_quick else "full"

    @property
    def progress_name(self) -> str:
        """Return the name of the file with its progress, another one for each size and kind of text."""
        size = "-quick" if self.is_quick else ""
        return f"{self.study.name}{size}{'' if self.text == STDLIB else '-files'}"

    @property
    def seeds(self) -> int:
        return min(self.study.seeds, QUICK_SEEDS) if self.is_quick else self.study.seeds

    @property
    def length(self) -> int:
        """Return the training length."""
        return QUICK_LENGTH if self.is_quick else self.study.length

    def lengths(self, times: Iterable[float]) -> list[int]:
        return sorted({round(time * self.length) for time in times})

    def key(self, sweep: Sweep) -> str:
        """Return all that determines a sweep's runs: overrides, software versions, and the user's files."""
        made_with = f"identity {IDENTITY_VERSION}, Python {python_version()}, torch {version('torch')}"
        return f"{made_with}{self._files}: {' '.join(self.overrides(sweep))}"

    @property
    def _files(self) -> str:
        """Return a hash of the state of the text's files and the user's encodings; empty without any."""
        paths = [path for folder in self.search for path in folder.glob("*/*")]
        files = [path for path in paths if path.suffix in (".yaml", ".py") and path.parent.name != GROUP]
        files += [] if self.text == STDLIB else files_in(Path(self.text), "--text")
        states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(files)]
        return f", files {sha256(repr(states).encode()).hexdigest()[:8]}" if states else ""

    def overrides(self, sweep: Sweep) -> list[str]:
        """Return the overrides of `train -m` that make the runs of a sweep."""
        seeds = f"seed={','.join(map(str, range(self.seeds)))}"
        return [*self._plain_overrides(sweep), f"encoding={','.join(sweep.encodings)}", seeds]

    def overrides_of_one(self, sweep: Sweep) -> list[str]:
        """Return the overrides of `train` that make one run of a sweep."""
        return [*self._plain_overrides(sweep), f"encoding={sweep.encodings[0]}"]

    def _plain_overrides(self, sweep: Sweep) -> Iterator[str]:
        study, tokens = self.study, sweep.tokens or self.study.tokens
        if sweep.task:
            yield f"task={sweep.task}"
        elif self.text == STDLIB:
            yield f"data={STDLIB}"
        else:
            yield from ("data=files", f"data.path={quote(self.text)}")
        yield from ("experiment=quick",) if self.is_quick else ()
        yield f"train.length={self.length}"
        yield f"train.tokens={min(tokens // QUICK_SHARE, MAX_QUICK_TOKENS) if self.is_quick else tokens}"
        lengths = self.lengths(study.times)
        yield f"eval.lengths=[{','.join(map(str, lengths))}]"
        yield from () if sweep.task else (f"eval.max_length={lengths[-1]}",)
        yield from study.overrides
        yield from sweep.overrides
        yield from study.quick_overrides if self.is_quick else ()


RowKey = tuple[str, ...]  # `Row.key`


@dataclass(frozen=True)
class Step:
    """A sweep of a study, or a scoring of its runs. is_done: it came to its end.

    runs: the names of its runs. keys: of the rows that this step asked for; a run that several studies share
    has more rows.
    """

    sweep: str
    runs: tuple[str, ...]
    keys: tuple[RowKey, ...]
    is_done: bool = True


class Progress:
    """A file with the steps of a study: repeating the command does those that are not done.

    A step has a key (`Variant.key`), so that a changed study, or another Python, has other steps. A step is
    done only while all of its runs and rows are there.
    """

    def __init__(self, results_dir: Path, name: str) -> None:
        self.results_dir, self.runs = results_dir, runs_folder(results_dir)
        self.path = results_dir / "studies" / f"{name}.json"

    def find(self, key: str) -> Step | None:
        """Return the finished step of that key; None where it is still to do."""
        step = self._steps().get(key)
        return step if step is not None and step.is_done and self._has_all(step) else None

    def add(self, key: str, step: Step) -> None:
        steps = self._steps() | {key: step}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps({key: asdict(step) for key, step in steps.items()}))

    def finished_runs(self, keys: Iterable[str]) -> int:
        """Return how many runs of the steps of these keys are finished."""
        steps = self._steps()
        return sum(map(self._is_finished, {run for key in keys if key in steps for run in steps[key].runs}))

    def _has_all(self, step: Step) -> bool:
        """Return whether all rows of the step are there: training a run again deletes its earlier rows."""
        try:
            rows = {row.key for run in step.runs for row in read_rows(self.runs / run / "eval.csv")}
        except RunError:
            return False
        return rows.issuperset(step.keys) and all(map(self._is_finished, step.runs))

    def _is_finished(self, run: str) -> bool:
        return (self.runs / run / "result.json").is_file()

    def _steps(self) -> dict[str, Step]:
        """Return the steps by their keys; none where the file is missing or damaged: runs are found again."""
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            return {key: _step(step) for key, step in values.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}


def _step(values: dict[str, Any]) -> Step:
    keys = tuple(tuple(map(str, key)) for key in values["keys"])
    return Step(str(values["sweep"]), tuple(map(str, values["runs"])), keys, bool(values["is_done"]))
