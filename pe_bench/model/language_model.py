"""The interface that scoring needs of a model, which our decoder and Hugging Face checkpoints have.

Letters: B batch, T tokens, N scored tokens, D model width.
"""

from typing import Protocol, Self

import torch
from torch import Tensor

from pe_bench.encodings.compose import Composition


class LanguageModel(Protocol):
    """A causal model under an encoding, whose layers attend through `pe_bench.model.attention`."""

    encoding: Composition
    training: bool

    @property
    def n_layers(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def parameter_count(self) -> int: ...

    def hidden(self, tokens_BT: Tensor, ids: Tensor, window: int | None = None, first: int = 0) -> Tensor:
        """Return the last layer's output for the tokens from `first` on, [B, T - first, D].

        `ids` are the encoding's position ids, and `window` limits the attention of every layer from outside.
        """
        ...

    def ends(self, tokens_BCT: Tensor, ids: Tensor, first: int) -> Tensor:
        """Return what `hidden` does of B x C windows, [B C, T - first, D].

        The C windows of each B differ only in tokens after `first`. `ids` are of all windows [T] or [B C, T].
        """
        ...

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target in nats, float32 [N]."""
        ...

    def likeliest(self, hidden_ND: Tensor) -> Tensor:
        """Return the likeliest next token of each, int64 [N]."""
        ...

    def control_refusal(self, control: str, length: int) -> str:
        """Return why a control cannot be scored with this model; empty where it can."""
        ...

    def train(self, mode: bool = True) -> Self: ...

    def eval(self) -> Self: ...
