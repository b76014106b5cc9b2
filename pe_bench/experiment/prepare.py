"""Find everything that can be wrong with a job before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, load_data_of
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, require
from pe_bench.experiment.trackers import check_tracker
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.model.dry_run import dry_run_training
from pe_bench.model.user_code import user_code_errors
from pe_bench.runs.config_file import read_config
from pe_bench.runs.find import find_run
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.identity import encoding_in, identity, run_name, setting
from pe_bench.runs.setup import Setup
from pe_bench.scoring.plans import Planner, make_plans
from pe_bench.scoring.protocols import Plan
from pe_bench.system.machine import resolve_device, resolve_precision, set_threads
from pe_bench.system.memory import explain_out_of_memory
from pe_bench.training.checkpoint import (
    Checkpoint,
    final_checkpoint,
    latest_checkpoint,
    load_weights,
)
from pe_bench.training.launch import check_processes
from pe_bench.training.train import check_windows


@dataclass(frozen=True)
class Job:
    """A run that is ready to begin: its setup, its data, its untrained model, and what to score it on."""

    setup: Setup
    data: Data
    model: Decoder
    plans: list[Plan]
    source: Checkpoint | None = None  # whose weights it starts from


@explain_out_of_memory()
def prepare_job(config: Config) -> Job:
    """Return a job that is ready to run, and write nothing. Raise `UserError` for all that can be wrong."""
    require(config.checkpoint is None, "a checkpoint is scored and not trained: say pe-bench eval hf:FOLDER")
    source = config.train.from_run
    job = build_job(_name_source(config))
    check_processes(job.setup.config, job.setup.device)
    check_tracker(config.tracker)
    if source is None or latest_checkpoint(job.setup.run / "checkpoints") is not None:
        return job
    found = _source(source, Path(config.results_dir))
    load_weights(found, job.model)
    return replace(job, source=found)


def trusted(config: Config, code: Sequence[Path], *, may_differ: bool = False) -> Config:
    """Return a run's configuration with no class from outside but those in files that the user named.

    may_differ: the files may have changed after the training.
    """
    encoding = EncodingSpec(config.encoding).with_trusted_code(code, may_differ=may_differ)
    return replace(config, encoding=encoding.values)


def build_job(config: Config, planner: Planner = make_plans) -> Job:
    """Build and try all that a run needs, before a folder is made. Raise `UserError` for what is wrong."""
    device, threads = resolve_device(config.device), set_threads(config.threads)
    data = load_data_of(config)
    encoding = EncodingSpec(config.encoding, config.search).with_code_hashes()
    config = replace(config, encoding=encoding.values)
    with user_code_errors():
        model = build_decoder(config, data.vocabulary, encoding)
    dry_run_training(model, config.train.length, config.encoding["name"])
    plans = planner(config, config.eval, data)
    check_windows(data, config.train.length)
    dtype = resolve_precision(config.precision, config.device)
    known = identity(config, data.hash, str(dtype).removeprefix("torch."), encoding.identity())
    setup = Setup(
        config=config,
        run=runs_folder(Path(config.results_dir)) / run_name(config, known),
        setting=setting(known),
        label=_label(config, encoding),
        device=device,
        dtype=dtype,
        threads=threads,
    )
    return Job(setup, data, model, plans)


def _name_source(config: Config) -> Config:
    """Replace `train.from` by the name of the run: its hash says what the run is, wherever it lies."""
    source = config.train.from_run
    if source is None:
        return config
    try:
        name = find_run(source, Path(config.results_dir)).name
    except UserError:
        name = Path(source).name  # it may be gone: only a run that has not begun needs it
    return replace(config, train=replace(config.train, from_run=name))


def _source(name: str, results_dir: Path) -> Checkpoint:
    """Return the final checkpoint of the run that `train.from` names."""
    run = find_run(name, results_dir)
    found = final_checkpoint(run, read_config(run).train.total_steps)
    if found is None:
        raise UserError(f"train.from={name}: {run} has no whole checkpoint of its last step")
    return found


def _label(config: Config, encoding: EncodingSpec) -> str:
    """Name the encoding, and the run whose weights it started from: fine-tuning makes another line."""
    label, source = encoding.label, config.train.from_run
    return f"{label} from={encoding_in(source)}" if source else label
