"""`try`: train a change and its baseline, seed by seed, until the answer is sure."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pe_bench.commands.evaluate import Run
from pe_bench.commands.train import prepare, train
from pe_bench.commands.try_change import sequential
from pe_bench.commands.try_change.sequential import FIRST_LOOK, LOOKS, Look, look, seeds_to_settle
from pe_bench.config.arguments import overrides_in
from pe_bench.config.schema import Config
from pe_bench.config.sweeps import PlannedJob, overrides_by_key, plan_job
from pe_bench.errors import RunError, UserError, require
from pe_bench.report.build import tables_of_rows
from pe_bench.report.records import BITS, NATS, BreakPoint, Line
from pe_bench.runs.job import hashed
from pe_bench.runs.rows import ALL, APART, Row, has_number, level_of
from pe_bench.runs.typed import called_with
from pe_bench.system.cost import Cost, count, print_cost_once
from pe_bench.system.files import Lock, write_json
from pe_bench.system.machine import utc_now
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.system.terminal import say
from pe_bench.system.version import own_version
from pe_bench.values import listed, parse_lengths

TRAIN_TOKENS = 256_000  # the tokens that each run trains on
DEFAULT_LENGTHS = (128, 512, 2048)
RUNS_FOLDER = "tries"  # the folder of the runs, in the folder of results: they are no results to report
TRIES_FILE = "tries.json"
# Tries and what confirms them share no seed and no document.
FIRST_SEED = {"try": 0, "confirm": 1_000}
HALF_OF_DOCUMENTS = {"try": "first", "confirm": "second"}
# What evaluation does besides, and how fast: no try is judged by it.
UNJUDGED_KEYS = ("controls", "per_position", "batch_tokens")

TryKind = Literal["try", "confirm"]


# `no verdict`: a side has learned nothing. The last three are of tries without an answer.
TryAnswer = Literal[sequential.LookAnswer, "no verdict"]
TryEnding = Literal["not finished", "stopped", "failed"]


@dataclass(frozen=True)
class Try:
    """A change that was tried against a baseline."""

    kind: TryKind
    number: int  # its place among the tries against this baseline, from 1
    change: str  # the label of the change
    baseline: str  # the label of the baseline
    # The name of the change's run with the first seed; it has a hash of all values that decide the weights.
    change_run: str
    baseline_run: str
    train_length: int
    lengths: list[int]  # the scored lengths, rising
    date: str
    seeds: int = 0  # the number of seeds at the last look; 0 before the first
    answer: TryAnswer | TryEnding = "not finished"
    # The mean difference at the training length, in bits per byte, or in nats per token if the tokenizer
    # loses text; None before the first look.
    at_training: float | None = None
    at_longest: float | None = None  # the mean difference at the longest length
    evaluation: str = ""  # a hash of the scored targets; empty in files of earlier versions
    checked_by: str = ""  # the version of pe-bench that checked the change's code; empty for unchecked code

    @property
    def question(self) -> tuple[str, str]:
        """Return the kind and the baseline's run; tries are counted together if they agree in both."""
        return self.kind, self.baseline_run

    def is_same(self, other: "Try") -> bool:
        """Return whether another try has the same change, baseline and targets."""
        is_same_change = (self.question, self.change_run) == (other.question, other.change_run)
        is_known = bool(self.evaluation and other.evaluation)
        is_same_evaluation = self.evaluation == other.evaluation or not is_known
        return is_same_change and self.lengths == other.lengths and is_same_evaluation


@dataclass(frozen=True)
class Outcome:
    """The outcome of a try, which `print` shows."""

    tried: Try
    look: Look
    works_to: tuple[BreakPoint, BreakPoint]  # the break points of the change and of the baseline
    time_ratio: float  # the time of a training step over the baseline's
    parameters: int  # the parameters of the change minus the baseline's
    seconds: float  # the seconds that a seed of both takes
    earlier: Try | None  # the try that a confirmation confirms, if there was one
    unlearned: tuple[str, ...] = ()  # the labels of encodings that have learned nothing and are not judged
    unit: str = BITS.name  # the unit of the differences

    @property
    def answer(self) -> TryAnswer:
        """Return better, not better, mixed or unclear, or no verdict if a side has learned nothing."""
        return "no verdict" if self.unlearned else self.look.answer

    def __str__(self) -> str:
        tried = self.tried
        seen = self.look
        noun = "seed" if seen.seeds == 1 else "seeds"
        head = f"{tried.change} against {tried.baseline}: {self.answer}"
        place = f"after {seen.seeds} {noun} ({tried.kind} {tried.number} against it)"
        if self.unlearned:
            has = "has" if len(self.unlearned) == 1 else "have"
            names = " and ".join(self.unlearned)
            return f"{head}, {place}: {names} {has} learned nothing yet, so give more train.tokens"
        if self.answer == "mixed":
            head += f" ({self._mixed_text()})"
        change_works, baseline_works = (point.predicate for point in self.works_to)
        at_training, at_longest = seen.bounds
        trained = _spell_difference(seen.at_training.mean, at_training, self.unit)
        longest = _spell_difference(seen.at_longest.mean, at_longest, self.unit)
        cost = f"{self.time_ratio:.2f} times as long, with {self.parameters:,} parameters more"
        lines = [f"{head}, {place}"]
        lines.append(f"  at {tried.train_length:,}, trained: {trained}")
        lines.append(f"  at {max(tried.lengths):,}, longest: {longest}")
        lines.append(f"  {change_works} ({tried.baseline} {baseline_works})")
        lines.append(f"  a step takes {cost}")
        if not seen.is_sure:
            lines.append(f"  {self._more_seeds_text()}")
        earlier = self.earlier
        if earlier is not None and earlier.at_training is not None:
            means = f"{earlier.at_training:+.4f} and {earlier.at_longest:+.4f}"
            lines.append(f"  when it was tried: {means}, {earlier.answer}")
        return "\n".join(lines)

    def _mixed_text(self) -> str:
        trained = f"{self.tried.train_length:,}"
        longest = f"{max(self.tried.lengths):,}"
        is_better_at_training, _ = self.look.better_at
        if is_better_at_training:
            return f"better at {trained}, worse at {longest}"
        return f"better at {longest}, worse at {trained}"

    def _more_seeds_text(self) -> str:
        """Return a sentence on the seeds and minutes that would settle an unclear answer."""
        seeds = self.look.seeds
        if not self.look.is_scheduled:
            return (
                f"the first answer needs {FIRST_LOOK} seeds: give --minutes {self._minutes_until(FIRST_LOOK)}"
            )
        needed = seeds_to_settle(self.look)
        if needed is None:
            return f"at these differences not even {max(LOOKS)} seeds would settle it"
        settled = f"about {needed} seeds in all would settle it: give --minutes {self._minutes_until(needed)}"
        return f"at these differences, {seeds} seeds are too few; {settled}"

    def _minutes_until(self, seeds: int) -> int:
        """Return the minutes until the try has this number of seeds."""
        seconds = (seeds - self.look.seeds) * self.seconds
        return max(1, math.ceil(seconds / 60))


def read_tries(results_dir: Path) -> list[Try]:
    """Return all tries of a results folder, in their order. Raise `UserError` for a damaged file."""
    path = results_dir / TRIES_FILE
    if not path.exists():
        return []
    try:
        return [Try(**entry) for entry in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        way_out = "it counts tries, so mend it, or move it away to count from 1"
        raise UserError(f"{path} is damaged ({error}); {way_out}") from error


def _store_try(results_dir: Path, tried: Try) -> Try:
    """Add a try to the file with its number, or replace its entry; return the try.

    A try counts as soon as it begins, before its first look, and whatever its outcome.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    with Lock(results_dir / f"{TRIES_FILE}.lock"):  # else one of two commands loses what the other counted
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
        write_json(results_dir / TRIES_FILE, entries)
    return tried


@contextmanager
def _ending_kept(results_dir: Path, tried: Try) -> Iterator[None]:
    """If the context ends by an error or a signal, store this as the ending of the try (`_store_ending`)."""
    try:
        yield
    except INTERRUPTIONS:
        _store_ending(results_dir, tried, "stopped")
        raise
    except Exception:
        _store_ending(results_dir, tried, "failed")
        raise


def _store_ending(results_dir: Path, tried: Try, ending: TryEnding) -> None:
    """Replace the answer of a stored try by how the try ended, unless the answer is sure."""
    kept = next(entry for entry in read_tries(results_dir) if entry.is_same(tried))
    if kept.answer in ("unclear", "not finished", "stopped", "failed"):
        _store_try(results_dir, replace(kept, answer=ending))


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
    """Try a change as `pe_bench.try_change` documents.

    check: called before anything is written, unless this version of pe-bench checked the same code for an
    earlier try in this folder.
    """
    end = time.monotonic() + 60 * minutes
    require(0 < minutes < math.inf, f"--minutes must be above 0, not {minutes:g}")
    kind: TryKind = "confirm" if confirm else "try"
    results = Path(results_dir)
    search = [*map(Path, listed(config_dir))]
    words = map(str, listed(lengths) or DEFAULT_LENGTHS)
    numbers = parse_lengths(",".join(words))
    chosen_values: dict[str, Any] = {
        "train.tokens": TRAIN_TOKENS,
        "eval.controls": "none",
        "eval.half": HALF_OF_DOCUMENTS[kind],
    }
    chosen_values |= {"eval.lengths": numbers, "results_dir": str(results / RUNS_FOLDER)}
    _refuse_chosen(overrides)
    changed = plan_job(overrides, search, choice=overrides_in(change), values=chosen_values)
    baseline = plan_job(overrides, search, choice=overrides_in(against), values=chosen_values)
    tried = _prepare_try(kind, changed.config, baseline.config)
    earlier = _confirmed_try(changed.config, baseline.config, results) if confirm else None
    # The name of a run has a hash of its encoding's code.
    same_code = [kept for kept in read_tries(results) if kept.change_run == tried.change_run]
    checked_by = {kept.checked_by for kept in same_code}
    if check is not None and own_version() not in checked_by:
        check()
        tried = replace(tried, checked_by=own_version())
    tried = _store_try(results, tried)
    with (
        _ending_kept(results, tried),
        print_cost_once(_runs_text, jobs=2) as cost,
    ):
        outcome = _train_until_sure(tried, changed, baseline, results, end, cost)
    return replace(outcome, earlier=earlier)


def _runs_text(left: int) -> str:
    return f"{count(left, 'run')} of one seed"


def _train_until_sure(
    tried: Try, change: PlannedJob, baseline: PlannedJob, results: Path, end: float, cost: Cost
) -> Outcome:
    """Train seeds until the answer is sure or the time is up, and return the outcome.

    change, baseline: jobs without their seeds. end: the end of the time, by `time.monotonic`. cost: the cost
    of a seed.
    """
    earlier = tried.seeds  # the seeds that an earlier command judged are judged again, whatever the time
    run_pairs: list[tuple[Run, Run]] = []
    seconds_of_seeds: list[float] = []
    while True:
        seed = FIRST_SEED[tried.kind] + len(run_pairs)
        cost.ended = 0
        baseline_run, baseline_seconds = _run_job(baseline.with_seed(seed))
        cost.ended = 1
        change_run, change_seconds = _run_job(change.with_seed(seed))
        run_pairs.append((change_run, baseline_run))
        seconds_of_seeds.append(baseline_seconds + change_seconds)
        # Seeds after the last look are judged at the next look.
        seeds = len(run_pairs)
        judged = run_pairs[: sequential.last_look(seeds) or seeds]
        seen = _look_at_pairs(tried, judged)
        is_over = not _has_time(seeds, max(seconds_of_seeds[-2:]), end)
        has_all = seeds >= earlier
        change_line = _line_of([run for run, _ in judged], results / RUNS_FOLDER)
        baseline_line = _line_of([run for _, run in judged], results / RUNS_FOLDER)
        lines = [change_line, baseline_line]
        unlearned = tuple(line.label for line in lines if line.unlearned == "frequencies")
        is_sure = bool(seen.is_sure or (unlearned and seen.is_scheduled))
        if is_sure or has_all:
            means = {"at_training": float(seen.at_training.mean), "at_longest": float(seen.at_longest.mean)}
            answer = "no verdict" if unlearned else seen.answer
            tried = _store_try(results, replace(tried, seeds=seen.seeds, answer=answer, **means))
        if is_sure or (has_all and is_over):
            return _outcome_of_try(tried, seen, judged, lines, unlearned, max(seconds_of_seeds))


def _has_time(seeds: int, seconds: float, end: float) -> bool:
    """Return whether all seeds up to the next look would end in time. seconds: the time of each seed."""
    following = sequential.next_look(seeds)
    if following is None:
        return False
    needed = (following - seeds) * seconds
    return time.monotonic() + needed <= end


def _look_at_pairs(tried: Try, pairs: Sequence[tuple[Run, Run]]) -> Look:
    """Return the look at a try. pairs: for each seed, the run of the change and the run of the baseline."""
    longest = tried.lengths[-1]
    at_training = [_level_difference(*pair, tried.train_length) for pair in pairs]
    at_longest = [_level_difference(*pair, longest) for pair in pairs]
    change, _ = pairs[0]
    return look(at_training, at_longest, tried.number, change.margin)


def _outcome_of_try(
    tried: Try,
    seen: Look,
    pairs: Sequence[tuple[Run, Run]],
    lines: Sequence[Line],
    unlearned: tuple[str, ...],
    seconds: float,
) -> Outcome:
    """Return the outcome of a try after a look.

    pairs: for each seed, the run of the change and the run of the baseline. lines: the lines of both in a
    table. unlearned: the labels of sides that have learned nothing. seconds: the time of a seed.
    """
    works_to = lines[0].break_point, lines[1].break_point
    ratios = []
    for run, other in pairs:
        ratios.append(other.scored[0].tokens_per_second / run.scored[0].tokens_per_second)
    time_ratio = median(ratios)
    change, baseline = pairs[0]
    row = change.scored[0]
    parameters = row.parameters - baseline.scored[0].parameters
    unit = NATS.name if row.loses_text else BITS.name
    return Outcome(tried, seen, works_to, time_ratio, parameters, seconds, None, unlearned, unit)


def _confirmed_try(change_config: Config, baseline_config: Config, results: Path) -> Try | None:
    """Return the try that a confirmation confirms; None if the change was not tried before.

    change_config, baseline_config: the configurations of the confirmation. The try differs from it only in
    the seeds and in the half of the documents.
    """
    tries = [each for each in read_tries(results) if each.kind == "try"]
    if not tries:
        return None
    configs = []
    for config in (change_config, baseline_config):
        evaluation = replace(config.eval, half=HALF_OF_DOCUMENTS["try"])
        configs.append(replace(config, eval=evaluation))
    try:
        confirmed = _prepare_try("try", *configs)
    except UserError:  # this half may have no document that is long enough
        return None
    return next(filter(confirmed.is_same, tries), None)


def _refuse_chosen(overrides: Sequence[str]) -> None:
    """Raise `UserError` for an override of a key that a try chooses itself."""
    typed = overrides_by_key(overrides)
    for key in ("seed", "eval.half"):
        message = f"{typed.get(key)}: a try chooses the seeds and the documents itself: leave it out"
        require(key not in typed, message)
    for key in ("encoding", "modifier"):
        message = (
            f"{typed.get(key)} is no part of a try: name both sides, as in `try alibi+logn --against rope`"
        )
        require(key not in typed, message)
    message = f"{typed.get('eval.lengths')}: say --lengths"
    require("eval.lengths" not in typed, message)
    message = f"{typed.get('results_dir')}: say --results-dir, where tries are counted too"
    require("results_dir" not in typed, message)


def _prepare_try(kind: TryKind, change_config: Config, baseline_config: Config) -> Try:
    """Return the try of a change, before any look. Raise `UserError` for configurations that cannot work."""
    configs = [replace(config, seed=FIRST_SEED[kind]) for config in (change_config, baseline_config)]
    _refuse_task(configs)
    change, baseline = (prepare(config)[0] for config in configs)
    train_length = change.config.train.length
    lengths = change.config.eval.resolved_lengths(train_length)
    message = f"--lengths {lengths[-1]} is not above train.length={train_length}: add a longer one"
    require(lengths[-1] > train_length, message)
    run = change.folder.name
    baseline_run = baseline.folder.name
    message = f"{change.label} is compared with itself"
    require(run != baseline_run, f"{message}: give another run or encoding with --against")
    sides = (change.label, baseline.label, run, baseline_run)
    tried = Try(kind, 0, *sides, train_length, lengths, utc_now())
    return replace(tried, evaluation=_evaluation_hash(change.config))


def _refuse_task(configs: Sequence[Config]) -> None:
    """Raise `UserError` for a task: the known spread between seeds is in bits per byte."""
    for config in configs:
        if config.task is None:
            continue
        task = f"task={config.task['name']}"
        names = ",".join(one.encoding["name"] for one in configs)
        way_out = f"pe-bench train -m encoding={names} {task} seed=0,1,2 compares shares of right answers"
        raise UserError(f"{task}: a try compares bits per byte, which answers do not have: {way_out}")


def _evaluation_hash(config: Config) -> str:
    """Return a hash of the judged targets and their protocol: with another hash, a try is another try."""
    evaluation = config.eval
    train_length = config.train.length
    judged = asdict(evaluation)
    for key in UNJUDGED_KEYS:
        del judged[key]
    judged["lengths"] = evaluation.resolved_lengths(train_length)
    judged["max_length"] = evaluation.resolved_max_length(train_length)
    judged["target_tokens"] = evaluation.resolved_target_tokens(train_length)
    return hashed(judged)


def _run_job(job: PlannedJob) -> tuple[Run, float]:
    """Return a trained and scored run, and the seconds that it takes or, if it was reused, once took.

    Raises `UserError`, `RunError`.
    """
    began = time.monotonic()
    with called_with(job.overrides):
        run = Run(*train(job.config, waits=say), job.config.report.margin)
    if run.failure:
        raise RunError(run.failure)
    row = run.scored[0]
    training = row.train_tokens / row.tokens_per_second
    return run, max(time.monotonic() - began, training)


def _level_difference(change: Run, baseline: Run, length: int) -> float:
    """Return the level of the change minus the level of the baseline on the same targets.

    The difference is infinite if the change has no level. Raises `RunError` if the baseline has no finite
    level.
    """
    row = _row_at(change, length)
    other = _row_at(baseline, length)
    reason = "" if has_number(other) else other.reason or other.status
    if not reason and not math.isfinite(level_of(other)):
        reason = f"its level is {level_of(other)}"
    if reason:
        message = f"the baseline {baseline.name} has no number at {length} tokens ({reason})"
        raise RunError(f"{message}: name another with --against, or shorter --lengths")
    return level_of(row) - level_of(other) if has_number(row) else math.inf


def _row_at(run: Run, length: int) -> Row:
    """Return the row of all targets at a length, without controls, positions and probes."""
    rows = [row for row in run.scored if row.length == length]
    plain = [row for row in rows if row.protocol not in APART and row.control == "none"]
    return next(row for row in plain if row.slice == ALL)


def _line_of(runs: Sequence[Run], results_dir: Path) -> Line:
    """Return the line that a report has of an encoding, over all its seeds."""
    scored = chain.from_iterable(run.scored for run in runs)
    rows = [row for row in scored if row.protocol not in APART]
    encoding = rows[0].encoding
    [table] = tables_of_rows(rows, results_dir, runs[0].margin)
    [line] = (line for line in table.lines if line.label == encoding)
    return line


def _spell_difference(mean: float, bounds: tuple[float, float], unit: str) -> str:
    """Return a mean difference with its unit and the bounds by which it is judged."""
    if not math.isfinite(mean):
        return "no number"
    low, high = bounds
    number = f"{mean:+.4f} {unit}"
    if not math.isfinite(low):
        return f"{number}; an interval needs {FIRST_LOOK} seeds"
    return f"{number}, from {low:+.4f} to {high:+.4f}"
