"""Further training of a Hugging Face model: training windows in, trained weights and train.csv out.

Weights and optimizer state are float32, and matrices may be multiplied in bfloat16. Each layer is computed
again for its gradients, and the loss is computed in chunks of tokens: memory holds the hidden states of all
layers, and other activations of one layer at a time.

Letters: B windows, T tokens, N tokens of all windows, D model width.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint as recomputed

from pe_bench.config.schema import TrainConfig
from pe_bench.data.batches import TrainingWindows
from pe_bench.errors import RunError, require
from pe_bench.hf.model import HuggingFaceModel
from pe_bench.model.decoder import derive_seed
from pe_bench.model.layers import MAX_LOGIT_ELEMENTS
from pe_bench.system.machine import adapt_threads
from pe_bench.system.signals import Stopped, finish_step_on_signal
from pe_bench.training import checkpoint
from pe_bench.training.checkpoint import Checkpoint, Step
from pe_bench.training.group import Group
from pe_bench.training.optimizer import Optimizer, ParameterGroup, learning_rate

EMBEDDING_NAME_PART = "embed"  # a part of the names of parameters that do not decay


@dataclass(frozen=True)
class Settings:
    """The settings of a further training: with the weights and the text, they decide every step."""

    train: TrainConfig  # length, batch and rates
    seed: int
    layers: int | None  # number of the last layers to train; None for the whole model
    dtype: torch.dtype  # the type of matrix products


def trained_parameters(model: HuggingFaceModel, count: int | None) -> nn.ParameterDict:
    """Return the parameters to train, by their names, and freeze all others.

    count: how many of the last layers to train; None trains the whole model. Raises `UserError` for more
    layers than the model has.
    """
    chosen = model.causal.parameters()
    if count is not None:
        layers = model.blocks
        message = f"--train-layers {count}: this model has {len(layers)} layers that can be trained alone"
        require(count <= len(layers), message)
        chosen = chain.from_iterable(layer.parameters() for layer in layers[-count:])
    numbers = {id(parameter) for parameter in chosen}
    trained = nn.ParameterDict()
    for name, parameter in model.causal.named_parameters():
        is_trained = id(parameter) in numbers
        parameter.requires_grad_(is_trained)
        if is_trained:
            trained[name.replace(".", "/")] = parameter  # PyTorch allows no dots in a name
    return trained


def recompute_layers(model: HuggingFaceModel) -> None:
    """Turn on gradient checkpointing: each layer keeps only its input, and recomputes its activations."""
    for layer in model.blocks:
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call `forward`; with gradients on, by gradient checkpointing: only its arguments are kept."""
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return recomputed(forward, *arguments, use_reentrant=False, **named)


class FurtherTraining:
    """Further training in which every step follows from the weights, the optimizer and the step's number."""

    def __init__(
        self, model: HuggingFaceModel, settings: Settings, windows: TrainingWindows, group: Group
    ) -> None:
        self.model, self.settings = model, settings
        self.windows, self.group = windows, group
        self.trained = trained_parameters(model, settings.layers)
        train = settings.train
        betas = (train.betas[0], train.betas[1])
        matrices = ParameterGroup(train.weight_decay, betas)
        others = ParameterGroup(0.0, betas)
        for name, parameter in self.trained.items():
            decays = parameter.dim() > 1 and EMBEDDING_NAME_PART not in name
            chosen = matrices if decays else others
            chosen.parameters.append(parameter)
        self.optimizer = Optimizer(each for each in (matrices, others) if each.parameters)
        recompute_layers(model)

    def step(self, number: int, seconds: float) -> Step:
        """Take step `number`, counted from zero. seconds: the seconds of all steps before it.

        Raises `RunError` if the loss or the gradient is not finite.
        """
        train = self.settings.train
        started = time.perf_counter()
        rate = learning_rate(number, train)
        self.optimizer.set_rate(rate)
        torch.manual_seed(derive_seed(self.settings.seed, "model", number))
        batch = self.windows.batch(train.batch, self.settings.seed, number)
        share = self.group.share(batch.tokens)
        total = 0.0
        for part in share.split(len(share) // train.micro_batches):
            total += self._backward(part.to(self.model.device), train.batch)
        self.group.add_gradients(self.trained.values())
        (loss,) = self.group.sum(total)
        norm = float(clip_grad_norm_(self.trained.values(), train.clip))
        is_finite = torch.tensor([loss, norm]).isfinite().all()
        if not is_finite:
            where = f"the loss ({loss}) or the gradient's norm ({norm}) is not finite at step {number + 1}"
            raise RunError(f"{where}; what was saved is kept: lower train.lr={train.lr:g}")
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds += time.perf_counter() - started
        done = number + 1
        return Step(done, done * train.batch_tokens, loss, None, rate, norm, seconds)

    def _backward(self, tokens_BT: Tensor, windows: int) -> float:
        """Add the gradient of these windows' share in the batch's mean loss, and return this share, in nats.

        windows: the number of all windows of the batch.
        """
        model = self.model
        dtype = self.settings.dtype
        with torch.autocast(model.device.type, dtype, enabled=dtype != torch.float32):
            loss = mean_loss(model, tokens_BT) * (len(tokens_BT) / windows)
        if model.state is not None:  # layers that are computed again turn nothing by themselves either
            model.state.is_neutral = model.is_neutral
        try:
            loss.backward()
        finally:
            if model.state is not None:
                model.state.is_neutral = False
        return float(loss.detach())


def mean_loss(model: HuggingFaceModel, tokens_BT: Tensor) -> Tensor:
    """Return the mean loss of windows, in nats per target; the last token of a window is only a target."""
    inputs = tokens_BT[:, :-1]
    hidden_BTD = model.hidden(inputs, torch.arange(inputs.shape[1], device=inputs.device))
    # The tokens that the tokenizer puts before a text are no targets.
    first = max(0, len(model.begin) - 1)
    hidden_ND = hidden_BTD[:, first:].flatten(0, 1)
    targets_N = tokens_BT[:, 1 + first :].flatten()
    rows = max(1, MAX_LOGIT_ELEMENTS // model.vocab_size)
    total = hidden_ND.new_zeros((), dtype=torch.float32)
    for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
        # The logits of a chunk are computed again for its gradients.
        losses: Tensor = recomputed(model.nll, hidden, targets, use_reentrant=False)  # pyright: ignore[reportAssignmentType]
        total = total + losses.sum()
    return total / len(targets_N)


def train_further(training: FurtherTraining, folder: Path, watch: Callable[[Step], None]) -> None:
    """Take all missing steps, with checkpoints and train.csv in `folder`.

    A signal to end is obeyed after the present step, which is saved. Each process of the training's group
    calls this function, and the first process writes.
    """
    train = training.settings.train
    group = training.group
    saved = folder / "checkpoints"
    newest = _resume(training, saved)
    first = 0
    seconds = 0.0
    if newest is not None:
        first = newest.step
        seconds = newest.train_seconds
    log = checkpoint.read_log(folder / "train.csv", first)
    with finish_step_on_signal() as is_asked:
        for number in range(first, train.total_steps):
            adapt_threads()
            state = training.step(number, seconds)
            seconds = state.seconds
            watch(state)
            log.append(state)
            is_last = state.step == train.total_steps
            if is_last:
                _require_finite(training)
            is_stopping = group.any(is_asked())
            is_due = state.step % train.checkpoint_every == 0
            if group.is_first and (is_stopping or is_last or is_due):
                checkpoint.write_log(folder / "train.csv", log)
                checkpoint.save_checkpoint(saved, training.trained, training.optimizer, state)
            if is_stopping:
                group.wait()
                kept = f"stopped at step {state.step} of {train.total_steps}, which is saved"
                raise Stopped(f"{kept}; the same command continues from there")


def _require_finite(training: FurtherTraining) -> None:
    """Raise `RunError` for weights that the last step made infinite or NaN, which no later loss shows."""
    is_finite = all(bool(parameter.isfinite().all()) for parameter in training.trained.values())
    if not is_finite:
        rate = training.settings.train.lr
        raise RunError(f"the weights after the last step are not finite: lower train.lr={rate:g}")


def _resume(training: FurtherTraining, saved: Path) -> Checkpoint | None:
    """Load the newest whole checkpoint of a training; return None without a checkpoint."""
    group = training.group
    newest = checkpoint.latest_checkpoint(saved) if group.is_first else None
    name = group.broadcast("" if newest is None else newest.path.name)
    if name and newest is None:
        newest = checkpoint.read_checkpoint(saved / name)
        if newest is None:
            raise RunError(f"{saved / name} cannot be read: repeat the command")
    if newest is not None:
        checkpoint.load_weights(newest.path, training.trained)
        checkpoint.load_optimizer(newest, training.trained, training.optimizer)
    return newest
