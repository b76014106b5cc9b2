"""A study: the runs that it makes, and the claims of a paper that these are held against; one YAML file each.

The files lie with all other YAML, in configs/study: so they are installed with the package, and a user's
folder (--config-dir) can have more. They are no group of Hydra, because a study has no keys of one run.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal, get_type_hints

from pe_bench.config.groups import config_dir, names_in
from pe_bench.config.overrides import quote
from pe_bench.config.schema import Protocol
from pe_bench.data.sources import files_in
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.job import IDENTITY_VERSION
from pe_bench.runs.rows import read_rows
from pe_bench.runs.untrusted import parse_mapping, read_json
from pe_bench.system.files import write_text
from pe_bench.values import check_type, shown, unknown

GROUP = "study"
STDLIB = "stdlib"
# What a claim of each kind says, and what its interval is of.
KINDS = {
    "order": ("{of} is better than {than} at {at}", "difference"),
    "falls": ("{of} is better at {at} than at its training length", "change"),
    "rises": ("{of} is worse at {at} than at its training length", "change"),
    "holds": ("{of} holds up to {at}", "change"),
    "breaks": ("{of} degrades or fails at {at}", "change"),
    "breaks_first": ("{of} breaks before {than}", "difference of the changes"),
    "early_tokens": (
        "{of} at {at}: nonoverlapping windows look worse than sliding ones",
        "nonoverlapping minus sliding",
    ),
    "reads_past_window": ("{of} at {at} gains from text beyond its training length", "gain over the window"),
    "stays_in_window": ("{of} at {at} gains nothing beyond its training length", "gain over the window"),
    "solves": ("{of} solves examples of {at} tokens", "right"),
    "misses": ("{of} does not solve examples of {at} tokens", "right"),
}
COMPARING = ("order", "breaks_first")  # two encodings, or one in two sweeps
OF_TASK = ("solves", "misses")
Measure = Literal["level", "change"]
WINDOWS = ("nonoverlapping", "sliding")
QUICK_LENGTH = 32  # its sixteenfold is what experiment=quick scores
QUICK_SEEDS = 2
QUICK_SHARE = 50  # experiment=quick has a fiftieth of the default's tokens
MAX_QUICK_TOKENS = 81_920


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
    """A sentence of a paper as data, of one of `KINDS`. at: over the training length.

    of, than: names that tables give encodings. sweep, than_sweep: which of the study's sweeps they are of,
    where it has several.
    """

    kind: str
    of: str
    source: str
    at: float = 1.0
    than: str = ""
    sweep: str = ""
    than_sweep: str = ""
    measure: Measure = "level"
    protocol: Protocol = "paired"

    @property
    def second(self) -> tuple[str, str]:
        """Return the encoding, and its sweep, that the claim compares `of` with."""
        return self.than or self.of, self.than_sweep or self.sweep


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


PARTS: dict[str, type] = {"sweeps": Sweep, "scorings": ScoringStep, "claims": Claim}


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
        study: Study = _part(Study, parse_mapping(path.read_text(encoding="utf-8")), "study")
        _check(study)
    except (OSError, ValueError, TypeError) as error:  # a key that is missing is a TypeError
        raise UserError(f"{path}: {first_line(error).replace('__init__() ', '')}") from error
    tasks = {sweep.name for sweep in study.sweeps if sweep.task}
    claims = [replace(claim, protocol="task") if claim.sweep in tasks else claim for claim in study.claims]
    return replace(study, name=name, path=path, claims=tuple(claims))


def _part(kind: type[Any], values: Any, key: str) -> Any:
    """Return a mapping of a study's file as a dataclass. Raise `UserError` with the key."""
    require(isinstance(values, Mapping), f"{key} must hold keys and values, not {shown(values)}")
    types = get_type_hints(kind)
    parts: dict[str, Any] = {}
    for name, value in values.items():
        require(name in types, unknown(str(name), f"key of {key}", types))
        if name not in PARTS:
            parts[name] = check_type(value, types[name], f"{key}.{name}")
        else:
            parts[name] = tuple(_part(PARTS[name], one, name) for one in check_type(value, list[Any], name))
    return kind(**parts)


def _check(study: Study) -> None:
    """Raise `UserError` for claims that the study's runs cannot answer."""
    times = study.times
    is_positive = bool(times) and min(times) > 0
    require(is_positive, f"times must be lengths over the training length, such as [1, 2], not {times}")
    steps = [(step.protocol, time) for step in study.scorings for time in step.times]
    for _, time in steps:
        message = f"scorings.times has {time:g}, and times ends at {max(times):g}"
        require(time <= max(times), f"{message}: longer ones have other targets, so add it to times")
    for claim in study.claims:
        what = f"the claim '{claim.kind}' of {claim.of}"
        _check_encodings(study, claim, what)
        for protocol in WINDOWS if claim.kind == "early_tokens" else (claim.protocol,):
            is_scored = (protocol, claim.at) in [*steps, *(("paired", time) for time in times)]
            require(is_scored, f"{what}: {claim.at:g} is not among the times that are scored ({protocol})")


def _check_encodings(study: Study, claim: Claim, what: str) -> None:
    """Raise `UserError` for encodings that the sweeps do not train, or not on what the claim is about."""
    require(claim.kind in KINDS, unknown(claim.kind, "kind of claim", KINDS))
    is_compared = bool(claim.than or claim.than_sweep)
    message = f"{what} compares two encodings or one, and has {2 if is_compared else 1}: see 'than'"
    require(is_compared is (claim.kind in COMPARING), message)
    sweep_of = {sweep.name: sweep for sweep in study.sweeps}
    for label, name in ((claim.of, claim.sweep), claim.second):
        require(name in sweep_of, f"{what}: there is no sweep '{name}', but {', '.join(map(repr, sweep_of))}")
        sweep, trained = sweep_of[name], re.split("[ +@]", label)[0]
        names = ", ".join(sweep.encodings)
        require(trained in sweep.encodings, f"{what}: its sweep trains {names}, not {trained}")
        fits = claim.kind == "order" or (claim.kind in OF_TASK) is bool(sweep.task)
        require(fits, f"{what}: {' and '.join(OF_TASK)} are claims about tasks, order about both, others not")


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


@dataclass(frozen=True)
class Step:
    """A sweep of a study, or a scoring of its runs. is_done: it came to its end.

    runs: the names of its runs. keys: of the rows that this step asked for; a run that several studies share
    has more rows.
    """

    sweep: str
    runs: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
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
            return {
                key: Step(
                    step["sweep"], tuple(step["runs"]), tuple(map(tuple, step["keys"])), step["is_done"]
                )
                for key, step in read_json(self.path).items()
            }
        except (OSError, ValueError, TypeError, KeyError):
            return {}
