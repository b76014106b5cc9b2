"""A Hugging Face model with the methods by which models are scored.

Letters: B batch, T tokens, N scored tokens, D model width, V vocabulary.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.compose import Composition, stack
from pe_bench.errors import RunError, first_line, require
from pe_bench.hf.attention import ALWAYS_VISIBLE_TOKENS, FirstAndLatest, KeysValues, PassMask, PassState
from pe_bench.model.decoder import LanguageModel
from pe_bench.model.layers import MAX_LOGIT_ELEMENTS
from pe_bench.system.machine import is_out_of_memory

FEEDFORWARD_TOKENS = 4_096
# Allowed difference of an ending after a kept prefix from one of a whole text, over the largest feature.
MAX_SHARED, MAX_SHARED_COARSE = 1e-4, 2e-2  # the largest differences in float32, and in bfloat16
MAX_TABLE_OFFSET = 8  # rows of a table of positions before that of position 0: OPT has 2
TRIAL_TOKENS = 8  # the length of a text that shows whether layers can be computed apart
FEEDFORWARD_NAMES = ("mlp", "feed_forward", "ffn")


class Text(NamedTuple):
    """A text that a model has read, with the keys and values [1, G, T, K] of each layer, by its number."""

    tokens: Tensor  # [T]
    ids: Tensor  # [T]
    keys_values: Mapping[int, KeysValues]

    def first(self, count: int) -> dict[int, KeysValues]:
        """Return the keys and values of the first `count` tokens, by the number of the layer."""
        first = {}
        for number, (key, value) in self.keys_values.items():
            first[number] = key[:, :, :count], value[:, :, :count]
        return first


class HuggingFaceModel(LanguageModel):
    """A model of transformers whose layers use our attention, or their own."""

    state: PassState | None = None  # read by our attention; None for a model with its own attention
    masks: Sequence[PassMask | None] = ()  # the mask of each layer with attention
    is_neutral: bool = True  # the model's own rotation is undone
    max_positions: int | None = None  # rows of its table of positions; None without a table
    without_attention: int = 0  # number of layers
    shares_prefix: bool = True  # endings may be fed after a kept prefix
    text: Text | None = None  # the last text with endings
    computes_in_parts: bool | None = None  # the value of `has_parts`; None before the first use

    def __init__(
        self, model: Any, encoding: Composition, n_layers: int, train_length: int, begin: Sequence[int] = ()
    ) -> None:
        """begin: the tokens at the start of each window, which the tokenizer puts before a text."""
        super().__init__()
        self.causal = model
        self.encoding = encoding
        self.n_layers = n_layers
        self.train_length = train_length
        self.begin = tuple(begin)
        self.takes_positions = "position_ids" in inspect.signature(self.trunk.forward).parameters
        self.vocab_size = model.get_input_embeddings().weight.shape[0]
        self.fixed: dict[int, LayerEncoding] = {}  # the layers that do not follow `encoding`, by their number
        self.eval()  # it is never trained here

    def with_encoding(self, encoding: Composition) -> Self:
        parts: list[Any] = [encoding.base, *encoding.modifiers.values()]
        hooks = []
        for hook in ("ids", "embed"):
            if any(part.overrides(hook) for part in parts):
                hooks.append(hook)
        layers = map(encoding.layer, range(self.n_layers))
        if any(layer.overrides("prepare") for layer in layers):
            hooks.append("prepare")
        require(not hooks, f"needs {', '.join(hooks)}, which Hugging Face models do not use: leave it out")
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
            changed[number] = stack([layer, FirstAndLatest(ALWAYS_VISIBLE_TOKENS, window)])
        other = self._copy_with_encoding(self.encoding)
        other.fixed = {**self.fixed, **changed}
        return other

    @property
    def why_encoding_stays(self) -> str:
        if self.state is None:
            return "is scored as it is, with transformers' attention"
        return "" if self.is_neutral else "rotates its queries and keys in a way that pe-bench does not know"

    def hidden(self, tokens_BT: Tensor, ids: Tensor, window: int | None = None, first: int = 0) -> Tensor:
        """Return the normed output of the last layer for the tokens from `first` on, [B, T - first, D].

        The first tokens of each window are replaced by the tokens that the tokenizer puts before a text.
        Raises an error for a position that the model cannot compute: `RunError` within its training length,
        `LengthError` beyond.
        """
        tokens_BT = self.with_begin_tokens(tokens_BT)
        if self.max_positions is not None:
            self._require_in_table(int(ids.max()), self.max_positions)
        arguments: dict[str, Any] = {"input_ids": tokens_BT, "use_cache": False}
        if self.takes_positions:
            ids_BT = ids if ids.dim() == 2 else ids[None]
            arguments["position_ids"] = ids_BT.expand(len(tokens_BT), -1)
        try:
            with self._setting_state(ids, window), self._skipping_other_layers():
                return self.trunk(**arguments)[0][:, first:]
        except (IndexError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            last = int(ids.max())  # at a length that the model was trained at, the length is not the reason
            kind = LengthError if last >= self.train_length else RunError
            raise kind(f"the model cannot compute position {last}: {first_line(error)}") from error

    @contextmanager
    def _setting_state(
        self, ids: Tensor, window: int | None = None, before: Mapping[int, KeysValues] | None = None
    ) -> Iterator[None]:
        """Within the context, our attention has this model's encoding: other models share the modules.

        ids: position ids of the whole text. before: keys and values of the tokens that are not fed again.
        """
        state = self.state
        if state is None:
            yield
            return
        state.before = before or {}
        state.layers = [self.layer(number) for number in range(self.n_layers)]
        state.ids = ids
        state.window = window
        state.is_neutral = self.is_neutral
        try:
            yield
        finally:
            state.is_neutral = False
            state.before = {}

    def _require_in_table(self, last: int, size: int) -> None:
        """Raise `LengthError` if the table of `size` positions has no position `last`."""
        if last >= size:
            raise LengthError(f"position {last} is past the model's table of {size}")

    @property
    def has_parts(self) -> bool:
        """Return whether each layer reads only the output of the layer before, found by a trial.

        In some models, a layer also reads keys of an earlier layer.
        """
        if self.computes_in_parts is None:
            self.computes_in_parts = self._try_parts()
        return self.computes_in_parts

    def _try_parts(self) -> bool:
        """Return whether a few tokens have the same output if the two halves of the layers run apart."""
        has_all_blocks = len(self.blocks) == self.n_layers
        if self.n_layers < 2 or self.state is None or not has_all_blocks:
            return False
        tokens = torch.arange(TRIAL_TOKENS, device=self.device)[None] % self.vocab_size
        ids = torch.arange(TRIAL_TOKENS, device=self.device)
        middle = self.n_layers // 2
        middle_states: list[Tensor] = []
        lower = self.part(range(middle), None, middle_states)
        upper = self.part(range(middle, self.n_layers), middle_states)
        with torch.no_grad():
            whole = self.hidden(tokens, ids)
            try:
                if lower.hidden(tokens, ids).shape != whole.shape:
                    return False
                return torch.equal(upper.hidden(tokens, ids), whole)
            except Exception:  # a layer may hand on anything, and read anything of another layer
                return False

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Return the model's layers in order; empty if its architecture does not list them."""
        for module in self.trunk.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.n_layers:
                return list(module)
        return []

    @contextmanager
    def _skipping_other_layers(self) -> Iterator[None]:
        """Within the context, skip the layers outside this part of a model; a whole model skips no layer."""
        if self.inputs is None and self.outputs is None:
            yield
            return
        blocks = self.blocks
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
        hook = last.register_forward_hook(self._record_output)
        try:
            yield
        finally:
            hook.remove()
            for block, forward in zip(others, own, strict=True):
                if forward is None:
                    del block.forward
                else:
                    block.forward = forward

    def _record_output(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Append the output of the last layer of a part to the part's `outputs`."""
        if self.outputs is not None:
            self.outputs.append(output)

    @property
    def keeps_last_text(self) -> bool:
        return self.state is not None

    def hidden_of_ends(self, tokens_BCT: Tensor, ids: Tensor, first: int) -> Tensor:
        """Do as `LanguageModel.hidden_of_ends`, but feed the first tokens once if outputs stay the same.

        A text that begins like the text before it, at the same length, is fed from the first other token on.
        Layers without attention may read earlier tokens too, so the first ending of a text that is fed from
        its beginning is computed both ways.
        """
        state = self.state
        has_one_text = ids.dim() == 1 and first > len(self.begin)
        if state is None or not self.shares_prefix or not has_one_text:
            return super().hidden_of_ends(tokens_BCT, ids, first)
        ends = []
        for tokens_CT in tokens_BCT:
            shared = self._shared_tokens(tokens_CT[0], ids, first)
            whole = self._read_text(tokens_CT[:1], ids, first, shared) if shared < first else None
            assert self.text is not None
            end = self._hidden_after(self.text.first(first), tokens_CT[:, first:], ids)
            if whole is None or shared:
                ends.append(end)
                continue
            allowed = MAX_SHARED if whole.dtype == torch.float32 else MAX_SHARED_COARSE
            difference = (end[:1].float() - whole.float()).abs().max()
            largest = float(whole.abs().max())
            if not float(difference) <= allowed * largest:
                self.shares_prefix = False
                self.text = None
                return super().hidden_of_ends(tokens_BCT, ids, first)
            ends.append(torch.cat([whole, end[1:]]))
        return torch.cat(ends)

    def forget_text(self) -> None:
        self.text = None

    def _shared_tokens(self, tokens_T: Tensor, ids: Tensor, first: int) -> int:
        """Return how many of the first tokens, at most `first`, have their keys in the kept `text`."""
        kept = self.text
        if kept is None or not torch.equal(kept.ids, ids):
            return 0
        is_equal = kept.tokens[:first] == tokens_T[:first]
        shared = int(is_equal.long().cumprod(0).sum())
        return shared if shared > len(self.begin) else 0

    def _read_text(self, tokens_1T: Tensor, ids: Tensor, first: int, shared: int) -> Tensor:
        """Return `hidden` of a text from `first` on, and keep the text's keys and values as `text`.

        shared: the number of first tokens whose keys and values the `text` before has.
        """
        state = self.state
        assert state is not None
        before = self.text.first(shared) if self.text is not None and shared else {}
        self.text = None
        kept_keys_values: dict[int, KeysValues] = {}
        state.kept = kept_keys_values
        try:
            if shared:
                whole = self._hidden_after(before, tokens_1T[:, shared:], ids)[:, first - shared :]
            else:
                whole = self.hidden(tokens_1T, ids, None, first)
        finally:
            state.kept = None
        self.text = Text(tokens_1T[0], ids, kept_keys_values)
        return whole

    def _hidden_after(self, before: Mapping[int, KeysValues], tokens_CT: Tensor, ids: Tensor) -> Tensor:
        """Return the output of `hidden` for the last tokens [C, T] of a text.

        before: keys and values of the tokens before `tokens_CT`. ids: position ids of the whole text.
        """
        arguments: dict[str, Any] = {"input_ids": tokens_CT, "use_cache": False}
        if self.takes_positions:
            last_ids = ids[None, -tokens_CT.shape[1] :]
            arguments["position_ids"] = last_ids.expand(len(tokens_CT), -1)
        with self._setting_state(ids, before=before):
            return self.trunk(**arguments)[0]

    def _copy_with_encoding(self, encoding: Composition) -> Self:
        other = super()._copy_with_encoding(encoding)
        other.text = None  # its keys follow from the encoding
        return other

    def with_begin_tokens(self, tokens_BT: Tensor) -> Tensor:
        """Replace the first tokens of windows by the tokens that the tokenizer puts before a text."""
        if not self.begin:
            return tokens_BT
        begin = tokens_BT.new_tensor(self.begin)[: tokens_BT.shape[1]]
        begun = tokens_BT.clone()
        begun[:, : len(begin)] = begin
        return begun

    def find_table(self, length: int) -> None:
        """Set `max_positions` if the model has a table of positions that ends at a length.

        Some models make a longer table for a longer text, whatever the positions of a short text.
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
        """Return whether the model's table of positions has weights; GPT-J's has sines, for a rotation."""
        if self.max_positions is None:
            return False
        tokens = self.causal.get_input_embeddings()
        sizes = range(self.max_positions, self.max_positions + MAX_TABLE_OFFSET + 1)
        tables = [part for part in self.trunk.modules() if isinstance(part, nn.Embedding)]
        return any(table.num_embeddings in sizes for table in tables if table is not tokens)

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        rows = max(1, MAX_LOGIT_ELEMENTS // self.vocab_size)
        parts = []
        for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
            logits = self.logits(hidden[None])[0].float()
            parts.append(functional.cross_entropy(logits, targets, reduction="none"))
        return torch.cat(parts)

    def likeliest(self, hidden_ND: Tensor) -> Tensor:
        return self.logits(hidden_ND[None])[0].argmax(-1)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """Return the model's logits [B, T, V] from the output of its last layer."""
        trunk = self.trunk
        trunk.forward = lambda *_, **__: _Hidden((hidden_BTD,))
        try:
            tokens = torch.zeros(hidden_BTD.shape[:2], dtype=torch.long, device=hidden_BTD.device)
            return self.causal(input_ids=tokens, use_cache=False).logits
        finally:
            del trunk.forward

    def control_refusal(self, control: str, length: int) -> str:
        if control == "offset" and not self.takes_positions:
            return "the model takes no position ids"
        return self._window_refusal(length) if control == "window" else ""

    def _window_refusal(self, length: int) -> str:
        """Return the reason why the control `window` is not possible; empty if it is."""
        if self.state is None:
            return "the model keeps its own attention, which cannot be limited to a window"
        if self.masks and not any(sees_all(mask, length) for mask in self.masks):
            return "the model is windowed itself"
        if self.without_attention:
            without = f"{self.without_attention} of its {self.n_layers} layers have no attention"
            return f"{without}, and a window does not limit what they read"
        if any(isinstance(part, nn.Conv1d) for part in self.causal.modules()):
            return "the model reads tokens beside its attention too, which a window does not limit"
        return ""

    @property
    def trunk(self) -> Any:
        """Return the module without the output matrix, which returns hidden states."""
        return trunk_of(self.causal)


def trunk_of(causal: Any) -> Any:
    """Return the module of a causal model without the output matrix, which returns hidden states."""
    decoder = causal.get_decoder()
    return causal.model if decoder is causal else decoder


def sees_all(mask: PassMask | None, length: int) -> bool:
    """Return whether the last of `length` tokens sees all of them."""
    if mask is None or mask.is_causal:
        return True
    return mask.count(length) == length


class _Hidden(tuple[Tensor]):
    """The return value of a model's trunk: a tuple with the output of the last layer, also an attribute."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def split_feedforward(model: nn.Module, tokens: int = FEEDFORWARD_TOKENS) -> None:
    """Change a model's feedforward layers to compute parts of `tokens` tokens, to save memory.

    Outputs stay the same. Mixtures of experts and other layers with nested modules are left as they are.
    """
    for name, module in model.named_modules():
        children = [*module.children()]
        has_grandchildren = any([*child.children()] for child in children)
        is_dense = bool(children) and not has_grandchildren
        if name.rpartition(".")[2] in FEEDFORWARD_NAMES and is_dense:
            module.forward = partial(_forward_in_parts, module.forward, tokens)


def _forward_in_parts(
    forward: Callable[..., Any], tokens: int, x_BTD: Tensor, *arguments: Any, **keywords: Any
) -> Any:
    """Call a layer's `forward` on parts of x with up to `tokens` tokens, and concatenate the outputs.

    With arguments besides x, whose parts are unknown, `forward` is called once on the whole x.
    """
    is_long = x_BTD.dim() == 3 and x_BTD.shape[1] > tokens
    if arguments or keywords or not is_long:
        return forward(x_BTD, *arguments, **keywords)
    outputs = [forward(part) for part in x_BTD.split(tokens, 1)]
    return torch.cat(outputs, 1)
