"""A Llama-shaped decoder that handles every encoding through the hooks of `pe_bench.encodings`.

RMSNorm, SwiGLU, grouped-query attention, no biases, tied embeddings. Letters: B batch, T
tokens, D model width, H query heads, K head width.
"""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.config.schema import Config, ModelConfig
from pe_bench.encodings.base import LayerEncoding, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.model.accelerate import accelerate
from pe_bench.model.layers import Block, Linear, RMSNorm, TokenLoss


class LanguageModel(nn.Module, ABC):
    """A causal model under an encoding: what scoring reads of a decoder or of a Hugging Face model.

    Its layers attend through `pe_bench.model.attention`. Letter: N scored tokens.
    """

    encoding: Composition
    n_layers: int
    vocab_size: int
    # The windows of single layers, in tokens; other layers have the window of the pass.
    windows: Mapping[int, int] = {}
    # See `part`.
    numbers: range  # the numbers of the layers that a pass computes
    inputs: Iterator[Tensor] | None = None  # the inputs of the first of these layers
    outputs: list[Tensor] | None = None  # the outputs of the last of these layers

    @property
    def has_parts(self) -> bool:
        """Return true if `part` can make a model of some of the layers."""
        return False

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def why_encoding_stays(self) -> str:
        """Return the reason why the model's encoding cannot be replaced; empty if it can."""
        return ""

    def control_refusal(self, control: str, length: int) -> str:
        """Return the reason why this model cannot be scored with a control; empty if it can."""
        return ""

    @abstractmethod
    def hidden(self, tokens_BT: Tensor, ids: Tensor, window: int | None = None, first: int = 0) -> Tensor:
        """Return the normed output of the last layer for the tokens from `first` on, [B, T - first, D].

        ids: the encoding's position ids. window: tokens that each query sees at most, in every layer.
        """

    @property
    def keeps_last_text(self) -> bool:
        """Return true if `hidden_of_ends` is faster for a window that begins like the window before."""
        return False

    def forget_text(self) -> None:
        """Free the memory of the last call of `hidden_of_ends`, whose text the next call may begin with."""

    def hidden_of_ends(self, tokens_BCT: Tensor, ids: Tensor, first: int) -> Tensor:
        """Return `hidden` of the ends of windows, their tokens from `first` on, [B C, T - first, D].

        The C windows in tokens_BCT[b] begin alike, and differ only from token `first` on. ids: [T] or
        [B C, T].
        """
        count = tokens_BCT.shape[1]
        outputs = []
        for choice in range(count):
            own_ids = ids if ids.dim() == 1 else ids[choice::count]
            outputs.append(self.hidden(tokens_BCT[:, choice], own_ids, None, first))
        return torch.stack(outputs, 1).flatten(0, 1)

    @abstractmethod
    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target in nats, float32 [N]."""

    @abstractmethod
    def likeliest(self, hidden_ND: Tensor) -> Tensor:
        """Return the most probable next token of each position, int64 [N]."""

    def with_encoding(self, encoding: Composition) -> Self:
        """Return a model with these weights and another encoding. Raise `UserError` if they do not fit."""
        return self._copy_with_encoding(encoding)

    def _copy_with_encoding(self, encoding: Composition) -> Self:
        """Return a copy that shares the weights and has another encoding."""
        other = copy.copy(self)
        other._modules = {**self._modules, "encoding": encoding}
        return other

    def layer(self, number: int) -> LayerEncoding:
        """Return the encoding that acts in the attention of layer `number`."""
        return self.encoding.layer(number)

    @abstractmethod
    def changed(
        self,
        layers: Mapping[int, LayerEncoding],
        windows: Mapping[int, int],
        parts: Sequence[PositionalEncoding] | None = None,
    ) -> Self:
        """Return a model with these weights and changes in some layers.

        layers: new encodings, by number of the layer. windows: windows in tokens, by number of the layer.
        parts: the encodings to combine, as in `Composition.changed`.
        """

    def part(
        self, numbers: range, inputs: Iterable[Tensor] | None = None, outputs: list[Tensor] | None = None
    ) -> Self:
        """Return a model of some layers with the same weights; this model is not changed.

        inputs: inputs [B, T, D] of its first layer, one for each pass; None to embed the tokens. outputs: a
        list to which each pass appends the output [B, T, D] of its last layer. Without the model's last
        layer, the result of `hidden` has no meaning.
        """
        other = self._copy_with_encoding(self.encoding)
        other.numbers = numbers
        other.inputs = None if inputs is None else iter(inputs)
        other.outputs = outputs
        return other

    def first_difference(self, other: "LanguageModel") -> int:
        """Return the number of the first layer in which `other`, made by `changed`, differs from this model.

        Return 0 for other `parts`, and the number of layers for equal models.
        """
        own_parts = [*map(id, self.encoding.parts)]
        if [*map(id, other.encoding.parts)] != own_parts:
            return 0
        for number in range(self.n_layers):
            is_same_layer = other.layer(number) is self.layer(number)
            is_same_window = other.windows.get(number) == self.windows.get(number)
            if not (is_same_layer and is_same_window):
                return number
        return self.n_layers


class Decoder(LanguageModel):
    """The decoder that pe-bench trains.

    Only `generator` draws its weights, so an encoding does not change them.
    """

    def __init__(
        self,
        model: ModelConfig,
        vocab_size: int,
        encoding: Composition,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.encoding = encoding
        self.n_layers = model.n_layers
        self.numbers = range(model.n_layers)
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, model.d_model)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.n_layers))
        self.norm = RMSNorm(model.d_model)
        self.head = None if model.tie_embeddings else Linear(model.d_model, vocab_size)
        self.loss = TokenLoss()
        self._draw_weights(model, generator)

    @property
    def has_parts(self) -> bool:
        return True

    def control_refusal(self, control: str, length: int) -> str:
        layers = [self.encoding.layer(number) for number in range(self.n_layers)]
        has_recurrence = any(layer.overrides("attend") for layer in layers)
        if control == "window" and has_recurrence:
            return "a layer without softmax sees no window: its state holds what all earlier tokens left"
        return ""

    def hidden(self, tokens_BT: Tensor, ids: Tensor, window: int | None = None, first: int = 0) -> Tensor:
        x_BTD = self.embed(tokens_BT, ids) if self.inputs is None else next(self.inputs)
        return self.layers(x_BTD, ids, window, first)

    def embed(self, tokens_BT: Tensor, ids: Tensor) -> Tensor:
        """Return the input of the first layer [B, T, D]."""
        embedded_BTD = self.embedding(tokens_BT) * math.sqrt(self.embedding.embedding_dim)
        return self.encoding.embed(embedded_BTD, ids, tokens_BT)

    def layers(self, x_BTD: Tensor, ids: Tensor, window: int | None = None, first: int = 0) -> Tensor:
        """Return the normed output of the last layer, [B, T - first, D], from the input of the first layer.

        Tokens before `first` are left out in the last layer alone: no later layer reads their outputs.
        """
        last = len(self.blocks) - 1
        for number in self.numbers:
            layer = self.encoding.layer(number)
            own_window = self.windows.get(number, window)
            first_output = first if number == last else 0
            x_BTD = self.blocks[number](x_BTD, layer, ids, own_window, first_output)
        if self.outputs is not None:
            self.outputs.append(x_BTD)
        return self.norm(x_BTD)

    def hidden_of_ends(self, tokens_BCT: Tensor, ids: Tensor, first: int) -> Tensor:
        """Do as `LanguageModel.hidden_of_ends`; each layer computes the first tokens once for C windows."""
        if ids.dim() == 2:  # windows with ids of their own may differ in first tokens too
            return super().hidden_of_ends(tokens_BCT, ids, first)
        count = tokens_BCT.shape[1]
        whole_BTD = self.embed(tokens_BCT.flatten(0, 1), ids)
        shared_BTD = whole_BTD[::count]
        end_BTD = whole_BTD[:, first:]
        for number, block in enumerate(self.blocks):
            layer = self.encoding.layer(number)
            window = self.windows.get(number)
            before_BTD = shared_BTD[:, :first].repeat_interleave(count, 0)
            end_BTD = block(torch.cat([before_BTD, end_BTD], 1), layer, ids, window, first)
            if number < len(self.blocks) - 1:
                shared_BTD = block(shared_BTD, layer, ids, window)
        return self.norm(end_BTD)

    def with_encoding(self, encoding: Composition) -> Self:
        encoding.load_state_dict(self.encoding.state_dict(), strict=True)
        return super().with_encoding(encoding)

    def changed(
        self,
        layers: Mapping[int, LayerEncoding],
        windows: Mapping[int, int],
        parts: Sequence[PositionalEncoding] | None = None,
    ) -> Self:
        other = self._copy_with_encoding(self.encoding.changed(layers, parts))
        other.windows = {**self.windows, **windows}
        return other

    @property
    def output_weight(self) -> Tensor:
        """Return the output matrix [V, D]: the unscaled embedding if tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return self.loss(hidden_ND, self.output_weight, targets_N)

    def likeliest(self, hidden_ND: Tensor) -> Tensor:
        return functional.linear(hidden_ND, self.output_weight).argmax(-1)

    def _draw_weights(self, model: ModelConfig, generator: torch.Generator | None) -> None:
        """Draw embeddings from N(0, 1/D), and matrices from N(0, 1/fan_in).

        Matrices whose product is added to the residual stream are divided by sqrt(2 n_layers).
        """
        input_std = model.d_model**-0.5
        nn.init.normal_(self.embedding.weight, std=input_std, generator=generator)
        for block in self.blocks:
            for name, linear in block.named_modules():
                if isinstance(linear, nn.Linear):
                    std = linear.in_features**-0.5
                    if name.endswith(("attention.output", "feedforward.down")):
                        std /= math.sqrt(2 * model.n_layers)
                    nn.init.normal_(linear.weight, std=std, generator=generator)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=input_std, generator=generator)


def build_decoder(config: Config, vocabulary: Sequence[str], encoding: EncodingSpec | None = None) -> Decoder:
    """Build the decoder of a run on the CPU, with separate random streams for weights and encoding.

    vocabulary: the text of every token id. encoding: None for the encoding of `config`. Raises `UserError`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "encoding"))
        spec = encoding or EncodingSpec(config.encoding)
        built = spec.build(config.model.n_layers, vocabulary)
        generator = torch.Generator().manual_seed(derive_seed(config.seed, "decoder"))
        return accelerate(Decoder(config.model, len(vocabulary), built, generator))


# A random stream for each purpose and step, instead of one generator with a state: a resumed run draws the
# same numbers as an unbroken run, and a change of encoding moves no other stream.


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, such as ("ids", step)."""
    text = "/".join(map(str, (seed, *purpose)))
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
