"""Training of a job: the loop over steps, with validation loss, checkpoints, train.csv and progress."""

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pe_bench.config.schema import Config
from pe_bench.data.batches import Batch, windows_of
from pe_bench.data.packed import Data
from pe_bench.errors import RunError
from pe_bench.model.checks import check_command, user_code_errors
from pe_bench.model.decoder import Decoder, derive_seed
from pe_bench.runs.job import Job
from pe_bench.system.machine import adapt_threads, keep_freed_memory, multiplies_bfloat16, set_threads
from pe_bench.system.signals import Stopped, finish_step_on_signal, local_world_size
from pe_bench.system.terminal import PROGRESS_LINES_PER_RUN, Bar, duration
from pe_bench.training import checkpoint
from pe_bench.training.checkpoint import Checkpoint, Step
from pe_bench.training.group import SINGLE_PROCESS, Group
from pe_bench.training.optimizer import learning_rate, make_optimizer
from pe_bench.training.sharding import average_replicated, is_sharded, own_part, shard

StepWatcher = Callable[[Step], None]
NOTHING_TO_DO = "nothing to do"  # the first process's message to the others for a finished run


def fit(job: Job, watch: StepWatcher, group: Group = SINGLE_PROCESS) -> None:
    """Train the model of a job, and write the checkpoint of its last step.

    Training continues from the newest whole checkpoint of the run, and ends in the same weights as without a
    stop. watch: is called after each step. Every process of the `group` calls this, and the first writes.
    Raise `RunError` for a loss that is not finite.
    """
    folder = job.folder / "checkpoints"
    model = job.model
    assert isinstance(model, Decoder), "a Hugging Face model has its own training"
    newest = checkpoint.latest_checkpoint(folder) if group.is_first else None
    name = group.broadcast(newest.path.name if newest else "")
    if name == NOTHING_TO_DO:
        return
    if name and newest is None:  # all processes continue from the checkpoint that the first has found
        newest = checkpoint.read_checkpoint(folder / name)
        if newest is None:
            raise RunError(f"{folder / name} cannot be read: repeat the command")
    model.to(job.device)
    if newest is not None:
        checkpoint.load_weights(newest.path, model)
    if job.config.train.sharding:
        model = copy.deepcopy(model)  # scoring needs the run's own model unsharded
    trainer = Trainer(job.config, model, job.data, job.device, job.dtype, group)
    if newest is not None:
        checkpoint.load_optimizer(newest, model, trainer.optimizer)
    if local_world_size() > 1:  # several processes share the machine's cores
        set_threads(max(1, job.threads // local_world_size()))
    keep_freed_memory()
    _take_steps(trainer, newest, job.folder, watch)
    if local_world_size() > 1:
        set_threads(job.threads)


def _take_steps(trainer: "Trainer", newest: Checkpoint | None, run: Path, watch: StepWatcher) -> None:
    """Take the steps after the newest checkpoint, and write checkpoints and train.csv.

    watch: is called after each step. After a signal, the current step is saved, and `Stopped` is raised.
    """
    train = trainer.config.train
    group = trainer.group
    first, seconds = (newest.step, newest.train_seconds) if newest else (0, 0.0)
    log = checkpoint.read_log(run / "train.csv", first)

    def is_due(step: int, every: int) -> bool:
        return step % every == 0 or step == train.total_steps

    with finish_step_on_signal() as is_asked:
        for number in range(first, train.total_steps):
            adapt_threads()
            state = trainer.step(number, seconds)
            step, seconds = state.step, state.seconds
            if is_validated := is_due(step, train.validate_every):
                state = replace(state, validation_loss=trainer.validation_loss())
            watch(state)
            if is_validated or is_due(step, train.log_every):
                log.append(state)
            is_stopping = group.any(is_asked())  # every process stops after the same step
            if is_stopping or is_due(step, train.checkpoint_every):
                if group.is_first:
                    checkpoint.write_log(run / "train.csv", log)
                if group.is_first or train.sharding:
                    checkpoint.save_checkpoint(
                        run / "checkpoints",
                        trainer.model,
                        trainer.optimizer,
                        state,
                        group if train.sharding else SINGLE_PROCESS,
                    )
            if is_stopping:
                group.wait()  # until the first has saved: the launcher ends all processes once one has ended
                way_on = "the same command continues from there"
                raise Stopped(f"stopped at step {step} of {train.total_steps}, which is saved; {way_on}")


class Losses(nn.Module):
    """The losses of windows as a module, which PyTorch can split among processes."""

    def __init__(self, model: Decoder):
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor, ids: Tensor, has_loss: Tensor | None) -> Tensor:
        """Return the negative log-likelihood of each target that has a loss, in nats."""
        hidden_BTD = self.model.hidden(tokens_BT, ids)
        hidden_ND = hidden_BTD.flatten(0, 1)
        return self.model.loss(hidden_ND, self.model.output_weight, targets_BT.flatten(), has_loss)


class Trainer:
    """A trainer whose every step is a function of the weights, the optimizer and the step's number."""

    def __init__(
        self,
        config: Config,
        model: Decoder,
        data: Data,
        device: torch.device,
        dtype: torch.dtype,
        group: Group = SINGLE_PROCESS,
    ):
        self.config = config
        self.model = model
        self.group = group
        self.device = device
        self.dtype = dtype
        is_split = config.train.sharding is not None
        self.losses = Losses(model)
        self.together: Any = self.losses  # wrapped for several processes
        if is_split:
            shard(self.losses, model, device, dtype)
        muon_dtype = dtype if multiplies_bfloat16(device) else None
        self.optimizer = make_optimizer(model, config.train, muon_dtype)
        if self.group.count > 1 and not is_split:
            # With this setting PyTorch never regroups gradients, which would change the last digits of their
            # sums. It warns if no parameter is unused, so there is an unused parameter.
            self.losses.register_parameter("unused", nn.Parameter(torch.zeros(1, device=device)))
            self.together = DistributedDataParallel(self.losses, find_unused_parameters=True)
        self.windows = windows_of(data, config.train.length)
        self.validation = windows_of(data, config.train.length, split_name="validation")

    def step(self, number: int, seconds: float) -> Step:
        """Take step `number` (from zero), and return its facts. seconds: spent in steps before it.

        Raises `RunError` for a loss or gradient that is not finite.
        """
        train = self.config.train
        started = time.perf_counter()
        rate = learning_rate(number, train)
        self.optimizer.set_rate(rate)
        # Random numbers that an encoding draws inside the model follow from the step too.
        torch.manual_seed(derive_seed(self.config.seed, "model", number))
        batch = self.windows.batch(train.batch, self.config.seed, number)
        count = train.micro_batches
        losses: list[float] = []
        with user_code_errors(self.model.encoding, kind=RunError):
            # Ids are drawn for the whole batch: parts must give the same results as the whole.
            share, ids = self._own_share(batch, derive_seed(self.config.seed, "ids", number), train=True)
            parts = share.split(len(share.tokens) // count)
            part_ids = ids.chunk(count) if ids.dim() == 2 else [ids] * count
            for part, own_ids in zip(parts, part_ids, strict=True):
                is_last = len(losses) == count - 1
                losses.append(self._backward(part, own_ids, batch.n_losses, is_last=is_last))
        (loss,) = self.group.sum(sum(losses))
        norm = self._clip()
        self._refuse_non_finite(loss, norm, number)
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds += time.perf_counter() - started
        return Step(number + 1, (number + 1) * train.batch_tokens, loss, None, rate, norm, seconds)

    def _clip(self) -> float:
        """Scale all gradients to a norm of `train.clip` if their norm is larger; return the norm before."""
        clip = self.config.train.clip
        parameters = self.model.parameters()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm([gradient for gradient in gradients if not is_sharded(gradient)])
        if self.config.train.sharding:
            parts = [own_part(gradient) for gradient in gradients if is_sharded(gradient)]
            (squares,) = self.group.sum(float(nn.utils.get_total_norm(parts)) ** 2)
            norm = (norm**2 + squares).sqrt()
        if norm > clip:  # multiplying by 1 would take as long
            torch._foreach_mul_([own_part(gradient) for gradient in gradients], clip / (norm + 1e-6))  # pyright: ignore[reportPrivateImportUsage]
        return float(norm)

    def _backward(self, part: Batch, ids: Tensor, count: int, *, is_last: bool) -> float:
        """Add the gradient of a part's share in the batch's mean loss, and return this share, in nats.

        part: a part of a batch with `count` losses. is_last: this is the last part of the step.

        The differentiated loss is multiplied by the number of processes, because after the last part each
        process gets the mean of all gradients, and a step needs their sum.
        """
        sharding = self.config.train.sharding
        if sharding:
            self.together.set_requires_gradient_sync(is_last)
        keeps_gradients = self.group.count > 1 and not sharding and not is_last
        with self.together.no_sync() if keeps_gradients else nullcontext():
            loss = self._nll(part, ids, self.together).sum() / count
            (loss * self.group.count).backward()
        if sharding and is_last:
            average_replicated(self.model)
        return loss.item()

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean nats per token over windows of validation documents, the same at every call."""
        batch = self.validation.batch(self.config.train.validation_windows, 0, 0)
        nll = []
        with user_code_errors(self.model.encoding, kind=RunError):
            for part in batch.split(self.config.train.batch):
                share, ids = self._own_share(part, derive_seed(0, "ids"), train=False)
                nll_of_share = self._nll(share, ids, self.losses)
                nll.append(nll_of_share if self.group.rank < len(part.tokens) else nll_of_share[:0])
        values = torch.cat(nll)
        total, count = self.group.sum(float(values.double().sum()), len(values))
        return total / count

    def _own_share(self, batch: Batch, seed: int, *, train: bool) -> tuple[Batch, Tensor]:
        """Return this process's windows of a batch, and their position ids, drawn for the whole batch."""
        generator = torch.Generator().manual_seed(seed)
        inputs_BT = batch.tokens[:, :-1].to(self.device)
        ids = self.model.encoding.ids(inputs_BT, train=train, generator=generator)
        own_ids = self.group.share(ids) if ids.dim() == 2 else ids
        return batch.map(self.group.share), own_ids

    def _nll(self, batch: Batch, ids: Tensor, losses: nn.Module) -> Tensor:
        """Return the negative log-likelihood of each target that has a loss in a batch, [N], in nats.

        ids: the position ids. losses: `Losses`, alone or split among processes.
        """
        inputs_BT = batch.tokens[:, :-1].to(self.device)
        targets_BT = batch.tokens[:, 1:].to(self.device)
        has_loss = None if batch.is_answer is None else batch.is_answer[:, 1:].to(self.device).flatten()
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return losses(inputs_BT, targets_BT, ids, has_loss)

    def _refuse_non_finite(self, loss: float, norm: float, number: int) -> None:
        """Raise `RunError` for a loss or a gradient that is infinite or NaN, before it changes a weight."""
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"the gradient's norm ({norm})" if math.isfinite(loss) else f"the loss ({loss})"
        way_out = f"what was saved is kept: lower train.lr={self.config.train.lr:g}"
        if number == 0:  # no weight has changed yet
            way_out = f"try `{check_command(self.config)}`"
        raise RunError(f"{what} is not finite at step {number + 1}; {way_out}")


def show_progress(bar: Bar, state: Step, total: int) -> None:
    """Show the loss, tokens per second and the time left in a bar, after a step of a run of `total` steps."""
    step = state.step
    left = state.seconds * (total - step) / step
    speed = f"{state.tokens / state.seconds:,.0f} tokens/s  {duration(left)} left"
    text = f"step {step} of {total}  loss {state.loss:.3f}  {speed}"
    is_due = step * PROGRESS_LINES_PER_RUN // total > (step - 1) * PROGRESS_LINES_PER_RUN // total
    bar.show(step, text, text if is_due else None)
