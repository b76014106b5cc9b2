"""Scoring: a trained model and plans in; eval.csv and the NLL of every target out."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch

from pe_bench.encodings.scalings.rope_scaling import have_equal_rotations
from pe_bench.model.checks import is_users_own
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.folder import RunFolder, read_rows_of_run
from pe_bench.runs.job import Job
from pe_bench.runs.rows import APART, POSITIONS, PROBE, Row, write_rows
from pe_bench.runs.scores import has_whole_scores, load_scores, save_scores, score_file, with_level
from pe_bench.scoring.needles import REPLACED
from pe_bench.scoring.protocols import Plan, scores_of
from pe_bench.scoring.scorer import Scored, Scorer, ScoreWatcher
from pe_bench.scoring.slices import write_slices_and_means
from pe_bench.system.cost import Pace, count, expect
from pe_bench.system.machine import cores_of, device_name, git_commit, utc_now
from pe_bench.system.terminal import Bars, say
from pe_bench.system.version import own_version

# Scores with these states are tried again: there may be more memory, or the encoding's file may be mended.
RETRIED_STATUSES = ("out_of_memory", "failed")
# The columns of a row with values of its plan, of the measurement, and of its job.
PLAN_COLUMNS = (
    *("length", "protocol", "control", "stride", "stride_rule", "context_mean", "targets", "target_tokens"),
    *("documents", "target_hash", "chance", "depth"),
)
MEASURED_COLUMNS = ("nll", "perplexity", "bits_per_byte", "peak_memory_mb")
JOB_COLUMNS = ("scored_with", "forced", "setting", "train_dtype", "threads")


def score(
    job: Job,
    plans: Sequence[Plan],
    bars: Bars,
    own_model: LanguageModel | None = None,
    encodings_left: int = 0,
) -> list[Row]:
    """Score as `evaluate` does, with a bar that counts finished plans.

    encodings_left: the number of encodings that the same plans are scored with afterwards, for the time.
    """
    with bars(job.scored_with, len(plans)) as bar:
        finished = 0

        def show_plan(plan: Plan, share: float | None) -> None:
            nonlocal finished
            name = _progress_name(plan)
            if share is not None:
                bar.show(finished + share, f"scoring, {name}", None)
                return
            finished += 1
            line = None if plan.protocol in APART else f"{name} scored"
            bar.show(finished, f"scoring, {name}", line)

        return evaluate(job, plans, show_plan, own_model, encodings_left)


def _progress_name(plan: Plan) -> str:
    """Return the name of a plan in progress lines: all ranges of positions, or all depths, have one name."""
    if plan.protocol == POSITIONS:
        return POSITIONS
    name = f"{plan.control} control"
    if plan.control in ("none", REPLACED):
        name = plan.protocol
    return f"{name}, length {plan.length:,}"


def operations(job: Job, plans: Sequence[Plan]) -> float:
    """Return the approximate number of operations of the passes of plans."""
    parameters = job.model.parameter_count  # counted once: it takes longer than all the rest
    windows = chain.from_iterable(plan.windows for plan in plans)
    return sum(_operations(job, parameters, window.size) for window in windows)


def operations_of_pass(job: Job, length: int) -> float:
    """Return the approximate number of operations for a pass over `length` tokens, without gradients."""
    return _operations(job, job.model.parameter_count, length)


def _operations(job: Job, parameters: int, length: int) -> float:
    """Return the number of operations that a model with so many parameters takes for `length` tokens."""
    model = job.config.model
    # A token is multiplied with each weight, and twice with the tokens before it, half of all on average.
    width = model.n_heads * model.d_head
    attention = 2 * model.n_layers * width * length
    return length * (2 * parameters + attention)


def _with_cost(job: Job, plans: Sequence[Plan], watch: ScoreWatcher, encodings_left: int) -> ScoreWatcher:
    """Return `watch`, extended: once the pace is known, it also announces how long all scoring will take.

    encodings_left: the number of encodings that the plans are scored with after this one.
    """
    total = operations(job, plans) * (1 + encodings_left)
    done = 0.0
    pace = Pace()

    def watch_cost(plan: Plan, share: float | None) -> None:
        nonlocal done
        watch(plan, share)
        if pace.is_known:
            return
        cost = operations(job, [plan])
        share_done = 1.0 if share is None else share
        seconds = pace.seconds_per_unit(done + share_done * cost)
        if seconds is not None:
            expect(seconds * total, cores_of(job.device, job.threads))
        if share is None:
            done += cost

    return watch_cost


def evaluate(
    job: Job,
    plans: Sequence[Plan],
    watch: ScoreWatcher,
    own_model: LanguageModel | None = None,
    encodings_left: int = 0,
) -> list[Row]:
    """Score the plans that are not scored yet, and return the rows of all plans, in their order.

    own_model: the model with the encoding of the run. Where the job's model computes the same, as YaRN does
    up to the training length if its factor is that of each window, the scores of the run's encoding are taken
    over. encodings_left: as in `score`.

    After each length, its scores and its row are on the disk. A length that the encoding cannot reach, or at
    which a user's own code fails, is a row with its status and reason, and the other lengths go on.
    """
    kept = {row.key: row for row in read_rows_of_run(job.folder)}
    name = RunFolder(job.folder).original_name

    def write_kept() -> None:
        in_order = sorted(kept.values(), key=lambda row: row.order)
        write_rows(job.folder / "eval.csv", [replace(row, run=name) for row in in_order])

    rows = [_empty_row(job, plan) for plan in plans]
    missing = {}  # by key, because two sets of targets may be the same, and then are scored once
    for row, plan in zip(rows, plans, strict=True):
        if not _is_scored(job.folder, kept.get(row.key)):
            missing[row.key] = plan
    for key, plan in [*missing.items()]:
        trained = kept.get(row_key(job, plan))
        if own_model is None or trained is None:
            continue
        if not _computes_the_same(job.model, own_model, plan):
            continue
        if trained.status == "ok" and has_whole_scores(job.folder, trained):
            kept[key] = _copy_own_scores(job, missing.pop(key), trained)
            write_kept()
    if missing:
        windows = sum(len(plan.windows) for plan in missing.values())
        longest = max(plan.length for plan in missing.values())
        size = f"{count(windows, 'window')} of up to {longest:,} tokens"
        say(f"{job.folder.name}: scoring {size}")
        watch = _with_cost(job, [*missing.values()], watch, encodings_left)
    scorer = Scorer(job.model, job.data.validation, job.config.eval, watch)
    for plan, scored in scorer.scores([*missing.values()]):
        row = _scored_row(job, plan, scored)
        kept[row.key] = row
        write_kept()
        watch(plan, None)
    write_slices_and_means(job.folder, job.data, plans, job.config.first_length)
    return [kept[row.key] for row in rows]


def _computes_the_same(model: LanguageModel, own_model: LanguageModel, plan: Plan) -> bool:
    """Return whether two models that differ only in their encodings score a plan's targets equally."""
    encoding = model.encoding
    if is_users_own(encoding) or len(encoding.modifiers) or len(own_model.encoding.modifiers):
        return False
    sizes = {window.size for window in plan.windows}
    for number, size in product(range(own_model.n_layers), sizes):
        if not have_equal_rotations(encoding.layer(number), own_model.encoding.layer(number), size):
            return False
    return True


def _copy_own_scores(job: Job, plan: Plan, trained: Row) -> Row:
    """Save the scores of `trained` as the scores of the job's encoding too, and return their row.

    trained: the plan's row with the run's own encoding. Its scores are right for the job's encoding only
    where `_computes_the_same` is true.
    """
    empty = _empty_row(job, plan)
    row = replace(
        trained, scored_with=empty.scored_with, forced=empty.forced, knows_length=empty.knows_length
    )
    save_scores(score_file(job.folder, row), load_scores(score_file(job.folder, trained)))
    return row


def scored_rows(job: Job, plans: Sequence[Plan], label: str = "") -> list[Row]:
    """Return the rows of the plans that are scored already. label: of an encoding, if not the run's own."""
    kept = {row.key: row for row in read_rows_of_run(job.folder)}
    rows = []
    for plan in plans:
        row = kept.get(row_key(job, plan, label))
        if row is not None and _is_scored(job.folder, row):
            rows.append(row)
    return rows


def row_key(job: Job, plan: Plan, label: str = "") -> tuple[str, ...]:
    """Return the key of the row of a plan. label: of the encoding of the scores, if not the run's own."""
    return _empty_row(replace(job, scored_with=label or job.label), plan).key


def _is_scored(run: Path, row: Row | None) -> bool:
    """Return true if a row need not be scored again; false for None.

    Its status is none of `RETRIED_STATUSES`, and the scores of an `ok` row are whole in the folder `run`.
    """
    if row is None or row.status in RETRIED_STATUSES:
        return False
    return row.status != "ok" or has_whole_scores(run, row)


def _scored_row(job: Job, plan: Plan, scored: Scored) -> Row:
    """Write the scores of a plan to disk, and return its row; without scores, a row with the reason."""
    row = _empty_row(job, plan)
    if scored.status != "ok":
        return replace(row, status=scored.status, reason=scored.reason)
    if plan.examples is not None:
        scores = plan.examples.scores(scored.nll, scored.correct)
    else:
        correct = scored.correct if plan.protocol == PROBE else None
        scores = scores_of(plan, job.data.validation, scored.nll, correct)
    save_scores(score_file(job.folder, row), scores)
    row = with_level(row, scores)
    if scored.peak_memory_mb is None:
        return row
    return replace(row, peak_memory_mb=round(scored.peak_memory_mb, 1))


def _empty_row(job: Job, plan: Plan) -> Row:
    """Return a row with the values that are known before scoring, and None in `MEASURED_COLUMNS`."""
    plan_values = {name: getattr(plan, name) for name in PLAN_COLUMNS}
    job_values = {name: getattr(job, name) for name in JOB_COLUMNS}
    return Row(
        **plan_values,
        **job_values,
        **dict.fromkeys(MEASURED_COLUMNS),
        **_model_values(job),
        **_environment_columns(job),
        run=job.folder.name,
        status="ok",
        reason="",
        data=job.data.name,
        data_hash=job.data.hash,
        tokenizer=job.data.tokenizer,
        score_dtype=job.config.eval.precision,
    )


def _environment_columns(job: Job) -> dict[str, Any]:
    """Return the columns of a row on the device, the versions and the date of its scoring."""
    versions = {"torch": torch.__version__, "pe_bench": own_version(), "git": git_commit()}
    return {"device": device_name(job.device), "date": utc_now(), **versions}


def _model_values(job: Job) -> dict[str, Any]:
    """Return the columns of a row on the scored model and its training."""
    encoding = job.model.encoding
    train = job.config.train
    multiples = encoding.lr_multiples(train.encoding_lr)
    return {
        "encoding": job.label,
        "knows_length": "prefix_consistent" not in encoding.claims,
        "seed": job.config.seed,
        "model": job.config.model.name,
        "train_length": train.length,
        "parameters": job.model.parameter_count,
        "encoding_lr": max(multiples.values(), default=1.0),
        "steps": train.total_steps,
        "train_tokens": train.total_steps * train.batch_tokens,
        "tokens_per_second": round(job.tokens_per_second, 1),
    }
