"""Training: a configuration and data in; checkpoints and train.csv in the run's directory out."""

import csv
import io
import math
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from pe_bench.allocation import large_allocations_kept
from pe_bench.checkpoint import (
    Checkpoint,
    drop_old_checkpoints,
    latest_checkpoint,
    load_optimizer,
    load_weights,
    read_checkpoint,
    save_checkpoint,
)
from pe_bench.config import Config, TrainConfig
from pe_bench.data.batches import TrainingWindows
from pe_bench.data.packed import Data
from pe_bench.distributed.group import Group
from pe_bench.distributed.sharding import whole
from pe_bench.errors import RunError, first_line
from pe_bench.files import write_text
from pe_bench.loss import token_nll
from pe_bench.model import Decoder
from pe_bench.seeds import derive_seed
from pe_bench.signals import Stopped


@dataclass(frozen=True)
class Step:
    """What is known after one step; one in `train.log_every` is a row of train.csv."""

    step: int
    tokens: int
    loss: float  # nats per token, of this step's batch
    validation_loss: float | None
    lr: float
    gradient_norm: float
    seconds: float  # spent in steps, since the start of the run


Watcher = Callable[[Step], None]


def train(
    config: Config,
    model: Decoder,
    data: Data,
    run: Path,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watcher,
) -> Checkpoint:
    """Train `model` to `config.train.total_steps` and return the checkpoint of the last step.

    Goes on from the newest whole checkpoint of the run, and ends in the same weights as a run
    that was never stopped. Raises `RunError` when the loss is not finite.
    """
    take_steps(config, model, data, run, device, dtype, watch, Group())
    return last_checkpoint(config, run)


def take_steps(
    config: Config,
    model: Decoder,
    data: Data,
    run: Path,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watcher,
    group: Group,
) -> None:
    """What `train` does, in each process of a `group`, with the same arguments; the first of them writes."""
    model.to(device)
    folder = run / "checkpoints"
    if group.is_first:
        drop_old_checkpoints(folder)  # a killed process may have written one and not dropped another
    found = _newest(folder, group)
    if found is not None:
        load_weights(found, model)
    group.shard(model)
    optimizer = make_optimizer(model, config.train, device)
    if found is not None:
        load_optimizer(found, model, optimizer)
    log = _read_log(run / "train.csv", found.meta.step if found and group.is_first else 0)
    trainer = Trainer(config, model, optimizer, data, device, dtype, group)
    with large_allocations_kept():
        _take_steps(trainer, found, run, log, watch)


def last_checkpoint(config: Config, run: Path) -> Checkpoint:
    """That of the last step. Raises `RunError` where it is not there."""
    found = latest_checkpoint(run / "checkpoints")
    if found is None or found.meta.step != config.train.total_steps:
        raise RunError(
            f"the last checkpoint in {run / 'checkpoints'} is missing or damaged: repeat the command"
        )
    return found


def _newest(folder: Path, group: Group) -> Checkpoint | None:
    """The newest checkpoint, as the first process finds it: other machines may see the folder as it was."""
    found = latest_checkpoint(folder) if group.is_first else None
    name = group.told(found.path.name if found else "")
    if group.is_first or not name:
        return found
    found = read_checkpoint(folder / name)
    if found is None:
        raise RunError(
            f"{folder / name} cannot be read on {socket.gethostname()}: all machines have to see it"
        )
    return found


def _take_steps(
    trainer: "Trainer", found: Checkpoint | None, run: Path, log: list[Step], watch: Watcher
) -> None:
    """From the checkpoint that was found to the last step, with checkpoints and train.csv on the way.

    A signal that asks for an end is obeyed after the step at work, which is saved.
    """
    train, group, folder = trainer.config.train, trainer.group, run / "checkpoints"
    first, seconds = (found.meta.step, found.meta.train_seconds) if found else (0, 0.0)
    has_missed = log and log[-1].step == first and log[-1].validation_loss is None
    if group.any(bool(has_missed) and _validation_due(first, train)):  # it was stopped before that
        loss = trainer.validation_loss()
        log[-1:] = [replace(last, validation_loss=loss) for last in log[-1:]]
    with group.steps_finished() as is_asked:
        for step in range(first, train.total_steps):
            try:
                state = trainer.step(step, seconds)
            except NonFiniteError as error:
                raise RunError(
                    f"{error}; {_what_is_kept(folder)}: {_way_out(step, trainer.config)}"
                ) from error
            seconds = state.seconds
            if _validation_due(state.step, train):
                state = replace(state, validation_loss=trainer.validation_loss(is_asked))
            watch(state)
            if _due(state.step, train.log_every, train.total_steps) or _validation_due(state.step, train):
                log.append(state)
            asked = is_asked()
            if asked or _due(state.step, train.checkpoint_every, train.total_steps):
                if group.is_first:
                    _write_log(run / "train.csv", log)
                about = (state.step, seconds, state.loss)
                save_checkpoint(folder, trainer.model, trainer.optimizer, *about, writes=group.is_first)
            if asked:
                raise Stopped(
                    f"stopped at step {state.step} of {train.total_steps}, which is saved; "
                    "the same command goes on from there"
                )


def _way_out(step: int, config: Config) -> str:
    if step == 0:  # no weight has changed yet
        return f"try `pe-bench check {config.encoding['name']}`"
    return f"lower train.lr={config.train.lr:g}"


class NonFiniteError(ArithmeticError):
    """The loss or the gradient is infinite or not a number; the weights are as before the step."""


class Trainer:
    """One step at a time; each is a function of the weights, the optimizer and its number."""

    def __init__(
        self,
        config: Config,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        data: Data,
        device: torch.device,
        dtype: torch.dtype,
        group: Group | None = None,
    ):
        self.config, self.model, self.optimizer = config, model, optimizer
        self.device, self.dtype, self.group = device, dtype, group or Group()
        # On a GPU what lies between the products of matrices is fused. The model stays as it is, for scoring.
        fused = device.type == "cuda" and not self.group.is_sharded  # shares are gathered between the layers
        self.layers = torch.compile(model.layers) if fused else model.layers
        length = config.train.length
        self.windows = TrainingWindows(data.train, length, data.end_of_text)
        self.validation = TrainingWindows(data.validation, length, data.end_of_text, side="validation")

    def step(self, number: int, seconds: float) -> Step:
        """Step `number` (from zero); `seconds` were spent before it."""
        train = self.config.train
        started = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, train)
        # What an encoding may draw inside the model is a function of the step too.
        torch.manual_seed(derive_seed(self.config.seed, "model", number))
        windows = self.windows.batch(train.batch, self.config.seed, number)
        # Drawn for the whole batch: the parts must give what the whole would.
        windows, ids = self._share(windows, derive_seed(self.config.seed, "ids", number), train=True)
        ids_of_parts = ids.chunk(train.micro_batches) if ids.dim() == 2 else [ids] * train.micro_batches
        parts = zip(windows.chunk(train.micro_batches), ids_of_parts, strict=True)
        (loss,) = self.group.sum(sum(self._backward(part, part_ids) for part, part_ids in parts))
        self.group.sum_gradients(self.model)
        norm = float(whole(nn.utils.clip_grad_norm_(self.model.parameters(), train.clip)))
        self._refuse_non_finite(float(loss), norm, number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds += time.perf_counter() - started
        done, rate = number + 1, learning_rate(number, train)
        return Step(done, done * train.batch_tokens, float(loss), None, rate, norm, seconds)

    def _backward(self, windows: Tensor, ids: Tensor) -> float:
        """Add the gradient of one part of the batch; its share of the batch's mean loss."""
        nll = self.group.call(self._nll, windows, ids)
        loss = nll.sum() / (self.config.train.batch * self.config.train.length)
        loss.backward()
        return loss.item()

    @torch.no_grad()
    def validation_loss(self, is_asked: Callable[[], bool] = lambda: False) -> float | None:
        """Mean nats per token over windows of the validation documents, the same at every call.

        None where the process `is_asked` to end meanwhile.
        """
        length = self.config.train.length
        windows = self.validation.batch(max(1, self.config.train.validation_tokens // length), 0, 0)
        nll = []
        for part in windows.split(self.config.train.batch):
            if is_asked():
                return None
            windows, ids = self._share(part, derive_seed(0, "ids"), train=False)
            found = self.group.call(self._nll, windows, ids)
            nll.append(found if self.group.rank < len(part) else found[:0])
        return self.group.mean(torch.cat(nll))

    def _share(self, windows: Tensor, seed: int, *, train: bool) -> tuple[Tensor, Tensor]:
        """What this process has of a batch, and the position ids, which are drawn for all of it."""
        ids = self._ids(windows[:, :-1], seed, train=train)
        return self.group.share(windows), self.group.share(ids) if ids.dim() == 2 else ids

    def _ids(self, tokens_BT: Tensor, seed: int, *, train: bool) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return self.model.encoding.ids(tokens_BT.to(self.device), train=train, generator=generator)

    def _nll(self, windows: Tensor, ids: Tensor) -> Tensor:
        tokens_BT, targets_BT = windows[:, :-1].to(self.device), windows[:, 1:].to(self.device)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            hidden_BTD = self.layers(self.model.embed(tokens_BT, ids), ids)
            return token_nll(hidden_BTD.flatten(0, 1), self.model.output_weight, targets_BT.flatten())

    def _refuse_non_finite(self, loss: float, norm: float, number: int) -> None:
        if not math.isfinite(loss) or not math.isfinite(norm):
            what = f"the loss ({loss})" if not math.isfinite(loss) else f"the gradient's norm ({norm})"
            raise NonFiniteError(f"{what} is not finite at step {number + 1}")


def check_windows(data: Data, length: int) -> None:
    """Raises `UserError` when one side of the data is shorter than a window."""
    TrainingWindows(data.train, length, data.end_of_text)
    TrainingWindows(data.validation, length, data.end_of_text, side="validation")


def make_optimizer(model: Decoder, train: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW; only the decoder's matrices decay: no norm, embedding or parameter of an encoding."""
    decaying, other = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() == 2 and not name.startswith(("encoding.", "embedding."))
        (decaying if matrix else other).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": train.weight_decay},
        {"params": other, "weight_decay": 0.0},
    ]
    fused = device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, fused=fused)


def learning_rate(step: int, train: TrainConfig) -> float:
    """Linear warm-up, then a cosine that ends at `final_lr` times `lr` with the last step."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    past = (step - train.warmup_steps) / max(1, train.total_steps - 1 - train.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, past)))
    return train.lr * (train.final_lr + (1 - train.final_lr) * cosine)


def _what_is_kept(folder: Path) -> str:
    found = latest_checkpoint(folder)
    return f"the checkpoint of step {found.meta.step} is kept" if found else "no checkpoint was written yet"


def _validation_due(step: int, train: TrainConfig) -> bool:
    return _due(step, train.validate_every, train.total_steps)


def _due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def _read_log(path: Path, last_step: int) -> list[Step]:
    """The rows up to a step; later ones are done again."""
    if not path.exists() or last_step == 0:
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [_parse_step(record) for record in csv.DictReader(file)]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise RunError(
            f"{path} is damaged ({first_line(error)}): delete it and repeat the command"
        ) from error
    return [row for row in rows if row.step <= last_step]


def _parse_step(record: dict[str, str]) -> Step:
    validation = record["validation_loss"]
    return Step(
        step=int(record["step"]),
        tokens=int(record["tokens"]),
        validation_loss=float(validation) if validation else None,
        **{name: float(record[name]) for name in ("loss", "lr", "gradient_norm", "seconds")},
    )


def _write_log(path: Path, log: list[Step]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Step)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(step) for step in log)
    write_text(path, text.getvalue())
