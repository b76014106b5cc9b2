"""Our attention in the place of transformers' own, for every architecture that lets it be replaced.

transformers calls one function for the attention of each layer, and one for the mask of a pass. Our functions
read a `PassState` that lies on each module of the model, and never a global. An argument of a layer that
pe-bench does not know is refused by its name.

Letters: B batch, H query heads, G key heads, T tokens, Q queries and N keys of one chunk, K head width.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import stack
from pe_bench.encodings.masks.ranges import first_and_window_ranges
from pe_bench.errors import require
from pe_bench.model.attention import attention

ATTENTION_NAME = "pe_bench"
# Tokens at the beginning that the control `window` leaves visible. Pretrained models give the first tokens
# much of their attention whatever these say (Xiao et al. 2024, arXiv:2309.17453, find that four are enough).
# Where they are hidden, the loss rises for a reason that has nothing to do with far text.
ALWAYS_VISIBLE_TOKENS = 4
QUERIES_AT_ONCE = 256  # the most queries whose masks are looked at together
MAX_SEARCHED_TOKENS = 8_192  # the longest text whose mask is searched for first keys: every pair is looked at
# Arguments on which a layer's output does not depend, or that are known in other ways.
ARGUMENTS_WITHOUT_EFFECT = frozenset(
    {"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states"}
    | {"output_router_logits", "return_dict", "is_causal", "dropout", "sliding_window"}
)

KeysValues = tuple[Tensor, Tensor]  # the keys and the values of a layer, each [B, G, T, K]
# Indices of batch, head, query and key to whether the key is seen.
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(eq=False)
class PassMask:
    """The mask of one forward pass, as transformers' function of indices, without a tensor [T, T]."""

    function: MaskFunction
    is_causal: bool
    device: torch.device
    # The result of `first_key`, by its arguments.
    _first: dict[tuple[int, int], int] = field(default_factory=dict)
    _first_keys: dict[int, Tensor | None] = field(
        default_factory=dict
    )  # the results of `first_keys`, by tokens

    def visible(self, query_Q: Tensor, key_N: Tensor) -> Tensor:
        """Return the mask [Q, N] of the keys that queries see, from the indices of both."""
        zero = query_Q.new_zeros(())
        seen = self.function(zero, zero, query_Q.unsqueeze(-1), key_N.unsqueeze(-2))
        return seen.expand(len(query_Q), len(key_N))

    def first_key(self, start: int, stop: int) -> int:
        """Return the index of the first key that any of the queries `start` to `stop` - 1 sees."""
        if (start, stop) not in self._first:
            index = torch.arange(stop, device=self.device)
            is_seen = self.visible(index[start:], index).any(0)
            self._first[start, stop] = int(is_seen.long().argmax())
        return self._first[start, stop]

    def first_keys(self, tokens: int) -> Tensor | None:
        """Return the first key [T] that each query sees, or None, as `LayerEncoding.first_keys` does."""
        if tokens not in self._first_keys:
            self._first_keys[tokens] = self._find_first_keys(tokens)
        return self._first_keys[tokens]

    def _find_first_keys(self, tokens: int) -> Tensor | None:
        """Find the result of `first_keys` in the mask, some queries at a time."""
        if tokens > MAX_SEARCHED_TOKENS:
            return None
        found = []
        for queries in torch.arange(tokens, device=self.device).split(QUERIES_AT_ONCE):
            stop = min(int(queries[-1]) + 2, tokens)  # after a key that is later than all queries
            keys = torch.arange(stop, device=self.device)
            seen = self.visible(queries, keys)
            first = queries + 1 - seen.sum(-1)
            from_first = (keys >= first.unsqueeze(-1)) & (keys <= queries.unsqueeze(-1))
            if not torch.equal(seen, from_first) or not (first <= queries).all():
                return None
            found.append(first)
        first_keys = torch.cat(found)
        return first_keys.cpu() if (first_keys.diff() >= 0).all() else None

    def count(self, length: int) -> int:
        """Return the number of keys that the last of `length` tokens sees."""
        index = torch.arange(length, device=self.device)
        return int(self.visible(index[-1:], index).sum())


class PassMaskLayer(LayerEncoding):
    """A layer whose queries see the keys that the mask of a pass shows."""

    def __init__(self, mask: PassMask) -> None:
        super().__init__()
        self.mask = mask

    def visible(self, queries: Side, keys: Side) -> Tensor:
        return self.mask.visible(queries.index, keys.index)

    def ranges(self, start: int, stop: int) -> list[range]:
        return [range(self.mask.first_key(start, stop), stop)]

    def first_keys(self, tokens: int) -> Tensor | None:
        return self.mask.first_keys(tokens)


class FirstAndLatest(LayerEncoding):
    """A layer whose queries see the `first` tokens of the text, and the latest `window` tokens."""

    def __init__(self, first: int, window: int) -> None:
        super().__init__()
        self.first, self.window = first, window

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & ((distance < self.window) | (keys.index < self.first))

    def ranges(self, start: int, stop: int) -> list[range]:
        return first_and_window_ranges(self.first, self.window, start, stop)


class SoftCap(LayerEncoding):
    """A layer whose logits z become c tanh(z / c)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        return self.cap * (scores / self.cap).tanh()


class Sinks(LayerEncoding):
    """A layer in which a logit of each head [H] joins the softmax, without a key and a value."""

    def __init__(self, logits_H: Tensor) -> None:
        super().__init__()
        self.logits_H = logits_H

    def null_logit(self, queries: Side) -> Tensor:
        dtype = torch.promote_types(self.logits_H.dtype, torch.float32)
        return self.logits_H.to(dtype)[:, None, None]


class AttentionArguments(NamedTuple):
    """The arguments of a layer's attention in a pass."""

    queries: Tensor  # [B, H, T, K]
    mask: PassMask | None  # None: causal
    factor: float  # the factor of the logits, relative to 1 / sqrt(K)
    softcap: float | None  # c of the logits c tanh(z / c); None: no cap
    has_sinks: bool


@dataclass
class PassState:
    """The settings of one forward pass, on each module of the model. Keys are the numbers of layers."""

    layers: Sequence[LayerEncoding] = ()  # the encoding of each layer
    ids: Tensor = field(default_factory=lambda: torch.empty(0))  # position ids
    window: int | None = None  # the window of all layers, in tokens
    is_neutral: bool = False  # the model's own rotation is undone
    # If set, layers only store their arguments, and return v instead of attending.
    captured: dict[int, AttentionArguments] | None = None
    kept: dict[int, KeysValues] | None = None  # if set, layers store their keys and values
    before: Mapping[int, KeysValues] = field(default_factory=dict)  # keys and values of tokens fed before


def register() -> None:
    """Register `attend` and `make_mask` with transformers, under the name `ATTENTION_NAME`."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attend)
    AttentionMaskInterface.register(ATTENTION_NAME, make_mask)


def make_mask(*_: Any, device: torch.device, mask_function: MaskFunction, **more: Any) -> PassMask:
    """Return the mask of a pass for `attend`, from the arguments that transformers gives."""
    from transformers.masking_utils import causal_mask_function

    return PassMask(mask_function, mask_function is causal_mask_function, torch.device(device))


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute a layer's attention for transformers: return the output [B, T, H, K], and None for weights.

    query: [B, H, T, K]. key, value: [B, G, T, K]; G divides H. attention_mask: the mask that `make_mask`
    returned; None: causal. scaling: the factor of scores; None: 1 / sqrt(K). softcap: c of the logits
    c tanh(z / c); None: no cap. s_aux: the logits of sinks [H]. Raises `UserError` for other arguments that
    pe-bench does not know.
    """
    given = {name: argument for name, argument in more.items() if argument is not None}
    effective = {name for name, argument in given.items() if argument is not False}
    unknown = ", ".join(sorted(effective - ARGUMENTS_WITHOUT_EFFECT))
    message = f"{type(module).__name__} hands {unknown} to its attention, which pe-bench does not know"
    require(not unknown, message)
    state: PassState = module._pe_bench  # pyright: ignore[reportAssignmentType]
    number: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
    if number in state.before:
        earlier_key, earlier_value = (x.expand(len(query), -1, -1, -1) for x in state.before[number])
        key = torch.cat([earlier_key, key], 2)
        value = torch.cat([earlier_value, value], 2)
    if state.kept is not None:
        state.kept[number] = key, value
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key = key.repeat_interleave(group, 1)
        value = value.repeat_interleave(group, 1)
    factor = 1.0 if scaling is None else scaling * math.sqrt(query.shape[-1])
    if state.captured is not None:
        state.captured[number] = AttentionArguments(query, attention_mask, factor, softcap, s_aux is not None)
        return value.transpose(1, 2).contiguous(), None
    parts = [state.layers[number]]
    if attention_mask is not None and not attention_mask.is_causal:
        parts.append(PassMaskLayer(attention_mask))
    if state.window is not None:
        parts.append(FirstAndLatest(ALWAYS_VISIBLE_TOKENS, state.window))
    if softcap is not None:
        parts.append(SoftCap(softcap))
    if s_aux is not None:
        parts.append(Sinks(s_aux))
    if not math.isclose(factor, 1, rel_tol=1e-12):
        query = query * factor
    x = query.new_empty(*query.shape[:1], key.shape[2], 0)  # no encoding of a Hugging Face model reads x
    mixed = attention(stack(parts), x, query, key, value, state.ids)
    return mixed.transpose(1, 2).contiguous(), None
