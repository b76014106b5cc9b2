"""A checkpoint with what scoring needs of a model.

Letters: B batch, T tokens, N scored tokens, D model width, V vocabulary.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.compose import Composition, stack
from pe_bench.errors import RunError, first_line, require
from pe_bench.hf.attention import FIRST_TOKENS, FirstAndLatest, PassMask, PassState
from pe_bench.model.decoder import LanguageModel
from pe_bench.model.layers import LOGIT_ELEMENTS
from pe_bench.system.machine import is_out_of_memory

FEEDFORWARD_TOKENS = 4_096
# By which an ending fed alone may differ, over the largest feature, from one fed with its prefix.
MAX_SHARED, MAX_SHARED_COARSE = 1e-4, 2e-2  # in float32, and in bfloat16
MOST_OFFSET = 8  # rows of a table of positions before the first one: OPT has 2
FEW_TOKENS = 8  # by which it is tried whether layers can be computed apart
FEEDFORWARD_NAMES = ("mlp", "feed_forward", "ffn")


class CheckpointModel(LanguageModel):
    """A model of transformers whose layers use our attention, or their own.

    state: what our attention reads; None for a model with its own. fixed: the encodings of layers
    that keep them whatever `encoding` is, by their number. masks: of each layer, in some pass. is_neutral:
    the model's own rotation is undone. begin: the first tokens of each window. max_positions: the
    size of a table of positions, if it has one. without_attention: how many layers have none. shares_prefix:
    endings may be fed without their prefix. computes_in_parts: as `has_parts`; None until it was tried.
    """

    state: PassState | None = None
    masks: Sequence[PassMask | None] = ()
    is_neutral: bool = True
    max_positions: int | None = None
    without_attention: int = 0
    shares_prefix: bool = True
    computes_in_parts: bool | None = None

    def __init__(
        self, model: Any, encoding: Composition, n_layers: int, train_length: int, begin: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.causal = model
        self.encoding = encoding
        self.n_layers = n_layers
        self.train_length = train_length
        self.begin = tuple(begin)
        self.takes_positions = "position_ids" in inspect.signature(self.trunk.forward).parameters
        self.vocab_size = model.get_input_embeddings().weight.shape[0]
        self.fixed: dict[int, LayerEncoding] = {}
        self.eval()  # it is never trained here

    def with_encoding(self, encoding: Composition) -> Self:
        parts: list[Any] = [encoding.base, *encoding.modifiers.values()]
        hooks = []
        for hook in ("ids", "embed"):
            if any(part.overrides(hook) for part in parts):
                hooks.append(hook)
        if any(encoding.layer(number).overrides("prepare") for number in range(self.n_layers)):
            hooks.append("prepare")
        require(not hooks, f"needs {', '.join(hooks)}, which checkpoints do not use: leave it out")
        return super().with_encoding(encoding)

    def layer(self, number: int) -> LayerEncoding:
        return self.fixed.get(number) or self.encoding.layer(number)

    def changed(
        self,
        layers: Mapping[int, LayerEncoding],
        windows: Mapping[int, int],
        parts: Sequence[PositionalEncoding] | None = None,
    ) -> Self:
        require(parts is None, f"{type(self.causal).__name__} makes its own input, which cannot be changed")
        changed = dict(layers)
        for number, window in windows.items():
            layer = changed.get(number) or self.layer(number)
            changed[number] = stack([layer, FirstAndLatest(FIRST_TOKENS, window)])
        other = self._with(self.encoding)
        other.fixed = {**self.fixed, **changed}
        return other

    @property
    def fixed_encoding(self) -> str:
        if self.state is None:
            return "is scored as it is, with transformers' attention"
        return "" if self.is_neutral else "rotates its queries and keys in a way that pe-bench does not know"

    def hidden(self, tokens_BT: Tensor, ids: Tensor, window: int | None = None, first: int = 0) -> Tensor:
        """Return the normed output of the last layer for the tokens from `first` on, [B, T - first, D].

        The first tokens of each window are replaced by those that the checkpoint's tokenizer puts there.
        """
        tokens_BT = self.begun(tokens_BT)
        if self.max_positions is not None and int(ids.max()) >= self.max_positions:
            raise LengthError(f"position {int(ids.max())} is past the model's table of {self.max_positions}")
        arguments: dict[str, Any] = {"input_ids": tokens_BT, "use_cache": False}
        if self.takes_positions:
            ids_BT = ids if ids.dim() == 2 else ids[None]
            arguments["position_ids"] = ids_BT.expand(len(tokens_BT), -1)
        if self.state is not None:
            self.state.layers = [self.layer(number) for number in range(self.n_layers)]
            self.state.ids = ids
            self.state.window = window
            self.state.is_neutral = self.is_neutral
        try:
            with self._of_part():
                return self.trunk(**arguments)[0][:, first:]
        except (IndexError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            last = int(ids.max())  # at a length that the model was trained at, the length is not the reason
            kind = LengthError if last >= self.train_length else RunError
            raise kind(f"the model cannot compute position {last}: {first_line(error)}") from error
        finally:
            if self.state is not None:
                self.state.is_neutral = False

    @property
    def has_parts(self) -> bool:
        """Return whether the layers can be computed one after the other, which is tried once.

        A layer may read more than the output of the layer before, such as keys of an earlier layer.
        """
        if self.computes_in_parts is None:
            self.computes_in_parts = self._try_parts()
        return self.computes_in_parts

    def _try_parts(self) -> bool:
        """Return whether a few tokens have the same output if the upper half of the layers is fed apart."""
        if self.n_layers < 2 or len(self._blocks) != self.n_layers or self.state is None:
            return False
        tokens = torch.arange(FEW_TOKENS, device=self.device)[None] % self.vocab_size
        ids = torch.arange(FEW_TOKENS, device=self.device)
        middle = self.n_layers // 2
        states: list[Tensor] = []
        lower = self.part(range(middle), None, states)
        upper = self.part(range(middle, self.n_layers), states)
        with torch.no_grad():
            whole = self.hidden(tokens, ids)
            try:
                if lower.hidden(tokens, ids).shape != whole.shape:
                    return False
                return torch.equal(upper.hidden(tokens, ids), whole)
            except Exception:  # a layer may hand on anything, and read anything of another layer
                return False

    @property
    def _blocks(self) -> Sequence[nn.Module]:
        """Return the model's layers in order; none where they cannot be found."""
        lists = [each for each in self.trunk.children() if isinstance(each, nn.ModuleList)]
        return next((list(blocks) for blocks in lists if len(blocks) == self.n_layers), [])

    @contextmanager
    def _of_part(self) -> Iterator[None]:
        """Compute only the layers of `numbers` inside, if this is a part of a model."""
        if self.inputs is None and self.outputs is None:
            yield
            return
        blocks = self._blocks
        below = blocks[: self.numbers.start]
        above = blocks[self.numbers.stop :]
        state = None if self.inputs is None else next(self.inputs)
        others = (*below, *above)
        own = [vars(block).get("forward") for block in others]  # such as one that recomputes activations
        for block in below:
            block.forward = lambda *_, **__: state
        for block in above:
            block.forward = lambda hidden_BTD, *_, **__: hidden_BTD
        last = blocks[self.numbers.stop - 1]
        hook = last.register_forward_hook(self._keep)
        try:
            yield
        finally:
            hook.remove()
            for block, forward in zip(others, own, strict=True):
                if forward is None:
                    del block.forward
                else:
                    block.forward = forward

    def _keep(self, module: nn.Module, fed: Any, output: Any) -> None:
        if self.outputs is not None:
            self.outputs.append(output)

    def ends(self, tokens_BCT: Tensor, ids: Tensor, first: int) -> Tensor:
        """Do as `LanguageModel.ends`; the first tokens are fed once, where this gives the same.

        Other layers than those of attention may read the tokens before too, so the first ending is compared.
        """
        state = self.state
        if state is None or ids.dim() == 2 or not self.shares_prefix or first <= len(self.begin):
            return super().ends(tokens_BCT, ids, first)
        ends = []
        for tokens_CT in tokens_BCT:
            kept: dict[int, tuple[Tensor, Tensor]] = {}
            state.kept = kept
            whole = self.hidden(tokens_CT[:1], ids, None, first)
            state.kept = None
            state.before = {number: (k[:, :, :first], v[:, :, :first]) for number, (k, v) in kept.items()}
            try:
                end = self._after(tokens_CT[:, first:], ids, first)
            finally:
                state.before = {}
            allowed = MAX_SHARED if whole.dtype == torch.float32 else MAX_SHARED_COARSE
            difference = float((end[:1].float() - whole.float()).abs().max())
            if not difference <= allowed * float(whole.abs().max()):
                self.shares_prefix = False
                return super().ends(tokens_BCT, ids, first)
            ends.append(torch.cat([whole, end[1:]]))
        return torch.cat(ends)

    def _after(self, tokens_CT: Tensor, ids: Tensor, first: int) -> Tensor:
        """Return the output of `hidden` for tokens [C, T] after a prefix of `first` tokens in the state."""
        assert self.state is not None
        arguments: dict[str, Any] = {"input_ids": tokens_CT, "use_cache": False}
        if self.takes_positions:
            arguments["position_ids"] = ids[None, first:].expand(len(tokens_CT), -1)
        self.state.is_neutral = self.is_neutral
        try:
            return self.trunk(**arguments)[0]
        finally:
            self.state.is_neutral = False

    def begun(self, tokens_BT: Tensor) -> Tensor:
        """Return windows that begin with the tokens which the checkpoint's tokenizer puts before a text."""
        if not self.begin:
            return tokens_BT
        begin = tokens_BT.new_tensor(self.begin)[: tokens_BT.shape[1]]
        return torch.cat([begin.expand(len(tokens_BT), -1), tokens_BT[:, len(begin) :]], 1)

    def find_table(self, length: int) -> None:
        """Find whether a table of positions ends at a length.

        Some models make a longer table for a longer text, whatever the positions of a short one.
        """
        for first in (length - 1, 0):
            ids = torch.arange(first, length + 1)
            try:
                self.hidden(torch.zeros(1, len(ids), dtype=torch.long), ids)
            except (LengthError, RunError):
                continue
            return
        self.max_positions = length

    @property
    def has_learned_table(self) -> bool:
        """Return whether its table of positions is one of weights: GPT-J's has sines, by which it rotates."""
        if self.max_positions is None:
            return False
        tokens = self.causal.get_input_embeddings()
        tables = [
            part for part in self.trunk.modules() if isinstance(part, nn.Embedding) and part is not tokens
        ]
        sizes = range(self.max_positions, self.max_positions + MOST_OFFSET + 1)
        return any(table.num_embeddings in sizes for table in tables)

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        rows = max(1, LOGIT_ELEMENTS // self.vocab_size)
        parts = []
        for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
            logits = self.logits(hidden[None])[0].float()
            parts.append(functional.cross_entropy(logits, targets, reduction="none"))
        return torch.cat(parts)

    def likeliest(self, hidden_ND: Tensor) -> Tensor:
        return self.logits(hidden_ND[None])[0].argmax(-1)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """Return [B, T, V], by all that the model does to the output of its last layer."""
        trunk = self.trunk
        trunk.forward = lambda *_, **__: _Hidden((hidden_BTD,))
        try:
            tokens = torch.zeros(hidden_BTD.shape[:2], dtype=torch.long, device=hidden_BTD.device)
            return self.causal(input_ids=tokens, use_cache=False).logits
        finally:
            del trunk.forward

    def control_refusal(self, control: str, length: int) -> str:
        if control == "window" and self.state is None:
            return "the model keeps its own attention, which cannot be limited to a window"
        if control == "window" and self.masks and not any(sees_all(mask, length) for mask in self.masks):
            return "the model is windowed itself"
        if control == "window" and self.without_attention:
            without = f"{self.without_attention} of its {self.n_layers} layers have no attention"
            return f"{without}, and a window does not limit what they read"
        if control == "window" and any(isinstance(part, nn.Conv1d) for part in self.causal.modules()):
            return "the model reads tokens beside its attention too, which a window does not limit"
        if control == "offset" and not self.takes_positions:
            return "the model takes no position ids"
        return ""

    @property
    def trunk(self) -> Any:
        """Return the part of the model that makes the hidden states."""
        return trunk_of(self.causal)


def trunk_of(causal: Any) -> Any:
    """Return the part of a model that makes the hidden states."""
    decoder = causal.get_decoder()
    return causal.model if decoder is causal else decoder


def sees_all(mask: PassMask | None, length: int) -> bool:
    return mask is None or mask.is_causal or mask.count(length) == length


class _Hidden(tuple[Tensor]):
    """The output of a model's last layer in the place of all that the layers return."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def split_feedforward(model: nn.Module, tokens: int = FEEDFORWARD_TOKENS) -> None:
    """Let feedforward layers take so many tokens at a time: each token has its own output.

    A layer of matrices and functions alone is split, and none that chooses among others.
    """
    for name, module in model.named_modules():
        children = [*module.children()]
        is_dense = bool(children) and not any([*child.children()] for child in children)
        if name.rpartition(".")[2] in FEEDFORWARD_NAMES and is_dense:
            module.forward = partial(_in_parts, module.forward, tokens)


def _in_parts(forward: Callable[..., Any], tokens: int, x_BTD: Tensor, *more: Any, **named: Any) -> Any:
    if more or named or x_BTD.dim() != 3 or x_BTD.shape[1] <= tokens:
        return forward(x_BTD, *more, **named)
    return torch.cat([forward(part) for part in x_BTD.split(tokens, 1)], 1)
