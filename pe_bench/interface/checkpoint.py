"""A checkpoint of Hugging Face, as `pe_bench.evaluate("hf:...")` and `pe-bench eval hf:...` score it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.config.checks import check_folder
from pe_bench.config.override import quote
from pe_bench.experiment.checkpoint import (
    CheckpointJob,
    prepare_checkpoint,
    require_replaceable,
    score_checkpoint,
)
from pe_bench.interface.request import Request
from pe_bench.interface.run import Run
from pe_bench.scoring.other_encodings import OtherEncoding, find_others
from pe_bench.scoring.plans import make_plans
from pe_bench.system.signals import interruptible


@dataclass(frozen=True)
class CheckpointScoring:
    """A checkpoint that can be scored: every mistake in the request has been found."""

    job: CheckpointJob
    others: Sequence[OtherEncoding]
    asked: Sequence[int]  # lengths that the request names

    def score(self) -> Run:
        """Score the checkpoint, and gather all rows of the folder of results. Raises `RunError`."""
        with interruptible():
            rows = score_checkpoint(self.job, self.others)
        setup = self.job.setup
        return Run(setup.run, rows, setup.config.report.margin, self.asked)


def prepare_checkpoint_scoring(
    name: str, overrides: Sequence[str], request: Request, results_dir: Path, *, plain: bool
) -> CheckpointScoring:
    """Return how hf:FOLDER or hf:OWNER/NAME is scored, and write nothing. Raises `UserError`."""
    check_folder(results_dir, "--results-dir", is_written=True)
    path = [f"data.path={quote(str(request.data_path))}"] if request.data_path is not None else []
    job = prepare_checkpoint(
        name,
        [*overrides, *path],
        dict(request.evaluation),
        dict(request.machine),
        results_dir,
        plain=plain,
        planner=make_plans if request.probe is None else request.probe.plans,
        prompts=None if request.probe is None else request.probe.prompts,
    )
    if request.others.encodings:
        require_replaceable(job)
    others = find_others(request.others, job.setup.run.name, job.setup.config)
    return CheckpointScoring(job, others, request.evaluation.get("lengths") or ())
