"""Find everything that can be wrong with a job before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, load_data
from pe_bench.encodings.identity import encoding_identity, encoding_label, with_code_hashes, with_trusted_code
from pe_bench.errors import UserError
from pe_bench.experiment.trackers import check_tracker
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.model.dry_run import dry_run_training
from pe_bench.model.user_code import user_code_errors
from pe_bench.runs.config_file import read_config
from pe_bench.runs.find import find_run
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.identity import encoding_in, identity, run_name, setting
from pe_bench.scoring.plans import make_plans
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
    """A configuration with all that follows from it, before anything is written."""

    config: Config
    run: Path
    setting: str
    label: str
    data: Data
    plans: list[Plan]
    model: Decoder
    device: torch.device
    dtype: torch.dtype
    train_dtype: str
    threads: int
    search: tuple[Path, ...] = ()  # folders in which an encoding's file may lie
    source: Checkpoint | None = None  # whose weights it starts from


@explain_out_of_memory()
def check(config: Config, search: Sequence[Path] = ()) -> Job:
    """A job that is ready to run: all that can be found wrong is, and nothing is written.

    Raises `UserError`.
    """
    word = config.train.from_run
    job = prepare(_name_source(config), search)
    check_processes(job.config, job.device)
    check_tracker(config.tracker)
    if word is not None and latest_checkpoint(job.run / "checkpoints") is None:
        source = _source(word, Path(config.results_dir))
        load_weights(source, job.model)
        job = replace(job, source=source)
    return job


def trusted(config: Config, code: Sequence[Path]) -> Config:
    """A run's configuration, which names no class from outside but those in files that the user named."""
    return replace(config, encoding=with_trusted_code(config.encoding, code))


def prepare(config: Config, search: Sequence[Path] = ()) -> Job:
    """Everything that can be found wrong before a directory is made. Raises `UserError`."""
    device, threads = resolve_device(config.device), set_threads(config.threads)
    data = load_data(config.data, config.tokenizer, config.cache_dir)
    config = replace(config, encoding=with_code_hashes(config.encoding, search))
    with user_code_errors():
        model = build_decoder(config, data.vocabulary, search)
    dry_run_training(model, config.train.length, config.encoding["name"])
    plans = make_plans(config, config.eval, data)
    check_windows(data, config.train.length)
    dtype = resolve_precision(config.precision, config.device)
    known = identity(config, data.hash, _name(dtype), encoding_identity(config.encoding, search))
    return Job(
        config=config,
        run=runs_folder(Path(config.results_dir)) / run_name(config, known),
        setting=setting(known),
        label=_label(config, search),
        data=data,
        plans=plans,
        model=model,
        device=device,
        dtype=dtype,
        train_dtype=_name(dtype),
        threads=threads,
        search=tuple(search),
    )


def _name_source(config: Config) -> Config:
    """`train.from` as the name of the run, which holds the hash of what it is, wherever it lies."""
    word = config.train.from_run
    if word is None:
        return config
    try:
        name = find_run(word, Path(config.results_dir)).name
    except UserError:
        name = Path(word).name  # it may be gone: only a run that has not begun needs it
    return replace(config, train=replace(config.train, from_run=name))


def _source(word: str, results_dir: Path) -> Checkpoint:
    """The final checkpoint of the run that `train.from` names."""
    run = find_run(word, results_dir)
    found = final_checkpoint(run, read_config(run).train.total_steps)
    if found is None:
        raise UserError(f"train.from={word}: {run} has no whole checkpoint of its last step")
    return found


def _label(config: Config, search: Sequence[Path]) -> str:
    """The encoding, and whose weights it started from: one that was only fine-tuned is no other's equal."""
    label, source = encoding_label(config.encoding, search), config.train.from_run
    return f"{label} from={encoding_in(source)}" if source else label


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
