"""`try`: train a change beside its baseline, seed by seed, until it is sure which is better."""

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from filelock import FileLock

from pe_bench.config.compose import compose_config
from pe_bench.config.overrides import parse_override, quote
from pe_bench.errors import RunError, UserError, require
from pe_bench.experiment import prepare, train
from pe_bench.report.build import tables_of_rows
from pe_bench.runs.commands import called_with
from pe_bench.runs.rows import ALL
from pe_bench.scored import Run
from pe_bench.system.files import write_json
from pe_bench.system.machine import today
from pe_bench.tries.sequential import FIRST_LOOK, Answer, Difference, Look, look, seeds_to_settle
from pe_bench.values import listed, parse_lengths

TOKENS = 256_000  # that each run trains on
LENGTHS = (128, 512, 2048)
FILE = "tries.json"
# Tries and what confirms them share no seed and no document.
FIRST_SEED = {"try": 0, "confirm": 1_000}
HALF = {"try": "first", "confirm": "second"}
WORD = re.compile(r"""(?:[^\s'"\[]|'[^']*'|"[^"]*"|\[[^\]]*\])+""")

Kind = Literal["try", "confirm"]


@dataclass(frozen=True)
class Try:
    """A change that was tried against a baseline.

    number: its place among the changes tried against that baseline with these settings, from 1. change_run,
    baseline_run: the names of their runs with the first seed, which say all that changes their weights.
    at_training, at_longest: mean differences in bits per byte, None before there is one.
    """

    kind: Kind
    number: int
    change: str
    baseline: str
    change_run: str
    baseline_run: str
    train_length: int
    lengths: list[int]
    date: str
    seeds: int = 0
    answer: str = "unclear"
    at_training: float | None = None
    at_longest: float | None = None

    @property
    def question(self) -> tuple[object, ...]:
        """Return what tries are counted by."""
        return self.kind, self.baseline_run, *self.lengths

    @property
    def key(self) -> tuple[object, ...]:
        return self.question, self.change_run


@dataclass(frozen=True)
class Outcome:
    """What a try found. `print` shows it, and `answer` is better, not better or unclear.

    works_to: the longest length that the change works to, and the baseline; None where none was judged.
    time_ratio: the time of a training step over the baseline's. parameters: how many more there are.
    seconds: that a seed of both took. earlier: what a confirmation confirms, if it was tried before.
    """

    tried: Try
    look: Look
    works_to: tuple[int | None, int | None]
    time_ratio: float
    parameters: int
    seconds: float
    earlier: Try | None

    @property
    def answer(self) -> Answer:
        return self.look.answer

    def __str__(self) -> str:
        tried, seen = self.tried, self.look
        seeds = f"{seen.seeds} {'seed' if seen.seeds == 1 else 'seeds'}"
        works_to, of_baseline = map(_in_words, self.works_to)
        lines = [
            f"{tried.change} against {tried.baseline}: {seen.answer}, "
            f"after {seeds} ({tried.kind} {tried.number} against it)",
            f"  at {tried.train_length:,}, trained: {_of_length(seen, seen.at_training)}",
            f"  at {max(tried.lengths):,}, longest: {_of_length(seen, seen.at_longest)}",
            f"  works to {works_to} ({tried.baseline}: {of_baseline})",
            f"  a step takes {self.time_ratio:.2f} times as long, with {self.parameters:,} parameters more",
        ]
        if seen.answer == "unclear":
            needed, settled = seeds_to_settle(seen), "no number of seeds would settle it"
            if needed is not None:
                minutes = max(1, math.ceil((needed - seen.seeds) * self.seconds / 60))
                settled = f"about {needed} seeds in all would settle it: give --minutes {minutes}"
            lines.append(f"  at these differences {settled}")
        if self.earlier is not None and self.earlier.at_training is not None:
            means = f"{self.earlier.at_training:+.4f} and {self.earlier.at_longest:+.4f}"
            lines.append(f"  when it was tried: {means}, {self.earlier.answer}")
        return "\n".join(lines)


def read_tries(results_dir: Path) -> list[Try]:
    """Return all tries of a results folder, in their order. Raise `UserError` for a damaged file."""
    path = results_dir / FILE
    if not path.exists():
        return []
    try:
        return [Try(**entry) for entry in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        way_out = "it counts tries, so mend it, or move it away to count from 1"
        raise UserError(f"{path} is damaged ({error}); {way_out}") from error


def _keep(results_dir: Path, tried: Try) -> Try:
    """Add a try to the file with its number, or replace what the file says of it; return it.

    It counts from its first look, whatever comes of it.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(results_dir / f"{FILE}.lock"):  # else one of two commands loses what the other counted
        tries = {entry.key: entry for entry in read_tries(results_dir)}
        if not tried.number:
            number = 1 + sum(entry.question == tried.question for entry in tries.values())
            tried = tries.get(tried.key) or replace(tried, number=number)
        tries[tried.key] = tried
        entries = [asdict(entry) for entry in tries.values()]
        write_json(results_dir / FILE, entries)
    return tried


def overrides_in(text: str) -> list[str]:
    """Return what trains `rope base=500000`, `my.py:RootBias` or `rope+logn`, as overrides."""
    words = WORD.findall(text)
    require(bool(words), f"'{text}' names no encoding; say my.py:RootBias, 'rope base=500000' or rope+logn")
    name, *options = words
    encoding, *modifiers = name.split("+")
    for option in options:
        require("=" in option, f"'{text}': {option} is no option; say KEY=VALUE, such as base=500000")
    of_encoding = [option if "." in option.split("=")[0] else f"encoding.{option}" for option in options]
    of_modifiers = [f"modifier=[{','.join(modifiers)}]"] if modifiers else []
    return [f"encoding={encoding}", *of_modifiers, *of_encoding]


def try_change(
    change: str,
    *overrides: str,
    against: str,
    minutes: float,
    lengths: str | Sequence[int] | None,
    confirm: bool,
    config_dir: str | Path | None,
    results_dir: str | Path,
    check: Callable[[], None] = lambda: None,
) -> Outcome:
    """Do what `pe_bench.try_change` says. check: called before anything is written."""
    end = time.monotonic() + 60 * minutes
    require(0 < minutes < math.inf, f"--minutes must be above 0, not {minutes:g}")
    kind: Kind = "confirm" if confirm else "try"
    results, search = Path(results_dir), [] if config_dir is None else [Path(config_dir)]
    numbers = parse_lengths(",".join(map(str, listed(lengths) or LENGTHS)))
    shared = _shared_overrides(kind, numbers, results, overrides)

    def of_seed(text: str, seed: int) -> list[str]:
        return [*overrides_in(text), *shared, f"seed={FIRST_SEED[kind] + seed}"]

    tried = _prepared(kind, [of_seed(text, 0) for text in (change, against)], search)
    check()
    tried = _keep(results, tried)
    earlier = tried.seeds  # which are looked at again whatever the time: an answer is that of all there are
    pairs: list[tuple[Run, Run]] = []
    took: list[float] = []
    while True:
        began = time.monotonic()
        of_baseline, of_change = (_run(of_seed(text, len(pairs)), search) for text in (against, change))
        pairs.append((of_change, of_baseline))
        took.append(time.monotonic() - began)
        at_training, at_longest = (
            [_difference(*pair, length) for pair in pairs]
            for length in (tried.train_length, tried.lengths[-1])
        )
        seen = look(at_training, at_longest, tried.number, of_change.margin)
        means = {"at_training": float(seen.at_training.mean), "at_longest": float(seen.at_longest.mean)}
        tried = replace(tried, seeds=len(pairs), answer=seen.answer, **means)
        is_sure, has_all = seen.answer != "unclear", len(pairs) >= earlier
        if is_sure or has_all:
            _keep(results, tried)
        if is_sure or (has_all and time.monotonic() + max(took[-2:]) > end):
            break
    return _outcome(tried, seen, pairs, median(took), results)


def _outcome(
    tried: Try, seen: Look, pairs: Sequence[tuple[Run, Run]], seconds: float, results: Path
) -> Outcome:
    """Return what a try found. pairs: of runs of the change and of the baseline, one a seed."""
    confirmed = ("try", tried.change, tried.baseline, tried.lengths) if tried.kind == "confirm" else None
    kept = read_tries(results)
    confirms = (each for each in kept if confirmed == (each.kind, each.change, each.baseline, each.lengths))
    works_to = _works_to([run for run, _ in pairs], results), _works_to([run for _, run in pairs], results)
    first = [(run.scored[0], other.scored[0]) for run, other in pairs]
    time_ratio = median(other.tokens_per_second / row.tokens_per_second for row, other in first)
    parameters = first[0][0].parameters - first[0][1].parameters
    return Outcome(tried, seen, works_to, time_ratio, parameters, seconds, next(confirms, None))


def _shared_overrides(
    kind: Kind, lengths: Sequence[int], results: Path, overrides: Sequence[str]
) -> list[str]:
    """Return the overrides of both runs. Raise `UserError` for one of what a try chooses itself."""
    for override in map(parse_override, overrides):
        message = f"{override}: a try chooses the seeds and the documents itself: leave it out"
        require(override.key not in ("seed", "eval.half"), message)
        require(override.key != "results_dir", f"{override}: say --results-dir, where tries are counted too")
    return [
        *(f"train.tokens={TOKENS}", "eval.controls=none", f"eval.half={HALF[kind]}"),
        *(f"eval.lengths=[{','.join(map(str, lengths))}]", f"results_dir={quote(str(results))}"),
        *overrides,
    ]


def _prepared(kind: Kind, overrides: Sequence[Sequence[str]], search: Sequence[Path]) -> Try:
    """Return what is to be tried. Raise `UserError` for what cannot work."""
    change, baseline = (prepare(compose_config(one, search))[0] for one in overrides)
    train_length = change.config.train.length
    lengths = change.config.eval.resolved_lengths(train_length)
    message = f"--lengths {lengths[-1]} is not above train.length={train_length}: add a longer one"
    require(lengths[-1] > train_length, message)
    runs = change.folder.name, baseline.folder.name
    require(runs[0] != runs[1], f"{change.label} is compared with itself: name another --against")
    return Try(kind, 0, change.label, baseline.label, *runs, train_length, lengths, today())


def _run(overrides: Sequence[str], search: Sequence[Path]) -> Run:
    config = compose_config(overrides, search)
    with called_with(overrides):
        run = Run(*train(config), config.report.margin)
    if run.failure:
        raise RunError(run.failure)
    return run


def _difference(change: Run, baseline: Run, length: int) -> float:
    """Return the difference in bits per byte of two runs on the same targets; negative is better."""
    one, other = (
        next(row for row in run.scored if row.length == length and row.slice == ALL)
        for run in (change, baseline)
    )
    if other.bits_per_byte is None:
        message = (
            f"the baseline {baseline.name} has no number at {length} tokens ({other.reason or other.status})"
        )
        raise RunError(f"{message}: name another with --against, or shorter --lengths")
    if one.bits_per_byte is None:
        return math.inf
    return one.bits_per_byte - other.bits_per_byte


def _works_to(runs: Sequence[Run], results_dir: Path) -> int | None:
    """Return the longest length that an encoding works to, over all its seeds."""
    rows = [row for run in runs for row in run.scored]
    [table] = tables_of_rows(rows, results_dir, runs[0].margin)
    [line] = (line for line in table.lines if line.label == rows[0].encoding)
    return line.break_point.works_to


def _in_words(works_to: int | None) -> str:
    return "an unknown length" if works_to is None else f"{works_to:,}" if works_to else "no length"


def _of_length(seen: Look, difference: Difference) -> str:
    if not math.isfinite(difference.mean):
        return "no number"
    if seen.seeds < FIRST_LOOK:
        return f"{difference.mean:+.4f} bits/byte; an interval needs {FIRST_LOOK} seeds"
    low, high = difference.bound(seen.alpha)
    return f"{difference.mean:+.4f} bits/byte, from {low:+.4f} to {high:+.4f}"
