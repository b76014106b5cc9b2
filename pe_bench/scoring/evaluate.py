"""Scoring: a trained model and plans in; eval.csv and the NLL of every target out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pe_bench.data.packed import Split
from pe_bench.runs.job import Job
from pe_bench.runs.rows import ALL, KEY, Row, read_rows, write_rows
from pe_bench.runs.scores import Scores, has_whole_scores, save_scores, score_file, with_level
from pe_bench.scoring.controls import remark
from pe_bench.scoring.extend import known_scores
from pe_bench.scoring.plans import count_parts, make_plans
from pe_bench.scoring.protocols import (
    Plan,
    answer_documents,
    target_bytes,
    target_documents,
)
from pe_bench.scoring.scorer import Scored, Scorer, ScoreWatcher, Unscored
from pe_bench.scoring.slices import keep_derived
from pe_bench.system.progress import Bars
from pe_bench.system.versions import device_name, git_commit, package_version, today

TRIED_AGAIN = ("out_of_memory", "failed")  # with more memory, or after the encoding's file was mended


def score(job: Job, plans: Sequence[Plan], bars: Bars) -> list[Row]:
    """Do as `evaluate` does, with a bar that counts finished lengths."""
    with bars(job.scored_with, count_parts(plans)) as bar:
        finished = 0

        def watch(protocol: str, length: int, share: float) -> None:
            nonlocal finished
            finished += share == 1.0
            line = f"{protocol}, length {length:,} scored" if share == 1.0 else None
            done = finished + (share if share < 1.0 else 0.0)
            bar.show(done, f"scoring, {protocol}, length {length:,}", line)

        return evaluate(job, plans, watch)


def evaluate(job: Job, plans: Sequence[Plan], watch: ScoreWatcher) -> list[Row]:
    """Score what is missing of the plans, and return the rows of all of them, in their order.

    Target blocks and needles that the run has scored in another set are not scored again. After each
    length its scores and its row are on the disk. A length that the encoding cannot reach, or at which a
    user's own code fails, is a row with its status and reason, and the others go on.
    """
    path = job.folder / "eval.csv"
    kept = {row.key: row for row in read_rows(path)}
    rows = [_empty_row(job, plan) for plan in plans]
    # Two sets of targets may be one and the same, and then are scored once.
    missing = {
        row.key: (row, plan)
        for row, plan in zip(rows, plans, strict=True)
        if not _is_scored(job.folder, kept.get(row.key))
    }
    todo = list(missing.values())
    known = [known_scores(job.folder, plan, row, kept.values()) for row, plan in todo]
    todo_plans = [
        plan if part is None else part.missing(plan) for (_, plan), part in zip(todo, known, strict=True)
    ]
    split = job.data.validation
    scorer = Scorer(job.model, split, job.device, job.config.eval, todo_plans, watch)
    for place, found in scorer.scores():
        (row, plan), part = todo[place], known[place]
        if part is not None and isinstance(found, Scored):
            found = part.joined(found)
        kept[row.key] = _with_scores(job, plan, row, found)
        write_rows(path, sorted(kept.values(), key=lambda row: row.order))
    keep_derived(job.folder, job.data, plans, kept.values(), job.config.train.length)
    return [kept[row.key] for row in rows]


def kept_rows(job: Job, plans: Sequence[Plan]) -> list[Row] | None:
    """Return the rows of a run's own encoding where all plans are scored already: they need no weights.

    Only the holder of the run's lock may call this.
    """
    rows = scored_rows(job, plans)
    if len(rows) < len(plans):
        return None
    keep_derived(job.folder, job.data, plans, read_rows(job.folder / "eval.csv"), job.config.train.length)
    return rows


def scored_rows(job: Job, plans: Sequence[Plan]) -> list[Row]:
    """Return the rows of a run's own encoding for the plans that are scored already."""
    kept = {row.key: row for row in read_rows(job.folder / "eval.csv")}
    found = [kept.get(_key(job, plan)) for plan in plans]
    return [row for row in found if row is not None and _is_scored(job.folder, row)]


def with_lost_plans(job: Job, plans: Sequence[Plan]) -> list[Plan]:
    """Add the plans of other sets of targets whose files of scores are lost, at the lengths of `plans`.

    A run may have been scored up to lengths that this command does not name, or on more targets.
    """
    planned, lengths = {_key(job, plan) for plan in plans}, {plan.length for plan in plans}
    rows = read_rows(job.folder / "eval.csv")
    lost = [
        row
        for row in rows
        if row.key not in planned and row.length in lengths and row.target_tokens and row.status == "ok"
        if not has_whole_scores(job.folder, row)
    ]
    found = {}
    for row in lost:
        of_set = sorted({other.length for other in rows if other.target_hash == row.target_hash})
        targets = row.targets // (row.target_tokens or 1)
        evaluation = replace(job.config.eval, lengths=of_set, targets=targets, controls="all")
        found |= {_key(job, plan): plan for plan in make_plans(job.config, evaluation, job.data)}
    return [*plans, *(found[row.key] for row in lost if row.key in found)]


def _key(job: Job, plan: Plan) -> tuple[str, ...]:
    """Return the key of the row of a plan that is scored with the run's own encoding."""
    of_run = {"run": job.folder.name, "scored_with": job.label, "score_dtype": job.config.eval.precision}
    of_run |= {"slice": ALL, "judge": ""}
    return tuple(str(of_run[name] if name in of_run else getattr(plan, name)) for name in KEY)


def _is_scored(run: Path, row: Row | None) -> bool:
    """Return whether there is a row to keep: a lost or damaged file of scores is made again."""
    if row is None or row.status in TRIED_AGAIN:
        return False
    if row.status != "ok":
        return True
    return has_whole_scores(run, row)


def _with_scores(job: Job, plan: Plan, row: Row, found: Scored | Unscored) -> Row:
    """Return the row with its numbers, whose scores are then on the disk, or with why it has none."""
    if isinstance(found, Unscored):
        return replace(row, status=found.status, reason=found.reason)
    scores = _scores_of(plan, found, job.data.validation)
    save_scores(score_file(job.folder, row), scores)
    return replace(
        with_level(row, scores),
        reason=remark(plan, job.config.model.n_layers),
        peak_memory_mb=None if found.peak_memory_mb is None else round(found.peak_memory_mb, 1),
    )


def _scores_of(plan: Plan, found: Scored, split: Split) -> Scores:
    if plan.answers is None:
        documents, sizes = target_documents(plan.windows), target_bytes(split, plan.windows)
        return Scores(found.nll, documents, sizes, found.correct)
    documents = answer_documents(plan.answers)
    correct = None if found.correct is None else plan.answers.whole(found.correct)
    return Scores(found.nll, documents, np.ones_like(documents), correct)


def _encoding_lr(job: Job) -> float:
    """Return the largest multiple of the learning rate among the encoding's parameters; 1 without any."""
    multiples = job.model.encoding.lr_multiples(job.config.train.encoding_lr)
    return max(multiples.values(), default=1.0)


def _empty_row(job: Job, plan: Plan) -> Row:
    """Return a row with all that is known before anything is scored."""
    config, data = job.config, job.data
    return Row(
        run=job.folder.name,
        encoding=job.label,
        scored_with=job.scored_with,
        forced=job.forced,
        knows_length="prefix_consistent" not in job.model.encoding.claims,
        seed=config.seed,
        model=config.model.name,
        setting=job.setting,
        train_length=config.train.length,
        length=plan.length,
        protocol=plan.protocol,
        control=plan.control,
        stride=plan.stride,
        stride_rule=plan.stride_rule,
        status="ok",
        reason="",
        nll=None,
        perplexity=None,
        bits_per_byte=None,
        context_mean=plan.context_mean,
        targets=plan.targets,
        target_tokens=plan.target_tokens,
        documents=plan.documents,
        target_hash=plan.target_hash,
        data=data.name,
        data_hash=data.hash,
        tokenizer=data.tokenizer,
        parameters=job.model.parameter_count,
        encoding_lr=_encoding_lr(job),
        steps=config.train.total_steps,
        train_tokens=config.train.total_steps * config.train.batch_tokens,
        tokens_per_second=round(job.tokens_per_second, 1),
        peak_memory_mb=None,
        device=device_name(job.device),
        train_dtype=job.train_dtype,
        score_dtype=config.eval.precision,
        threads=job.threads,
        torch=torch.__version__,
        pe_bench=package_version(),
        git=git_commit(),
        date=today(),
        chance=plan.chance,
        depth=plan.depth,
    )
