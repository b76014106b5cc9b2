"""A study: its runs, and the claims of papers that the runs test; one YAML file for each study.

The files lie with all other YAML, in configs/study: so they are installed with the package, and a user's
folder (--config-dir) can have more. They are no group of Hydra, because a study has no keys of one run.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pe_bench.commands.reproduce.papers import Claim, check_claim, ledger_claims, part_of
from pe_bench.config.groups import config_dir, names_in
from pe_bench.config.overrides import quote
from pe_bench.config.schema import Protocol
from pe_bench.errors import UserError, first_line, require
from pe_bench.runs.untrusted import parse_mapping
from pe_bench.values import unknown

GROUP = "study"
STDLIB = "stdlib"
QUICK_LENGTH = 32  # its sixteenfold is what experiment=quick scores
QUICK_SEEDS = 2
QUICK_SHARE = 50  # experiment=quick has a fiftieth of the default's tokens
MAX_QUICK_TOKENS = 81_920


@dataclass(frozen=True)
class Sweep:
    """Runs of each encoding with each seed.

    tokens: that each trains on; 0 for those of the study. seeds: how many; 0 for those of the study. times:
    the length that it trains at, over the study's. task: in place of text. overrides: after those of the
    study. after, beside: the name of an earlier sweep of one encoding, whose runs these go on from
    (`train.from`) or stand beside. Sweeps may share a name where they differ in encodings or seeds alone.
    checkpoint: the name of a checkpoint's folder, which is scored and not trained; encodings then has the one
    that the checkpoint has, and scored_with others to score it under. get: a command that makes that folder.
    """

    encodings: list[str]
    name: str = ""
    tokens: int = 0
    seeds: int = 0
    times: float = 1.0
    task: str = ""
    overrides: list[str] = field(default_factory=list)
    after: str = ""
    beside: str = ""
    checkpoint: str = ""
    scored_with: list[str] = field(default_factory=list)
    get: str = ""

    @property
    def source(self) -> str:
        """Return the name of the sweep that its runs need."""
        return self.after or self.beside


@dataclass(frozen=True)
class ScoringStep:
    """More scores of the runs of a study, as `eval` makes them. times: lengths over the training length.

    of: the names of sweeps; all where none is named. encodings: the names of encodings; all where none is
    named. scored_with: values of --with, which all of these runs must be able to take.
    """

    times: list[float]
    protocol: Protocol = "paired"
    scored_with: list[str] | None = None
    controls: str = "none"
    of: list[str] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)

    def is_of(self, sweep: Sweep, encoding: str) -> bool:
        """Return whether it scores the runs of an encoding of a sweep."""
        is_of_sweep = not self.of or sweep.name in self.of
        return is_of_sweep and (not self.encodings or encoding in self.encodings)


@dataclass(frozen=True)
class Study:
    """A study as its file gives it.

    minutes: an estimate for two cores, or one GPU. length: the training length, or the length from which
    changes of a checkpoint are measured. times: lengths that are scored, over `length`.
    overrides: of every run. quick_overrides: of the toy size, after all others. over: `tokens` or
    `parameters` for a study of what a longer training or a larger model changes, with a table and a picture
    by tokens or by parameters. The fields from `name` on are not in the file. name: the file's. size: full,
    or quick for a toy. text: `stdlib`, or a folder with text files. search: folders with the user's own YAML.
    """

    title: str
    question: str
    source: str
    minutes: int
    sweeps: tuple[Sweep, ...]
    times: list[float]
    claims: tuple[Claim, ...] = ()
    seeds: int = 3
    length: int = 128
    tokens: int = 1_024_000
    overrides: list[str] = field(default_factory=list)
    quick_overrides: list[str] = field(default_factory=list)
    scorings: tuple[ScoringStep, ...] = ()
    over: Literal["", "tokens", "parameters"] = ""
    explains: bool = False
    name: str = ""
    path: Path = Path()
    size: str = "full"
    text: str = STDLIB
    search: tuple[Path, ...] = ()

    @property
    def runs(self) -> int:
        """Return the number of runs; a run that two sweeps of one name share counts once."""
        seeds: dict[tuple[str, str], int] = {}
        for sweep in self.sweeps:
            for encoding in (*sweep.encodings, *sweep.scored_with):
                key = sweep.name, encoding
                seeds[key] = max(seeds.get(key, 0), self.seeds_of(sweep))
        return sum(seeds.values())

    def scorings_of(self, sweep: Sweep) -> list[ScoringStep]:
        """Return the scorings of the runs of a sweep, or of some of them."""
        return [
            scoring
            for scoring in self.scorings
            if any(scoring.is_of(sweep, encoding) for encoding in sweep.encodings)
        ]

    def labels_of(self, sweep: Sweep) -> Iterator[str]:
        """Yield the encodings of a sweep, each before itself under others (`rope -> yarn factor=auto`)."""
        for encoding in sweep.encodings:
            yield encoding
            for scoring in self.scorings:
                if scoring.is_of(sweep, encoding):
                    yield from (f"{encoding} -> {other}" for other in scoring.scored_with or [])

    def seeds_of(self, sweep: Sweep) -> int:
        """Return the number of seeds of a sweep; the sweep of a toy has no more than `QUICK_SEEDS`."""
        seeds = sweep.seeds or self.seeds
        return min(seeds, QUICK_SEEDS) if self.size == "quick" else seeds

    @property
    def table(self) -> Path:
        """Return the path of the study's table, which is beside the study's file and is installed with it."""
        return self.path.with_suffix(".csv")

    def picture(self, results_dir: Path) -> Path:
        """Return the path of the study's picture, which is drawn when all runs are done."""
        words = [self.name]
        if self.size == "quick":
            words.append("quick")
        if self.text != STDLIB:
            words.append("files")
        return results_dir / "studies" / f"{'-'.join(words)}.png"

    def quick(self) -> "Study":
        """Return its toy size, for any machine."""
        return replace(self, size="quick", length=QUICK_LENGTH, seeds=min(self.seeds, QUICK_SEEDS))

    def lengths(self, times: Iterable[float]) -> list[int]:
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
        if sweep.checkpoint:
            yield from (scored_lengths, f"eval.max_length={lengths[-1]}", *self.overrides, *sweep.overrides)
            return
        if is_quick:
            yield "experiment=quick"
            tokens = min(tokens // QUICK_SHARE, MAX_QUICK_TOKENS)
        yield f"train.length={round(sweep.times * self.length)}"
        yield f"train.tokens={tokens}"
        yield scored_lengths
        if not sweep.task:
            yield f"eval.max_length={lengths[-1]}"
        yield from (*self.overrides, *sweep.overrides)
        if is_quick:
            yield from self.quick_overrides


def spell_tokens(tokens: int) -> str:
    """Return a number of tokens as a person says it: `4M` for 4,096,000; empty for 0."""
    if not tokens:
        return ""
    return f"{tokens / 1e6:.0f}M" if tokens >= 1e6 else f"{tokens / 1e3:.0f}k"


PARTS: dict[str, type] = {"sweeps": Sweep, "scorings": ScoringStep, "claims": Claim}


def study_names(search: Sequence[Path] = ()) -> list[str]:
    return names_in(GROUP, search)


def read_study(name: str, search: Sequence[Path] = ()) -> Study:
    """Return the study of that name. Raises `UserError` where there is none, or its file cannot be used."""
    names = study_names(search)
    require(name in names, unknown(name, "study", names))
    folders = [*reversed(search), config_dir()]
    path = next(path for folder in folders if (path := folder / GROUP / f"{name}.yaml").is_file())
    try:
        study: Study = part_of(Study, parse_mapping(path.read_text(encoding="utf-8")), "study", PARTS)
        if path.parent.parent == config_dir():
            study = replace(study, claims=(*study.claims, *ledger_claims(name)))
        _check(study)
    except (OSError, ValueError, TypeError) as error:  # a key that is missing is a TypeError
        raise UserError(f"{path}: {first_line(error).replace('__init__() ', '')}") from error
    return replace(study, name=name, path=path, search=tuple(search))


def _check(study: Study) -> None:
    """Raise `UserError` for unknown kinds of claims and unknown names of sweeps."""
    earlier = [""]
    for sweep in study.sweeps:
        message = f"the sweep '{sweep.name}' needs an earlier one, and '{sweep.source}' is none"
        require(sweep.source in earlier, message)
        earlier.append(sweep.name)
        message = f"the sweep '{sweep.name}' has scored_with or get, which only a checkpoint has"
        require(bool(sweep.checkpoint) or not (sweep.scored_with or sweep.get), message)
        message = f"the checkpoint {sweep.checkpoint} has one encoding of its own, not {len(sweep.encodings)}"
        require(not sweep.checkpoint or len(sweep.encodings) == 1, message)
        message = (
            f"explains: explain reads runs that were trained on text, and the sweep '{sweep.name}' has none"
        )
        require(not study.explains or not (sweep.checkpoint or sweep.task), message)
    for claim in study.claims:
        check_claim(claim)
    named: list[str] = []
    for claim in study.claims:
        named += [claim.sweep, claim.than_sweep]
    for scoring in study.scorings:
        named += scoring.of
    for name in named:
        require(name in earlier, unknown(name, "sweep", earlier))


@dataclass(frozen=True)
class Step:
    """A finished sweep of a study, or a scoring of its runs.

    runs: the names of its runs. keys: of the rows that this step asked for; a run that several studies share
    has more rows.
    """

    sweep: str
    runs: tuple[str, ...]
    keys: Set[tuple[str, ...]]
