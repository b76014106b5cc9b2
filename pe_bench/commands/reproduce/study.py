"""A study: its runs, and the claims of papers that the runs test; one YAML file for each study.

The files lie with all other YAML, in configs/study: so they are installed with the package, and a user's
folder (--config-dir) can have more. They are no group of Hydra, because a study has no keys of one run.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from pe_bench.commands.reproduce.papers import (
    KINDS_OF_RESTORING,
    NOT_IN_FILE,
    Claim,
    LedgerClaim,
    check_claim,
    ledger_claims,
    parse_record,
)
from pe_bench.config.compose import choose_encoding
from pe_bench.config.groups import config_dir, names_in
from pe_bench.config.overrides import quote
from pe_bench.config.schema import Protocol
from pe_bench.errors import UserError, first_line, require
from pe_bench.runs.untrusted import parse_mapping
from pe_bench.values import AtLeast1, Natural, Positive, unknown

KINDS_WITHOUT_LENGTH = ("breaks_first",)  # kinds of claims that do not read the field `at`
KINDS_WITH_SINCE = ("falls", "rises", "changes_by", "breaks")  # kinds that read the field `since`
KINDS_OF_TASKS = ("solves", "misses")  # kinds about the answers of a task
STUDY_FOLDER = "study"
STDLIB = "stdlib"
QUICK_LENGTH = 32  # the training length of the toy; 16 times this is the longest length of experiment=quick
QUICK_SEEDS = 2
QUICK_TOKENS_DIVISOR = 50  # the toy trains on a fiftieth of the tokens, as experiment=quick does
MAX_QUICK_TOKENS = 81_920


@dataclass(frozen=True)
class Sweep:
    """A sweep of a study: a run for each encoding and seed.

    Sweeps may share a name if they differ only in encodings or seeds.
    """

    encodings: list[str]
    name: str = ""  # the name by which claims and other sweeps refer to it
    tokens: Natural = 0  # the tokens that each run trains on; 0 for the tokens of the study
    seeds: Natural = 0  # 0 for the seeds of the study
    times: Positive = 1.0  # the training length over the study's training length
    task: str = ""  # a task in place of text
    overrides: list[str] = field(default_factory=list)  # applied after the overrides of the study
    after: str = ""  # an earlier sweep of one encoding, whose runs are trained further (`train.from`)
    # An earlier sweep of one encoding, with whose runs the runs of this sweep are compared (`train.beside`).
    beside: str = ""
    # The folder of a Hugging Face model, which is scored and not trained; `encodings` then has its own one.
    hf_model: str = ""
    scored_with: list[str] = field(default_factory=list)  # further encodings to score that model under
    get: str = ""  # a command that makes that folder

    @property
    def run_encodings(self) -> list[str]:
        """Return the encodings of which the sweep makes a run for each seed."""
        return [*self.encodings, *self.scored_with]

    @property
    def parent_sweep(self) -> str:
        """Return the name of the sweep whose runs are the parents of this sweep's runs; empty for none."""
        return self.after or self.beside


@dataclass(frozen=True)
class ScoringStep:
    """More scores of the runs of a study, as `eval` makes them."""

    times: list[Positive]  # the lengths over the training length
    protocol: Protocol = "paired"
    scored_with: list[str] | None = None  # values of --with, which must fit each of the runs
    controls: str = "none"  # the lengths that get controls: auto, offset, all or none
    of: list[str] = field(default_factory=list)  # names of sweeps; empty for all
    encodings: list[str] = field(default_factory=list)  # names of encodings; empty for all

    def applies_to(self, sweep: Sweep, encoding: str) -> bool:
        """Return whether this scoring includes the runs of an encoding of a sweep."""
        is_of_sweep = not self.of or sweep.name in self.of
        return is_of_sweep and (not self.encodings or encoding in self.encodings)


@dataclass(frozen=True)
class Study:
    """A study as its file gives it; the fields from `name` on are not in the file (`NOT_IN_FILE`)."""

    title: str
    question: str
    source: str  # the papers and pages that the study repeats
    minutes: int  # an estimate for two cores, or one GPU
    sweeps: tuple[Sweep, ...]
    times: list[Positive]  # lengths that are scored, over `length`
    claims: tuple[Claim, ...] = ()
    seeds: AtLeast1 = 3  # the number of seeds of each encoding
    # The training length; of a Hugging Face model, the length from which changes are measured.
    length: AtLeast1 = 128
    tokens: AtLeast1 = 1_024_000  # the tokens that each run trains on
    overrides: list[str] = field(default_factory=list)  # the overrides of every run
    # The overrides of the toy size, after all others.
    quick_overrides: list[str] = field(default_factory=list)
    scorings: tuple[ScoringStep, ...] = ()
    # With a table and a picture by training tokens or by parameters of the model.
    over: Literal["", "tokens", "parameters"] = ""
    explains: bool = False  # whether `explain` explains the runs
    name: str = field(default="", metadata=NOT_IN_FILE)  # the name of the file
    path: Path = field(default=Path(), metadata=NOT_IN_FILE)
    size: str = field(default="full", metadata=NOT_IN_FILE)  # or quick for a toy
    text: str = field(default=STDLIB, metadata=NOT_IN_FILE)  # or a folder with text files
    search: tuple[Path, ...] = field(default=(), metadata=NOT_IN_FILE)  # folders with the user's own YAML

    @property
    def n_runs(self) -> int:
        """Return the number of runs; a run that two sweeps of one name share counts once."""
        seeds_of_encodings: dict[tuple[str, str], int] = {}
        for sweep in self.sweeps:
            for encoding in sweep.run_encodings:
                key = sweep.name, encoding
                seeds_of_encodings[key] = max(seeds_of_encodings.get(key, 0), self.seeds_of(sweep))
        return sum(seeds_of_encodings.values())

    def sweep(self, name: str) -> Sweep:
        """Return the first sweep of a name."""
        return next(sweep for sweep in self.sweeps if sweep.name == name)

    def scorings_of(self, sweep: Sweep) -> list[ScoringStep]:
        """Return the scorings that apply to at least one encoding of a sweep."""
        found = []
        for scoring in self.scorings:
            if any(scoring.applies_to(sweep, encoding) for encoding in sweep.encodings):
                found.append(scoring)
        return found

    def labels_of(self, sweep: Sweep) -> Iterator[str]:
        """Yield the labels of a sweep: each encoding, then its scalings (`rope -> yarn factor=auto`)."""
        for encoding in sweep.encodings:
            yield encoding
            for scoring in self.scorings:
                if scoring.applies_to(sweep, encoding):
                    for other in scoring.scored_with or []:
                        yield f"{encoding} -> {other}"

    def seeds_of(self, sweep: Sweep) -> int:
        """Return the number of seeds of a sweep; the sweep of a toy has no more than `QUICK_SEEDS`."""
        seeds = sweep.seeds or self.seeds
        return min(seeds, QUICK_SEEDS) if self.size == "quick" else seeds

    @property
    def table_path(self) -> Path:
        """Return the path of the study's table, which is beside the study's file and is installed with it."""
        return self.path.with_suffix(".csv")

    def picture_path(self, results_dir: Path) -> Path:
        """Return the path of the study's picture, which shows the runs that are scored so far."""
        words = [self.name]
        if self.size == "quick":
            words.append("quick")
        if self.text != STDLIB:
            words.append("files")
        return results_dir / "studies" / f"{'-'.join(words)}.png"

    def quick(self) -> "Study":
        """Return the study in its toy size, for any machine."""
        return replace(self, size="quick", length=QUICK_LENGTH, seeds=min(self.seeds, QUICK_SEEDS))

    def lengths(self, times: Iterable[float]) -> list[int]:
        """Return the lengths, in tokens, at these multiples of the training length."""
        return sorted({round(time * self.length) for time in times})

    def shared_overrides(self, sweep: Sweep) -> Iterator[str]:
        """Yield the overrides that all runs of a sweep have in common."""
        tokens = sweep.tokens or self.tokens
        lengths = self.lengths(self.times)
        is_quick = self.size == "quick"
        scored_lengths = f"eval.lengths=[{','.join(map(str, lengths))}]"
        if sweep.task:
            yield f"task={sweep.task}"
        elif self.text == STDLIB:
            yield f"data={STDLIB}"
        else:
            yield from ("data=files", f"data.path={quote(self.text)}")
        max_length = f"eval.max_length={lengths[-1]}"
        overrides = (*self.overrides, *sweep.overrides)
        if sweep.hf_model:
            yield from (scored_lengths, max_length, *overrides)
            return
        if is_quick:
            yield "experiment=quick"
            tokens = min(tokens // QUICK_TOKENS_DIVISOR, MAX_QUICK_TOKENS)
        yield f"train.length={round(sweep.times * self.length)}"
        yield f"train.tokens={tokens}"
        yield scored_lengths
        if not sweep.task:
            yield max_length
        yield from overrides
        if is_quick:
            yield from self.quick_overrides


def spell_tokens(tokens: int) -> str:
    """Return a rounded number of tokens: `4M` for 4,096,000; empty for 0."""
    if not tokens:
        return ""
    if tokens >= 1e6:
        return f"{tokens / 1e6:.0f}M"
    return f"{tokens / 1e3:.0f}k"


RECORD_TYPES: dict[str, type] = {"sweeps": Sweep, "scorings": ScoringStep, "claims": Claim}


def study_names(search: Sequence[Path] = ()) -> list[str]:
    return names_in(STUDY_FOLDER, search)


def read_study(name: str, search: Sequence[Path] = ()) -> Study:
    """Return a study by its name. Raises `UserError` for an unknown name and for an invalid file."""
    names = study_names(search)
    require(name in names, unknown(name, "study", names))
    folders = [*reversed(search), config_dir()]
    paths = [folder / STUDY_FOLDER / f"{name}.yaml" for folder in folders]
    path = next(filter(Path.is_file, paths))
    try:
        values = parse_mapping(path.read_text(encoding="utf-8"))
        way_out = "take it out, and give the text to the command: `pe-bench reproduce NAME --text DIR`"
        require("text" not in values, f"text is no key of a study's file: {way_out}")
        study: Study = parse_record(Study, values, "study", RECORD_TYPES)
        if path.parent.parent == config_dir():
            study = replace(study, claims=(*study.claims, *ledger_claims(name)))
        _check_study(study)
        _check_claims(study, search)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {first_line(error)}") from error
    return replace(study, name=name, path=path, search=tuple(search))


def _check_study(study: Study) -> None:
    """Raise `UserError` for claims, sweeps and scorings that do not fit together or name unknown sweeps."""
    require(bool(study.sweeps), "sweeps is empty: give at least one sweep, with its encodings")
    require(bool(study.times), "times is empty: give the lengths to score, such as [1, 2, 4]")
    earlier = [""]
    for sweep in study.sweeps:
        require(bool(sweep.encodings), f"the sweep '{sweep.name}' has no encodings: give at least one")
        message = f"the sweep '{sweep.name}' needs an earlier one, and '{sweep.parent_sweep}' is none"
        require(sweep.parent_sweep in earlier, message)
        earlier.append(sweep.name)
        message = f"the sweep '{sweep.name}' has scored_with or get, which only a Hugging Face model has"
        is_complete = not (sweep.scored_with or sweep.get)
        require(bool(sweep.hf_model) or is_complete, message)
        encodings = len(sweep.encodings)
        message = f"the Hugging Face model {sweep.hf_model} has one encoding of its own, not {encodings}"
        require(not sweep.hf_model or encodings == 1, message)
        message = (
            f"explains: explain reads runs that were trained on text, and the sweep '{sweep.name}' has none"
        )
        is_trained_on_text = not (sweep.hf_model or sweep.task)
        require(is_trained_on_text or not study.explains, message)
    for claim in study.claims:
        check_claim(claim)
        message = f"a claim of kind {claim.kind} needs a study with explains: true"
        require(study.explains or claim.kind not in KINDS_OF_RESTORING, message)
    names_of_sweeps: list[str] = []
    for claim in study.claims:
        names_of_sweeps += [claim.sweep, claim.than_sweep]
    for scoring in study.scorings:
        names_of_sweeps += scoring.of
    for name in names_of_sweeps:
        require(name in earlier, unknown(name, "sweep", earlier))
    for scoring in study.scorings:
        sweeps = [sweep for sweep in study.sweeps if not scoring.of or sweep.name in scoring.of]
        trained = list(chain.from_iterable(sweep.encodings for sweep in sweeps))
        for name in scoring.encodings:
            require(name in trained, unknown(name, "encoding of a scoring", trained))


def _check_claims(study: Study, search: Sequence[Path]) -> None:
    """Raise `UserError` for a claim about an encoding, a length or a task that no run of the study has.

    Predictions may be about scores that do not exist yet. search: folders with the user's own YAML.
    """
    for claim in study.claims:
        if isinstance(claim, LedgerClaim) and claim.rule:
            continue
        _check_encoding(study, claim.kind, claim.of, claim.sweep, search)
        _check_encoding(study, claim.kind, claim.than or claim.of, claim.than_sweep or claim.sweep, search)
        _check_lengths(study, claim)
        is_of_task = claim.kind in KINDS_OF_TASKS or claim.protocol == "task"
        message = f"a claim of kind {claim.kind} is about a task, and the sweep '{claim.sweep}' has none"
        way_out = "give the sweep a task, such as copy, or take another kind and protocol"
        has_task = any(sweep.task for sweep in study.sweeps if sweep.name == claim.sweep)
        require(has_task or not is_of_task, f"{message}: {way_out}")


def _check_encoding(study: Study, kind: str, label: str, name: str, search: Sequence[Path]) -> None:
    """Raise `UserError` unless a sweep of this name has the encoding of a claim.

    A label has options and modifiers that the study's file may lack, so it is enough that one of its names
    is in the file.
    """
    sweeps = [sweep for sweep in study.sweeps if sweep.name == name]
    names = ", ".join(dict.fromkeys(sweep.name for sweep in study.sweeps))
    require(bool(sweeps), f"a claim of kind {kind} names no sweep: give its sweep, one of {names}")
    if any(sweep.hf_model for sweep in sweeps):
        return  # the label follows from the model
    encodings = list(dict.fromkeys(chain.from_iterable(sweep.encodings for sweep in sweeps)))
    place = f"the sweep '{name}' has" if name else "the study has"
    trained = f"{place} {', '.join(encodings)}"
    message = f"a claim of kind {kind} names no encoding, and {trained}: name one"
    require(bool(label) or len(encodings) == 1, message)
    scored: list[str] = []
    for scoring in study.scorings:
        if any(scoring.applies_to(sweep, each) for sweep in sweeps for each in sweep.encodings):
            scored += scoring.scored_with or []
    own, _, scaling = label.partition(" -> ")
    message = f"a claim of kind {kind} is about '{own}', and {trained}: name one of them"
    require(not own or _has_name_of(own, encodings, search), message)
    message = f"a claim of kind {kind} is about '{label}', and {place} no such scores"
    scorings = ", ".join(scored) or "none"
    way_out = f"name one of scored_with ({scorings}), or add {scaling} to scored_with"
    require(not scaling or _has_name_of(scaling, scored, search), f"{message}: {way_out}")


def _has_name_of(label: str, texts: Sequence[str], search: Sequence[Path]) -> bool:
    """Return whether a label has the name of one of these encodings, or the name in its YAML file.

    texts: encodings as a study's file has them, such as `rope+gate` or `yarn factor=4`.
    """
    words = {*re.split("[ +,]", label)}
    names = {*chain.from_iterable(re.split("[+,]", text.partition(" ")[0]) for text in texts)}
    if words & names:
        return True
    for name in names - {"", *names_in("modifier", search)}:
        try:
            encoding = choose_encoding(name, [], search)
        except UserError:
            return True  # an unknown encoding is said before the first run
        if words & {encoding.get("name"), *encoding.get("modifiers", {})}:
            return True
    return False


def _check_lengths(study: Study, claim: Claim) -> None:
    """Raise `UserError` for a claim at or from a length at which the study scores nothing."""
    overrides = chain(study.overrides, *(sweep.overrides for sweep in study.sweeps))
    if any("eval.lengths=" in text for text in overrides):
        return
    times = {*study.times, *chain.from_iterable(scoring.times for scoring in study.scorings)}
    # A run is always scored at its training length, too.
    times |= {sweep.times for sweep in study.sweeps if not sweep.hf_model}
    wanted = {} if claim.kind in KINDS_WITHOUT_LENGTH else {"at": claim.at}
    if claim.kind in KINDS_WITH_SINCE:
        wanted["since"] = claim.since
    for key, value in wanted.items():
        message = f"a claim of kind {claim.kind} has {key}: {value:g}, and the study scores nothing there"
        there = ", ".join(f"{time:g}" for time in sorted(times))
        is_scored = set(study.lengths([value])) <= set(study.lengths(times))
        require(is_scored, f"{message}: add {value:g} to times, or take one of {there}")


@dataclass(frozen=True)
class FinishedStep:
    """A finished sweep of a study, or a finished scoring of a sweep's runs: the runs and their rows."""

    sweep: str
    runs: tuple[str, ...]  # the names of the runs
    # The keys of the rows of this step; a run that several studies share has more rows.
    keys: Set[tuple[str, ...]]
    # Of a sweep: the encoding of each run, as the study's file has it.
    encodings: Mapping[str, str] = field(default_factory=dict)
