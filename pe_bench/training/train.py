"""Training: a configuration and data in; checkpoints and train.csv in the run's directory out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pe_bench.config.schema import Config, TrainConfig
from pe_bench.data.batches import Windows
from pe_bench.data.packed import Data
from pe_bench.errors import RunError
from pe_bench.model.decoder import Decoder
from pe_bench.runs.setup import Setup
from pe_bench.system.memory import retain_freed_memory
from pe_bench.system.signals import Stopped
from pe_bench.training.checkpoint import (
    Checkpoint,
    delete_old_checkpoints,
    latest_checkpoint,
    load_optimizer,
    load_weights,
    read_checkpoint,
    save_checkpoint,
)
from pe_bench.training.group import Group
from pe_bench.training.log import Step, read_log, write_log
from pe_bench.training.optimizer import make_optimizer
from pe_bench.training.trainer import NonFiniteError, Trainer

StepWatcher = Callable[[Step], None]


def train(setup: Setup, model: Decoder, data: Data, watch: StepWatcher, group: Group | None = None) -> None:
    """Train `model` to its last step, of which a checkpoint is then on the disk.

    It goes on from the newest whole checkpoint of the run, and ends in the same weights as a run that was
    never stopped. Every process of a `group` calls this, and the first writes. Raise `RunError` where the
    loss is not finite.
    """
    config, group, folder = setup.config, group or Group(), setup.run / "checkpoints"
    model.to(setup.device)
    if group.is_first:
        delete_old_checkpoints(folder)  # a killed process may have written one and not dropped another
    found = _newest(folder, group)
    if found is not None:
        load_weights(found, model)
    optimizer = make_optimizer(model, config.train, setup.device)
    if found is not None:
        load_optimizer(found, model, optimizer)
    log = read_log(setup.run / "train.csv", found.meta.step if found and group.is_first else 0)
    trainer = Trainer(config, model, optimizer, data, setup.device, setup.dtype, group)
    with retain_freed_memory():
        _take_steps(trainer, found, setup.run, log, watch)


def last_checkpoint(setup: Setup) -> Checkpoint:
    """Return the checkpoint of the last step. Raise `RunError` where it is not there."""
    folder = setup.run / "checkpoints"
    found = latest_checkpoint(folder)
    if found is None or found.meta.step != setup.config.train.total_steps:
        raise RunError(f"the last checkpoint in {folder} is missing or damaged: repeat the command")
    return found


def _newest(folder: Path, group: Group) -> Checkpoint | None:
    """Return the checkpoint that the first process finds newest, so that all go on from the same one."""
    found = latest_checkpoint(folder) if group.is_first else None
    name = group.broadcast(found.path.name if found else "")
    if group.is_first or not name:
        return found
    found = read_checkpoint(folder / name)
    if found is None:
        raise RunError(f"{folder / name} cannot be read: repeat the command")
    return found


def _take_steps(
    trainer: "Trainer", found: Checkpoint | None, run: Path, log: list[Step], watch: StepWatcher
) -> None:
    """Take the steps after the checkpoint that was found, and write checkpoints and train.csv on the way.

    A signal that asks for an end is obeyed after the step at work, which is saved.
    """
    train, group, folder = trainer.config.train, trainer.group, run / "checkpoints"
    first, seconds = (found.meta.step, found.meta.train_seconds) if found else (0, 0.0)
    has_missed = log and log[-1].step == first and log[-1].validation_loss is None
    if group.any(bool(has_missed) and _validation_due(first, train)):
        # It was stopped before its validation loss: make up for it.
        loss = trainer.validation_loss()
        log[-1:] = [replace(last, validation_loss=loss) for last in log[-1:]]
    with group.finish_step_on_signal() as stop_requested:
        for step in range(first, train.total_steps):
            try:
                state = trainer.step(step, seconds)
            except NonFiniteError as error:
                raise RunError(
                    f"{error}; {_what_is_kept(folder)}: {_way_out(step, trainer.config)}"
                ) from error
            seconds = state.seconds
            if _validation_due(state.step, train):
                state = replace(state, validation_loss=trainer.validation_loss(stop_requested))
            watch(state)
            if _due(state.step, train.log_every, train.total_steps) or _validation_due(state.step, train):
                log.append(state)
            is_stopping = stop_requested()
            is_due = is_stopping or _due(state.step, train.checkpoint_every, train.total_steps)
            if is_due and group.is_first:
                write_log(run / "train.csv", log)
                about = (state.step, seconds, state.loss)
                save_checkpoint(folder, trainer.model, trainer.optimizer, *about)
            if is_stopping:
                raise Stopped(
                    f"stopped at step {state.step} of {train.total_steps}, which is saved; "
                    "the same command continues from there"
                )


def _way_out(step: int, config: Config) -> str:
    if step == 0:  # no weight has changed yet
        return f"try `pe-bench check {config.encoding['name']}`"
    return f"lower train.lr={config.train.lr:g}"


def check_windows(data: Data, length: int) -> None:
    """Raise `UserError` where one side of the data has no window of this length."""
    Windows(data, length)
    Windows(data, length, side="validation")


def _what_is_kept(folder: Path) -> str:
    found = latest_checkpoint(folder)
    return f"the checkpoint of step {found.meta.step} is kept" if found else "no checkpoint was written yet"


def _validation_due(step: int, train: TrainConfig) -> bool:
    return _due(step, train.validate_every, train.total_steps)


def _due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last
