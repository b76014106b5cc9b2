"""`pe_bench.evaluate`: a run at other lengths or under other encodings, as `pe-bench eval` scores it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config.checks import refuse_unused_options
from pe_bench.config.parse import parse_config, to_plain, without_none
from pe_bench.config.schema import Config
from pe_bench.errors import require
from pe_bench.experiment.checkpoint import is_checkpoint
from pe_bench.experiment.prepare import trusted
from pe_bench.experiment.score import score_run
from pe_bench.interface.checkpoint import prepare_checkpoint_scoring
from pe_bench.interface.request import Request, listed, read_lengths, read_request
from pe_bench.interface.run import Run
from pe_bench.interface.values import plain as as_plain
from pe_bench.runs.conditions import named_runs
from pe_bench.runs.config_file import read_config
from pe_bench.runs.find import find_run, require_finished
from pe_bench.scoring.needles import Probe
from pe_bench.scoring.other_encodings import OtherEncoding, find_others
from pe_bench.scoring.plans import make_plans
from pe_bench.system.signals import interruptible


@dataclass(frozen=True)
class Scoring:
    """A run that can be scored: every mistake in the request has been found."""

    run: Path
    config: Config
    others: Sequence[OtherEncoding]
    asked: Sequence[int]  # lengths that the request names
    judge: Path | None = None
    probe: Probe | None = None

    def score(self, results_dir: Path, *, waits: Callable[[str], None] | None = None) -> Run:
        """Score the run, and gather all rows of `results_dir` where it lies there. Raises `RunError`.

        Where another process works on the run, `waits` is called with a message, and the run is waited for.
        """
        planner = make_plans if self.probe is None else self.probe.plans
        rows = score_run(self.run, self.config, results_dir, self.others, self.judge, planner, waits=waits)
        return Run(self.run, rows, self.config.report.margin, self.asked)


def evaluate(
    run: Run | str | Path,
    lengths: int | Sequence[int] | None = None,
    with_: str | Sequence[str] | None = None,
    *,
    protocol: str | None = None,
    max_length: int | None = None,
    targets: int | None = None,
    stride: int | None = None,
    controls: str | None = None,
    per_position: bool | None = None,
    precision: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    force: bool = False,
    key_tokens_of: Run | str | Path | None = None,
    config_dir: str | Path | Sequence[str | Path] | None = None,
    code: str | Path | Sequence[str | Path] | None = None,
    data_path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
    plain: bool = False,
) -> Run:
    """Score a finished run at other lengths, or its weights under other encodings, and return the run.

        pe_bench.evaluate(run, lengths=[512, 2048], with_=["yarn", "rope_ntk factor=4"])
        pe_bench.evaluate("hf:FOLDER", [4096], overrides=["data=files", "data.path=texts"])

    run: what `train` returned, or a path, a name, its beginning or an encoding that only one run of
    `results_dir` has; or hf:FOLDER or hf:OWNER/NAME[@REVISION], a checkpoint of Hugging Face. lengths:
    context lengths in tokens. with_: names of encodings, each with its options. overrides: of a checkpoint,
    KEY=VALUE of data, eval and train.length. All other arguments are the options of `pe-bench eval`; None
    keeps the run's value. Finished scores are reused, and progress is written on standard error.

    Raises `UserError` (a `ValueError`) before anything is scored where there is no such run or an option
    cannot work, `RunError` where scoring fails.
    """
    changes: dict[str, Any] = {"lengths": read_lengths(lengths)}
    changes |= {"protocol": protocol, "max_length": as_plain(max_length), "targets": as_plain(targets)}
    changes |= {"stride": as_plain(stride), "controls": controls, "per_position": per_position}
    changes |= {"precision": precision}
    machine = {"device": device, "threads": threads, "cache_dir": cache_dir}
    request = read_request(changes, machine, with_, code, data_path, config_dir, force=force)
    return score_named(run, request, Path(results_dir), listed(overrides), plain=plain, judge=key_tokens_of)


def score_named(
    run: Run | str | Path,
    request: Request,
    results_dir: Path,
    overrides: Sequence[str],
    *,
    plain: bool,
    judge: Run | str | Path | None = None,
) -> Run:
    """Score the run or the checkpoint that an argument of a call names. Raises `UserError`, `RunError`."""
    if not isinstance(run, Run) and is_checkpoint(str(run)):
        for option, value in {"key_tokens_of": judge, "code": request.code}.items():
            require(not value, f"{option} has no effect on a checkpoint: leave it out")
        scoring = prepare_checkpoint_scoring(str(run), overrides, request, results_dir, plain=plain)
        return scoring.score()
    require(not overrides, "overrides are for a checkpoint (hf:FOLDER): a run keeps its data")
    require(not plain, "plain is for a checkpoint (hf:FOLDER): leave it out")
    path = run.path if isinstance(run, Run) else _find(str(run), results_dir)
    results = path.parent.parent if path.parent.name == "runs" else results_dir
    judge = judge.path if isinstance(judge, Run) else judge
    judge = None if judge is None else find_run(str(judge), results)
    request.check_code()
    run_scoring = prepare_scoring(path, replace(request, judge=judge))
    with interruptible():
        return run_scoring.score(results)


def prepare_scoring(run: Path, request: Request) -> Scoring:
    """Return how a run is scored. Raises `UserError` for a damaged run and for options that cannot work."""
    request.check_runs([run])
    changed = _changed(read_config(run), request)
    config = trusted(changed, request.code, may_differ=request.others.force)
    others = find_others(request.others, run.name, config)
    asked = request.evaluation.get("lengths") or ()
    return Scoring(run, config, others, asked, request.judge, request.probe)


def _find(name: str, results_dir: Path) -> Path:
    found = [require_finished(run) for run in named_runs([name], results_dir, anywhere=True)]
    names = ", ".join(run.name for run in found)
    require(len(found) == 1, f"'{name}' is the name of several runs: give one in full: {names}", name)
    return found[0]


def _changed(trained: Config, request: Request) -> Config:
    """Return the run's configuration with the changes of the request, checked like any other."""
    changes = request.evaluation
    if request.base is not None:
        trained = replace(trained, eval=request.base)
    # A run may come from a stranger: where tokens are cached is for its reader to say.
    values = {**to_plain(trained), "cache_dir": None, **without_none(dict(request.machine))}
    if changes.get("protocol") not in (None, "paired"):
        values["eval"]["controls"] = "auto"  # the run's own are of another protocol
    values["eval"].update(without_none(dict(changes)))
    if request.data_path is not None:
        values["data"]["path"] = str(request.data_path)
    config = parse_config(values)
    refuse_unused_options(config, changes)
    return config
