"""One training step, and the validation loss."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from pe_bench.config.schema import Config
from pe_bench.data.batches import Batch, Windows
from pe_bench.data.packed import Data
from pe_bench.errors import RunError
from pe_bench.model.decoder import Decoder
from pe_bench.model.loss import token_nll
from pe_bench.model.seeds import derive_seed
from pe_bench.model.user_code import user_code_errors
from pe_bench.training.group import Group
from pe_bench.training.log import Step
from pe_bench.training.optimizer import Optimizers, learning_rate


class NonFiniteError(ArithmeticError):
    """An infinite loss or gradient, or one that is no number; the weights are as before the step."""


class Trainer:
    """A trainer whose every step is a function of the weights, the optimizer and the step's number."""

    def __init__(
        self,
        config: Config,
        model: Decoder,
        optimizer: Optimizers,
        data: Data,
        device: torch.device,
        dtype: torch.dtype,
        group: Group | None = None,
    ):
        self.config, self.model, self.optimizer = config, model, optimizer
        self.device, self.dtype, self.group = device, dtype, group or Group()
        # On a GPU what lies between the products of matrices is fused. The model stays as it is, for scoring.
        self.layers = torch.compile(model.layers) if device.type == "cuda" else model.layers
        length = config.train.length
        self.windows = Windows(data, length)
        self.validation = Windows(data, length, side="validation")

    def step(self, number: int, seconds: float) -> Step:
        """Take step `number` (from zero); `seconds` were spent before it."""
        train = self.config.train
        started = time.perf_counter()
        self.optimizer.set_rate(learning_rate(number, train))
        # What an encoding may draw inside the model is a function of the step too.
        torch.manual_seed(derive_seed(self.config.seed, "model", number))
        batch = self.windows.batch(train.batch, self.config.seed, number)
        losses = batch.losses
        # Drawn for the whole batch: the parts must give what the whole would.
        share, ids = self._share(batch, derive_seed(self.config.seed, "ids", number), train=True)
        ids_of_parts = ids.chunk(train.micro_batches) if ids.dim() == 2 else [ids] * train.micro_batches
        parts = zip(share.split(len(share) // train.micro_batches), ids_of_parts, strict=True)
        (loss,) = self.group.sum(sum(self._backward(part, part_ids, losses) for part, part_ids in parts))
        self.group.sum_gradients(self.model)
        norm = self._clip()
        self._refuse_non_finite(float(loss), norm, number)
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds += time.perf_counter() - started
        done, rate = number + 1, learning_rate(number, train)
        return Step(done, done * train.batch_tokens, float(loss), None, rate, norm, seconds)

    def _clip(self) -> float:
        """Scale the gradients down where their norm exceeds `train.clip`; return the norm before."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm(
            [parameter.grad for parameter in parameters if parameter.grad is not None]
        )
        if norm > self.config.train.clip:  # a factor of 1 would take as long
            nn.utils.clip_grads_with_norm_(parameters, self.config.train.clip, norm)
        return float(norm)

    def _backward(self, part: Batch, ids: Tensor, losses: int) -> float:
        """Add the gradient of one part of a batch with so many losses; its share of the batch's mean loss."""
        loss = self._nll(part, ids).sum() / losses
        with self._encoding_errors():
            loss.backward()
        return loss.item()

    @torch.no_grad()
    def validation_loss(self, stop_requested: Callable[[], bool] = lambda: False) -> float | None:
        """Return the mean nats per token over windows of the validation documents, the same at every call.

        None where the process `stop_requested` to end meanwhile.
        """
        length = self.config.train.length
        batch = self.validation.batch(max(1, self.config.train.validation_tokens // length), 0, 0)
        nll = []
        for part in batch.split(self.config.train.batch):
            if stop_requested():
                return None
            share, ids = self._share(part, derive_seed(0, "ids"), train=False)
            found = self._nll(share, ids)
            nll.append(found if self.group.rank < len(part) else found[:0])
        return self.group.mean(torch.cat(nll))

    def _share(self, batch: Batch, seed: int, *, train: bool) -> tuple[Batch, Tensor]:
        """Return this process's share of a batch, and of the position ids, which are drawn for all of it."""
        ids = self._ids(batch.inputs, seed, train=train)
        return batch.map(self.group.share), self.group.share(ids) if ids.dim() == 2 else ids

    def _ids(self, tokens_BT: Tensor, seed: int, *, train: bool) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        with self._encoding_errors():
            return self.model.encoding.ids(tokens_BT.to(self.device), train=train, generator=generator)

    def _nll(self, batch: Batch, ids: Tensor) -> Tensor:
        tokens_BT, targets_BT = batch.inputs.to(self.device), batch.targets.to(self.device)
        has_loss = None if batch.has_loss is None else batch.has_loss.to(self.device).flatten()
        autocast = torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)
        with self._encoding_errors(), autocast:
            hidden_BTD = self.layers(self.model.embed(tokens_BT, ids), ids)
            hidden_ND, targets_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()
            return token_nll(hidden_ND, self.model.output_weight, targets_N, has_loss)

    def _encoding_errors(self) -> AbstractContextManager[None]:
        """Turn errors of a user's own encoding into a `RunError` of one line."""
        return user_code_errors(self.model.encoding, kind=RunError)

    def _refuse_non_finite(self, loss: float, norm: float, number: int) -> None:
        if not math.isfinite(loss) or not math.isfinite(norm):
            what = f"the loss ({loss})" if not math.isfinite(loss) else f"the gradient's norm ({norm})"
            raise NonFiniteError(f"{what} is not finite at step {number + 1}")
