"""Score a run with its own encoding and with others."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pe_bench.config.schema import Config
from pe_bench.encodings.load import build_encoding
from pe_bench.errors import UserError
from pe_bench.experiment.prepare import Job, prepare
from pe_bench.experiment.progress import scoring_progress
from pe_bench.model.decoder import Decoder
from pe_bench.model.dry_run import dry_run_training
from pe_bench.runs.commands import record_command
from pe_bench.runs.gather import gather_and_warn, read_result, runs_folder
from pe_bench.runs.lock import locked
from pe_bench.runs.rows import Row
from pe_bench.scoring.evaluate import Subject, evaluate
from pe_bench.scoring.other_encodings import Other
from pe_bench.scoring.plans import count_parts, shortages
from pe_bench.scoring.protocols import Plan
from pe_bench.system.files import remove_leftovers
from pe_bench.system.progress import Bars, progress_bar
from pe_bench.system.terminal import say
from pe_bench.training.checkpoint import (
    Checkpoint,
    final_checkpoint,
    load_weights,
)


def score_run(
    run: Path,
    config: Config,
    results_dir: Path,
    others: Sequence[Other] = (),
    search: Sequence[Path] = (),
) -> list[Row]:
    """Score a finished run at the lengths of its `config`, then its weights under `others`.

    The classes of `config` are `trusted`; those of `others` may lie in the folders `search`. The rows are
    gathered when the run is one of `results_dir`.
    """
    result = read_result(run) or {}
    job = replace(prepare(config), run=run)
    if "setting" in result:  # of the training, wherever it is scored
        job = replace(
            job, setting=str(result["setting"]), train_dtype=str(result.get("train_dtype", job.train_dtype))
        )
    trained = final_checkpoint(run, config.train.total_steps)
    if trained is None:
        raise UserError(
            f"{run / 'checkpoints'} has no whole checkpoint of step {config.train.total_steps}: "
            "repeat the command that trained the run"
        )
    _warn_of_other_data(job, result)
    with locked(run):
        remove_leftovers(run)
        rows = score_encodings(job, trained, others, search)
    if run.resolve().parent == runs_folder(results_dir).resolve():
        gather_and_warn(results_dir)
    return rows


def score_encodings(
    job: Job,
    trained: Checkpoint,
    others: Sequence[Other] = (),
    search: Sequence[Path] = (),
    bars: Bars = progress_bar,
) -> list[Row]:
    """The rows of the run's own encoding, then those of the others, at the same lengths and targets."""
    record_command(job.run)
    load_weights(trained, job.model)
    # All are built before any is scored, for what is wrong with the last is told first.
    models = [_under(other, job, search) for other in others]
    speed = trained.meta.step * job.config.train.batch_tokens / trained.meta.train_seconds
    own = trained_model(job, speed)  # moves what all of them share to the device
    for model in models:
        model.encoding.to(job.device)
    report_shortages(job)
    subjects = [
        replace(own, model=model, scored_with=other.label, forced=other.forced)
        for model, other in zip(models, others, strict=True)
    ]
    return [row for subject in (own, *subjects) for row in _rows(subject, job.plans, bars)]


def report_shortages(job: Job) -> None:
    for line in shortages(job.config, job.config.eval, job.plans):
        say(line)


def _rows(subject: Subject, plans: Sequence[Plan], bars: Bars) -> list[Row]:
    with scoring_progress(bars, subject.scored_with, count_parts(plans)) as watch:
        return evaluate(subject, subject.config.eval, plans, watch)


def _under(other: Other, job: Job, search: Sequence[Path]) -> Decoder:
    """The job's model with another encoding in its place, which has the trained one's parameters.

    The rest of the two is one and the same in memory, and neither is changed.
    """
    encoding = build_encoding(other.encoding, job.config.model.n_layers, search, job.data.vocabulary)
    encoding.load_state_dict(job.model.encoding.state_dict(), strict=True)
    model = copy.copy(job.model)
    model._modules = {**job.model._modules, "encoding": encoding}
    dry_run_training(model, job.config.train.length, other.encoding["name"])
    return model.eval()


def trained_model(job: Job, tokens_per_second: float) -> Subject:
    config = job.config
    return Subject(
        run=job.run,
        config=config,
        model=job.model.to(job.device).eval(),
        data=job.data,
        device=job.device,
        threads=job.threads,
        train_dtype=job.train_dtype,
        setting=job.setting,
        label=job.label,
        scored_with=job.label,
        tokens_per_second=tokens_per_second,
    )


def _warn_of_other_data(job: Job, result: dict[str, object]) -> None:
    if result.get("data_hash") != job.data.hash:
        say(
            f"warning: data={job.config.data.name} is not what {job.run.name} was trained on "
            f"(hash {job.data.hash}, then {result.get('data_hash')}): these rows get a table of their own"
        )
