"""`try`: train a change beside its baseline, seed by seed, until it is sure which is better."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Literal

from pe_bench.commands.evaluate import Run
from pe_bench.commands.train import prepare, train
from pe_bench.commands.try_change import sequential
from pe_bench.commands.try_change.sequential import FIRST_LOOK, LOOKS, Look, look, seeds_to_settle
from pe_bench.config.arguments import overrides_in
from pe_bench.config.schema import Config
from pe_bench.config.sweeps import Planned, by_key, planned_job
from pe_bench.errors import RunError, UserError, require
from pe_bench.report.build import tables_of_rows
from pe_bench.report.records import BITS, NATS, BreakPoint, Line
from pe_bench.runs.job import hashed
from pe_bench.runs.rows import ALL, APART, Row, has_number, level_of
from pe_bench.runs.typed import called_with
from pe_bench.system.cost import Cost, count, said_once
from pe_bench.system.files import Lock, write_json
from pe_bench.system.machine import today
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.system.terminal import say
from pe_bench.system.version import own_version
from pe_bench.values import listed, parse_lengths

TOKENS = 256_000  # that each run trains on
LENGTHS = (128, 512, 2048)
FOLDER = "tries"  # of the runs, in the folder of results: they are no results to report
FILE = "tries.json"
# Tries and what confirms them share no seed and no document.
FIRST_SEED = {"try": 0, "confirm": 1_000}
HALF = {"try": "first", "confirm": "second"}
# What evaluation does besides, and how fast: no try is judged by it.
NOT_JUDGED = ("controls", "per_position", "batch_tokens")

Kind = Literal["try", "confirm"]


# `no verdict`: a side has learned nothing. The last three are of tries without an answer.
Answer = Literal[sequential.Answer, "no verdict"]
Ending = Literal["not finished", "stopped", "failed"]


@dataclass(frozen=True)
class Try:
    """A change that was tried against a baseline.

    number: its place among what was tried against that baseline, from 1. change_run, baseline_run: the names
    of their runs with the first seed, which say all that changes their weights. evaluation: a hash of the
    targets that are scored, and how; empty in files of earlier versions. at_training, at_longest: mean
    differences in bits per byte, or nats per token where the tokenizer loses text; None before there is one.
    checked_by: the version of pe-bench that checked the change's code; empty where none did.
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
    answer: Answer | Ending = "not finished"
    at_training: float | None = None
    at_longest: float | None = None
    evaluation: str = ""
    checked_by: str = ""

    @property
    def question(self) -> tuple[str, str]:
        """Return the key that tries are counted by; another evaluation gives another chance of an error."""
        return self.kind, self.baseline_run

    def is_same(self, other: "Try") -> bool:
        """Return whether this is the same change, judged by the same targets."""
        is_same_change = (self.question, self.change_run) == (other.question, other.change_run)
        is_known = bool(self.evaluation and other.evaluation)
        is_same_evaluation = self.evaluation == other.evaluation or not is_known
        return is_same_change and self.lengths == other.lengths and is_same_evaluation


@dataclass(frozen=True)
class Outcome:
    """What a try found. `print` shows it, and `answer` is better, not better, mixed, unclear or no verdict.

    unlearned: the labels of what has learned nothing, which is not judged. works_to: the break points of
    the change and of the baseline. time_ratio: the time of a training step
    over the baseline's. parameters: how many more there are. seconds: that a seed of both takes. earlier:
    what a confirmation confirms, if it was tried before.
    """

    tried: Try
    look: Look
    works_to: tuple[BreakPoint, BreakPoint]
    time_ratio: float
    parameters: int
    seconds: float
    earlier: Try | None
    unlearned: tuple[str, ...] = ()
    unit: str = BITS.name  # of the differences

    @property
    def answer(self) -> Answer:
        return "no verdict" if self.unlearned else self.look.answer

    def __str__(self) -> str:
        tried, seen = self.tried, self.look
        seeds = f"{seen.seeds} {'seed' if seen.seeds == 1 else 'seeds'}"
        head = f"{tried.change} against {tried.baseline}: {self.answer}"
        place = f"after {seeds} ({tried.kind} {tried.number} against it)"
        if self.unlearned:
            has = "has" if len(self.unlearned) == 1 else "have"
            names = " and ".join(self.unlearned)
            return f"{head}, {place}: {names} {has} learned nothing yet, so give more train.tokens"
        if self.answer == "mixed":
            head += f" ({self._where_it_is_mixed()})"
        change_works, baseline_works = (point.predicate for point in self.works_to)
        at_training, at_longest = seen.bounds
        trained = _spell_difference(seen.at_training.mean, at_training, self.unit)
        longest = _spell_difference(seen.at_longest.mean, at_longest, self.unit)
        cost = f"{self.time_ratio:.2f} times as long, with {self.parameters:,} parameters more"
        lines = [
            f"{head}, {place}",
            f"  at {tried.train_length:,}, trained: {trained}",
            f"  at {max(tried.lengths):,}, longest: {longest}",
            f"  {change_works} ({tried.baseline} {baseline_works})",
            f"  a step takes {cost}",
        ]
        if not seen.is_sure:
            lines.append(f"  {self._what_settles_it()}")
        if self.earlier is not None and self.earlier.at_training is not None:
            means = f"{self.earlier.at_training:+.4f} and {self.earlier.at_longest:+.4f}"
            lines.append(f"  when it was tried: {means}, {self.earlier.answer}")
        return "\n".join(lines)

    def _where_it_is_mixed(self) -> str:
        trained = f"{self.tried.train_length:,}"
        longest = f"{max(self.tried.lengths):,}"
        is_better_at_training, _ = self.look.better_at
        if is_better_at_training:
            return f"better at {trained}, worse at {longest}"
        return f"better at {longest}, worse at {trained}"

    def _what_settles_it(self) -> str:
        seeds = self.look.seeds
        if not self.look.is_scheduled:
            return f"the first answer needs {FIRST_LOOK} seeds: give --minutes {self._minutes(FIRST_LOOK)}"
        needed = seeds_to_settle(self.look)
        if needed is None:
            return f"at these differences not even {max(LOOKS)} seeds would settle it"
        settled = f"about {needed} seeds in all would settle it: give --minutes {self._minutes(needed)}"
        return f"at these differences, {seeds} seeds are too few; {settled}"

    def _minutes(self, seeds: int) -> int:
        """Return the minutes that the seeds from now on up to this number take."""
        return max(1, math.ceil((seeds - self.look.seeds) * self.seconds / 60))


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
    with Lock(results_dir / f"{FILE}.lock"):  # else one of two commands loses what the other counted
        tries = read_tries(results_dir)
        places = [place for place, entry in enumerate(tries) if entry.is_same(tried)]
        if not tried.number and places:
            kept = tries[places[0]]
            checked_by = tried.checked_by or kept.checked_by
            tried = replace(kept, evaluation=tried.evaluation, checked_by=checked_by)
        elif not tried.number:
            number = 1 + sum(entry.question == tried.question for entry in tries)
            tried = replace(tried, number=number)
        if places:
            tries[places[0]] = tried
        else:
            tries.append(tried)
        entries = [asdict(entry) for entry in tries]
        write_json(results_dir / FILE, entries)
    return tried


@contextmanager
def _ending_kept(results_dir: Path, tried: Try) -> Iterator[None]:
    """Keep in the file that a try was stopped or failed, unless it has a sure answer from before."""
    try:
        yield
    except INTERRUPTIONS:
        _keep_ending(results_dir, tried, "stopped")
        raise
    except Exception:
        _keep_ending(results_dir, tried, "failed")
        raise


def _keep_ending(results_dir: Path, tried: Try, ending: Ending) -> None:
    kept = next(entry for entry in read_tries(results_dir) if entry.is_same(tried))
    if kept.answer in ("unclear", "not finished", "stopped", "failed"):
        _keep(results_dir, replace(kept, answer=ending))


def try_change(
    change: str,
    *overrides: str,
    against: str,
    minutes: float,
    lengths: str | Sequence[int] | None,
    confirm: bool,
    config_dir: str | Path | None,
    results_dir: str | Path,
    check: Callable[[], None] | None = None,
) -> Outcome:
    """Do what `pe_bench.try_change` says.

    check: called before anything is written, unless this version of pe-bench checked the same code for an
    earlier try in this folder.
    """
    end = time.monotonic() + 60 * minutes
    require(0 < minutes < math.inf, f"--minutes must be above 0, not {minutes:g}")
    kind: Kind = "confirm" if confirm else "try"
    results = Path(results_dir)
    search = [] if config_dir is None else [Path(config_dir)]
    numbers = parse_lengths(",".join(map(str, listed(lengths) or LENGTHS)))
    _refuse_chosen(overrides)
    values = {
        "train.tokens": TOKENS,
        "eval.controls": "none",
        "eval.half": HALF[kind],
        "eval.lengths": numbers,
        "results_dir": str(results / FOLDER),
    }
    changed = planned_job(overrides, search, choice=overrides_in(change), values=values)
    baseline = planned_job(overrides, search, choice=overrides_in(against), values=values)
    tried = _prepared(kind, changed.config, baseline.config)
    # The name of a run has a hash of its encoding's code.
    checked_by = {kept.checked_by for kept in read_tries(results) if kept.change_run == tried.change_run}
    if check is not None and own_version() not in checked_by:
        check()
        tried = replace(tried, checked_by=own_version())
    tried = _keep(results, tried)
    with (
        _ending_kept(results, tried),
        said_once(_runs_of_a_seed, pieces=2) as cost,
    ):
        return _train_until_sure(tried, changed, baseline, results, end, cost)


def _runs_of_a_seed(left: int) -> str:
    return f"{count(left, 'run')} of one seed"


def _train_until_sure(
    tried: Try, change: Planned, baseline: Planned, results: Path, end: float, cost: Cost
) -> Outcome:
    """Train seeds until the answer is sure or the time is up, and return what was found.

    change, baseline: jobs without their seeds. end: of the time, by `time.monotonic`. cost: of a seed.
    """
    earlier = tried.seeds  # which are looked at again whatever the time: an answer is that of all there are
    pairs: list[tuple[Run, Run]] = []
    seconds: list[float] = []
    while True:
        seed = FIRST_SEED[tried.kind] + len(pairs)
        cost.ended = 0
        baseline_run, baseline_seconds = _run(baseline.with_seed(seed))
        cost.ended = 1
        change_run, change_seconds = _run(change.with_seed(seed))
        pairs.append((change_run, baseline_run))
        seconds.append(baseline_seconds + change_seconds)
        # Seeds after the last look are judged at the next one.
        judged = pairs[: sequential.last_look(len(pairs)) or len(pairs)]
        seen = _look(tried, judged)
        is_over = not _has_time(len(pairs), max(seconds[-2:]), end)
        has_all = len(pairs) >= earlier
        change_line = _line_of([run for run, _ in judged], results / FOLDER)
        baseline_line = _line_of([run for _, run in judged], results / FOLDER)
        lines = [change_line, baseline_line]
        unlearned = tuple(line.label for line in lines if line.unlearned == "frequencies")
        is_sure = bool(seen.is_sure or (unlearned and seen.is_scheduled))
        if is_sure or has_all:
            means = {"at_training": float(seen.at_training.mean), "at_longest": float(seen.at_longest.mean)}
            answer = "no verdict" if unlearned else seen.answer
            tried = _keep(results, replace(tried, seeds=seen.seeds, answer=answer, **means))
        if is_sure or (has_all and is_over):
            return _outcome(tried, seen, judged, lines, unlearned, max(seconds), results)


def _has_time(seeds: int, seconds: float, end: float) -> bool:
    """Return whether all seeds up to the next look would end in time, as each takes so many seconds."""
    following = sequential.next_look(seeds)
    return following is not None and time.monotonic() + (following - seeds) * seconds <= end


def _look(tried: Try, pairs: Sequence[tuple[Run, Run]]) -> Look:
    at_training = [_difference(*pair, tried.train_length) for pair in pairs]
    at_longest = [_difference(*pair, tried.lengths[-1]) for pair in pairs]
    return look(at_training, at_longest, tried.number, pairs[0][0].margin)


def _outcome(
    tried: Try,
    seen: Look,
    pairs: Sequence[tuple[Run, Run]],
    lines: Sequence[Line],
    unlearned: tuple[str, ...],
    seconds: float,
    results: Path,
) -> Outcome:
    """Return the outcome of a try. pairs: runs of the change and the baseline by seed. lines: of both."""
    works_to = lines[0].break_point, lines[1].break_point
    first_rows = [(run.scored[0], other.scored[0]) for run, other in pairs]
    time_ratio = median(other.tokens_per_second / row.tokens_per_second for row, other in first_rows)
    row, baseline_row = first_rows[0]
    parameters = row.parameters - baseline_row.parameters
    earlier = _confirmed(tried, results) if tried.kind == "confirm" else None
    unit = NATS.name if row.loses_text else BITS.name
    return Outcome(tried, seen, works_to, time_ratio, parameters, seconds, earlier, unlearned, unit)


def _confirmed(tried: Try, results: Path) -> Try | None:
    """Return the try that a confirmation confirms; None where the change was not tried before."""
    for earlier in read_tries(results):
        is_same_change = (earlier.change, earlier.baseline) == (tried.change, tried.baseline)
        if earlier.kind == "try" and is_same_change and earlier.lengths == tried.lengths:
            return earlier
    return None


def _refuse_chosen(overrides: Sequence[str]) -> None:
    """Raise `UserError` for an override of what a try chooses itself."""
    typed = by_key(overrides)
    for key in ("seed", "eval.half"):
        message = f"{typed.get(key)}: a try chooses the seeds and the documents itself: leave it out"
        require(key not in typed, message)
    message = f"{typed.get('results_dir')}: say --results-dir, where tries are counted too"
    require("results_dir" not in typed, message)


def _prepared(kind: Kind, change_config: Config, baseline_config: Config) -> Try:
    """Return the try of a change, before any look. Raise `UserError` for configurations that cannot work."""
    configs = [replace(config, seed=FIRST_SEED[kind]) for config in (change_config, baseline_config)]
    _refuse_task(configs)
    change, baseline = (prepare(config)[0] for config in configs)
    train_length = change.config.train.length
    lengths = change.config.eval.resolved_lengths(train_length)
    message = f"--lengths {lengths[-1]} is not above train.length={train_length}: add a longer one"
    require(lengths[-1] > train_length, message)
    runs = change.folder.name, baseline.folder.name
    require(runs[0] != runs[1], f"{change.label} is compared with itself: name another --against")
    evaluation = _evaluation(change.config)
    return Try(
        kind, 0, change.label, baseline.label, *runs, train_length, lengths, today(), evaluation=evaluation
    )


def _refuse_task(configs: Sequence[Config]) -> None:
    """Raise `UserError` for a task: what is known of the spread between seeds is in bits per byte."""
    for config in configs:
        if config.task is None:
            continue
        task = f"task={config.task['name']}"
        names = ",".join(one.encoding["name"] for one in configs)
        way_out = f"pe-bench train -m encoding={names} {task} seed=0,1,2 compares shares of right answers"
        raise UserError(f"{task}: a try compares bits per byte, which answers do not have: {way_out}")


def _evaluation(config: Config) -> str:
    """Return a hash of which targets are judged, and how: with another one, a try is another try."""
    evaluation = config.eval
    train_length = config.train.length
    judged = {key: value for key, value in asdict(evaluation).items() if key not in NOT_JUDGED}
    judged["lengths"] = evaluation.resolved_lengths(train_length)
    judged["max_length"] = evaluation.resolved_max_length(train_length)
    judged["target_tokens"] = evaluation.resolved_target_tokens(train_length)
    return hashed(judged)


def _run(job: Planned) -> tuple[Run, float]:
    """Return a trained and scored run, and the seconds that it takes, which it may have taken long ago."""
    began = time.monotonic()
    with called_with(job.words):
        run = Run(*train(job.config, waits=say), job.config.report.margin)
    if run.failure:
        raise RunError(run.failure)
    row = run.scored[0]
    return run, max(time.monotonic() - began, row.train_tokens / row.tokens_per_second)


def _difference(change: Run, baseline: Run, length: int) -> float:
    """Return the difference of two runs' levels on the same targets; negative is better."""
    one, other = _row_at(change, length), _row_at(baseline, length)
    if not has_number(other):
        message = (
            f"the baseline {baseline.name} has no number at {length} tokens ({other.reason or other.status})"
        )
        raise RunError(f"{message}: name another with --against, or shorter --lengths")
    return level_of(one) - level_of(other) if has_number(one) else math.inf


def _row_at(run: Run, length: int) -> Row:
    """Return the score of all targets at a length, which is no control's and not by position."""
    rows = [row for row in run.scored if row.length == length and row.protocol not in APART]
    return next(row for row in rows if row.slice == ALL and row.control == "none")


def _line_of(runs: Sequence[Run], results_dir: Path) -> Line:
    """Return the line that a report has of an encoding, over all its seeds."""
    scored = chain.from_iterable(run.scored for run in runs)
    rows = [row for row in scored if row.protocol not in APART]
    [table] = tables_of_rows(rows, results_dir, runs[0].margin)
    [line] = (line for line in table.lines if line.label == rows[0].encoding)
    return line


def _spell_difference(mean: float, bounds: tuple[float, float], unit: str) -> str:
    """Return a mean difference with its unit and the bounds by which it is judged."""
    if not math.isfinite(mean):
        return "no number"
    low, high = bounds
    if not math.isfinite(low):
        return f"{mean:+.4f} {unit}; an interval needs {FIRST_LOOK} seeds"
    return f"{mean:+.4f} {unit}, from {low:+.4f} to {high:+.4f}"
