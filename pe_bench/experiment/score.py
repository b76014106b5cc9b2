"""Score a run with the encoding that it was trained with, and with others."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pe_bench.config.schema import Config
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, UserError, require
from pe_bench.experiment.checkpoint import reopen_checkpoint, score_checkpoint
from pe_bench.experiment.interruption import say_what_is_kept
from pe_bench.experiment.prepare import Job, build_job
from pe_bench.experiment.progress import ScoringProgress
from pe_bench.model.decoder import Decoder
from pe_bench.model.dry_run import dry_run_training
from pe_bench.model.lookahead import refuse_lookahead
from pe_bench.runs.commands import record_command
from pe_bench.runs.gather import gather_and_warn, read_result, runs_folder
from pe_bench.runs.lock import locked
from pe_bench.runs.means import keep_means
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.slices import keep_slices
from pe_bench.scoring.anchors import score_missing_anchors
from pe_bench.scoring.evaluate import TrainedModel, evaluate, scored_rows, with_lost_plans
from pe_bench.scoring.other_encodings import OtherEncoding
from pe_bench.scoring.plans import Planner, count_parts, make_plans, shortages
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.slices import OPTION, key_slices
from pe_bench.system.files import remove_leftovers
from pe_bench.system.progress import Bars, progress_bar
from pe_bench.system.terminal import say
from pe_bench.system.versions import changed_files, git_commit, package_version
from pe_bench.training.checkpoint import (
    Checkpoint,
    final_checkpoint,
    load_weights,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def score_run(
    run: Path,
    config: Config,
    results_dir: Path,
    others: Sequence[OtherEncoding] = (),
    judge: Path | None = None,
    planner: Planner = make_plans,
    *,
    waits: Callable[[str], None] | None = None,
) -> list[Row]:
    """Score a finished run at the lengths of its `config`, then its weights under `others`.

    The classes of `config` are `trusted`. The rows are gathered when the run is one of `results_dir`.
    judge: a run whose scores decide which targets are key. It gets no key targets itself: they
    flatter it. planner: what the run is scored on. waits: called with the reason where another process works
    on the run, which is then waited for; without `waits`, that is an error.
    """
    if judge is not None and judge.resolve() == run.resolve():
        say(f"{run.name} is the judge of {OPTION}: targets that it chose would flatter it, so it gets none")
        judge = None
    if config.checkpoint is not None:
        message = f"{OPTION} chooses targets of runs, and {run.name} is a checkpoint: leave the option out"
        require(judge is None, message)
        return score_checkpoint(reopen_checkpoint(run, config, planner), others)
    message = f"{OPTION} chooses targets of text, and {run.name} has a task's answers: leave the option out"
    require(judge is None or config.task is None, message)
    result = read_result(run) or {}
    job = build_job(config, planner)
    setup = replace(job.setup, run=run)
    if "setting" in result:  # of the training, wherever it is scored
        dtype = DTYPES.get(str(result.get("train_dtype")), setup.dtype)
        setup = replace(setup, setting=str(result["setting"]), dtype=dtype)
    job = replace(job, setup=setup)
    trained = final_checkpoint(run, config.train.total_steps)
    if trained is None:
        raise UserError(
            f"{run / 'checkpoints'} has no whole checkpoint of step {config.train.total_steps}: "
            "repeat the command that trained the run"
        )
    judged = {} if judge is None else key_slices(judge, job.plans, config.train.length, job.data)
    _warn_of_other_data(job, result)
    warn_of_changed_code(job)
    scored_with = setup.label
    if EncodingSpec(config.encoding).identity() != EncodingSpec(setup.config.encoding).identity():
        # The weights were trained with one version of its code, and the scores come from another.
        job = replace(job, setup=replace(setup, label=str(result.get("encoding", scored_with))))
    with locked(run, waits=waits), say_what_is_kept(run, config.train.total_steps):
        remove_leftovers(run)
        rows = score_encodings(job, trained, others, scored_with=scored_with)
        if judge is not None:
            keep_slices(run, judged, judge.name)
            keep_means(run, read_rows(run / "eval.csv"))
        if result.get("data_hash") == job.data.hash:
            score_missing_anchors(run, job.setup.config, job.data, job.plans, rows)
    if run.resolve().parent == runs_folder(results_dir).resolve():
        gather_and_warn(results_dir)
    return rows


def score_encodings(
    job: Job,
    trained: Checkpoint,
    others: Sequence[OtherEncoding] = (),
    bars: Bars = progress_bar,
    *,
    scored_with: str | None = None,
) -> list[Row]:
    """Return the rows of the trained encoding, then those of the others, at the same lengths and targets.

    scored_with: the label of the encoding in the job's model, where its code was changed after the training.
    """
    setup = job.setup
    scored_with = scored_with or setup.label
    record_command(setup.run)
    load_weights(trained, job.model)
    _refuse_learned_lookahead(job)
    # All are built before any is scored, so that an error in the last comes first.
    models = [_with_encoding(other, job) for other in others]
    speed = trained.meta.step * setup.config.train.batch_tokens / trained.meta.train_seconds
    # This moves what all models share to the device.
    own = TrainedModel(setup, job.data, job.model.to(setup.device).eval(), scored_with, speed)
    is_changed = scored_with != setup.label
    for model in models:
        model.encoding.to(setup.device)
    report_shortages(job)
    rows = scored_rows(setup, job.plans) if is_changed else []
    plans = job.plans if is_changed else with_lost_plans(setup, job.data, job.plans)
    rows += _rows(replace(own, forced=is_changed), plans, bars)
    for model, other in zip(models, others, strict=True):
        rows += _rows(
            replace(own, model=model, scored_with=other.label, forced=other.forced), job.plans, bars
        )
    return rows


def _refuse_learned_lookahead(job: Job) -> None:
    """Raise `RunError` for a model that has learned in training to read later tokens."""
    config = job.setup.config
    try:
        name = config.encoding["name"]
        refuse_lookahead(job.model, config.train.length, name, "with its trained weights")
    except UserError as error:
        raise RunError(str(error)) from error


def describe_failures(rows: Sequence[Row]) -> str:
    """Return where a user's own code failed while these rows were scored, and the way out; or nothing."""
    failed = sorted((row for row in rows if row.status == "failed"), key=lambda row: row.length)
    if not failed:
        return ""
    lengths = ", ".join(str(length) for length in dict.fromkeys(row.length for row in failed))
    return (
        f"{failed[0].scored_with} could not be scored at {lengths}: {failed[0].reason}: mend it, or raise "
        "LengthError where the encoding is undefined; then score the same weights with "
        f"`pe-bench eval {failed[0].run} --code FILE --force`"
    )


def warn_of_changed_code(job: Job) -> None:
    """Warn where pe-bench's own file of an encoding is not what the run's earlier rows were made with."""
    encoding = EncodingSpec(job.setup.config.encoding)
    files = [part.code.path for part in encoding.parts if part.is_built_in]
    earlier = {(row.pe_bench, row.git): row for row in read_rows(job.setup.run / "eval.csv")}
    now = _version(package_version(), git_commit())
    for version, commit in earlier:
        if commit == git_commit() and version == package_version():
            continue
        for file in dict.fromkeys(changed_files(version, commit, files)):
            say(
                f"warning: {file.name} is not what rows of {job.setup.run.name} were made with "
                f"({_version(version, commit)} then, {now} now): old and new rows may not fit together"
            )


def _version(version: str, commit: str) -> str:
    return f"pe-bench {version}, git {commit}" if commit else f"pe-bench {version}"


def report_shortages(job: Job) -> None:
    for line in shortages(job.setup.config.eval, job.plans):
        say(line)


def _rows(trained: TrainedModel, plans: Sequence[Plan], bars: Bars) -> list[Row]:
    with bars(trained.scored_with, count_parts(plans)) as bar:
        return evaluate(trained, plans, ScoringProgress(bar))


def _with_encoding(other: OtherEncoding, job: Job) -> Decoder:
    """Return the job's model with another encoding in its place, which has the trained one's parameters.

    The rest of the two is one and the same in memory, and neither is changed.
    """
    config = job.setup.config
    encoding = other.encoding.build(config.model.n_layers, job.data.vocabulary)
    encoding.load_state_dict(job.model.encoding.state_dict(), strict=True)
    model = copy.copy(job.model)
    model._modules = {**job.model._modules, "encoding": encoding}
    dry_run_training(model, config.train.length, other.encoding.values["name"])
    return model.eval()


def _warn_of_other_data(job: Job, result: dict[str, object]) -> None:
    if result.get("data_hash") != job.data.hash:
        say(
            f"warning: data={job.setup.config.data.name} is not what {job.setup.run.name} was trained on "
            f"(hash {job.data.hash} now, {result.get('data_hash')} then): these rows get a table of their own"
        )
