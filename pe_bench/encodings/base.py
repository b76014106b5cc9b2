"""The interface that every encoding is written against: hooks with neutral defaults.

An encoding overrides the hooks that its paper changes and nothing else. The decoder calls
the hooks in a fixed order (`pe_bench.model.attention`):

    convolve -> transform -> scores * scale -> * logit_scale -> + bias -> adjust -> mask -> weights
        -> null_logit -> mix -> * gate

A layer without softmax has `attend` in place of all between `convolve` and `gate`.

Letters of shapes: B batch, H query heads, T tokens, Q queries and N keys of one block of
scores, K head width, D model width. A *position* is what an encoding reads, an *index* is a
token's place in the sequence, which masks read; they differ where positions are redefined.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from pe_bench.values import AtLeast1 as AtLeast1
from pe_bench.values import AtLeast2 as AtLeast2
from pe_bench.values import Fraction as Fraction
from pe_bench.values import Natural as Natural
from pe_bench.values import NotNegative as NotNegative
from pe_bench.values import Positive as Positive
from pe_bench.values import Range
from pe_bench.values import Share as Share

PastTraining = Literal["undefined", "clamps", "defined"]
ADVERSE_FIRST: tuple[PastTraining, ...] = get_args(PastTraining)  # the most adverse to longer texts
Claim = Literal[
    "shift_invariant",  # scores do not change when every position moves by the same amount
    "prefix_consistent",  # outputs for a prefix do not depend on what follows or on the length
    "norm_preserving",  # transform keeps the norm of every query and key
    "decaying",  # the bias falls as distance grows
]

# Types of numeric options, in addition to those of `values`; `check_type` refuses numbers outside the range.
Base = Annotated[float, Range(1, is_open=True)]  # the base of a falling geometric series of frequencies
Factor = Annotated[float, Range(1)]

# Weights also load into an encoding that `compatible_with` does not name, if neither has parameters. Such
# scores mean nothing, because the model never saw such logits in training.
ROTARY_ENCODINGS = frozenset({"rope", "partial_rope", "p_rope"})
# Encodings that add a bias or terms of the distance or of the content to the logits: fewer keys or sharper
# logits do not change the meaning of this sum.
RELATIVE_ENCODINGS = frozenset(
    {"alibi", "kerple_log", "kerple_power", "sandwich", "t5", "fire", "fox", "cope", "shaw"}
    | {"transformer_xl", "deberta"}
)
# The family of encodings in a folder, where it is not the folder's name.
FAMILIES = {"inputs": "input", "logits": "scale", "masks": "mask", "layers": "schedule", "scalings": "rotary"}
CITATION_PATTERN = re.compile(r"arXiv:\d{4}\.\d{5}|https?://[^\s,;]*[^\s,;.:]|modded-nanogpt#\d+")
NO_VOCABULARY = "it was built without a vocabulary: call read_vocabulary with the text of every token id"


class LengthError(ValueError):
    """An encoding has no meaning at a length; the message says why."""


class Side(NamedTuple):
    """The queries, or the keys, of one block of scores."""

    x: Tensor  # [B, H, n, *] after `transform`
    raw: Tensor  # [B, H, n, K] before `transform`
    position: Tensor  # [n] or [B, 1, n], integer or float32
    index: Tensor  # [n] place in the sequence  # pyright: ignore[reportIncompatibleMethodOverride]
    values: dict[str, Tensor]  # what `prepare` returned, cut to these tokens: [B, ..., n]


class ScoreTerm(NamedTuple):
    """Scores of the pairs in `mask`: products of `q` and `k`, before they are multiplied by the scale."""

    q: Tensor  # [B, H, Q, *]
    k: Tensor  # [B, H, N, *]
    mask: Tensor  # [Q, N] or [B, 1, Q, N], true for the pairs whose score this is


class Declared:
    """Facts about an encoding, as attributes of its class, for code that does not run the encoding."""

    # pe-bench's own classes take their family from their folder, their paper from the first citation of their
    # module.
    family: ClassVar[str] = "none"
    paper: ClassVar[str] = ""
    past_training: PastTraining = "defined"  # an instance may have its own, as of `claims`: options decide
    # Names of the encodings, without modifiers, whose trained weights may be scored under this encoding.
    compatible_with: ClassVar[frozenset[str]] = frozenset()
    # Options of this encoding that may change after training.
    changeable_after_training: ClassVar[frozenset[str]] = frozenset()
    # The learning rate of the encoding's parameters, as a multiple of the model's; 0 leaves them at their
    # initial values. A bias of scores moves further in training than the entries of a matrix.
    lr_multiple: ClassVar[float] = 1.0
    inert: ClassVar[frozenset[str]] = frozenset()  # parameters that cancel in the softmax, for `check`
    window_factor: ClassVar[str | None] = None  # the option that, at null, follows the window's length
    searched: ClassVar[str | None] = None  # the option that `extend` searches for each trained model

    @classmethod
    def guesses(cls, options: Mapping[str, Any], length: int) -> list[list[float]]:
        """Return values of the option `searched` that a search tries first, in windows of `length` tokens.

        Each value is a list of numbers.
        """
        return []

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        package, _, folder = cls.__module__.rpartition(".")[0].rpartition(".")
        if package == "pe_bench.encodings":
            cls.family = FAMILIES.get(folder, folder)
        is_own = package.split(".")[0] == "pe_bench"
        if is_own and "paper" not in vars(cls):
            cited = CITATION_PATTERN.search(sys.modules[cls.__module__].__doc__ or "")
            if cited:
                cls.paper = cited[0]

    def overrides(self, *hooks: str) -> bool:
        """Return true if the encoding changes one of the named hooks; fast paths need unchanged hooks."""
        base = LayerEncoding if isinstance(self, LayerEncoding) else PositionalEncoding
        own = type(self)
        return any(getattr(own, hook) is not getattr(base, hook) for hook in hooks)

    @classmethod
    def implied(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that another encoding must have to use weights trained under these `options`."""
        return {}

    @classmethod
    def example(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return example values of options without a default, for `check` and `list`, given the others."""
        return {}


# Hooks, and the optional hooks with which the same result is computed faster.
SHORTCUTS = {
    "scores": ("terms",),
    "bias": ("columns",),
    "distance_bias": ("columns",),
    "visible": ("ranges", "first_keys"),
    "attend": ("attend_chunked",),
}
# Hooks that read the queries of all tokens: no query may be left out before their call.
FULL_SEQUENCE_HOOKS = ("convolve", "attend")


class LayerEncoding(nn.Module, Declared):
    """The hooks of one layer's attention, each of which changes nothing by default."""

    claims: frozenset[Claim] = frozenset({"shift_invariant", "prefix_consistent"})
    per_layer: ClassVar[bool] = False  # True: every layer has its own parameters
    transforms_first: ClassVar[bool] = False  # True: `transform` acts before that of other encodings

    def __init_subclass__(cls, **options: Any) -> None:
        """Drop a shortcut if its hook is overridden in a more derived class."""
        super().__init_subclass__(**options)

        def mro_index(name: str) -> int:
            return next(number for number, base in enumerate(cls.__mro__) if name in vars(base))

        for hook, shortcuts in SHORTCUTS.items():
            for shortcut in shortcuts:
                if mro_index(shortcut) > mro_index(hook):
                    setattr(cls, shortcut, getattr(LayerEncoding, shortcut))

    def convolve(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Change the queries, keys and values of all tokens [B, H, T, K] by those of earlier tokens."""
        return q, k, v

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        """Compute values [B, .., T] of each token from the layer's input `x` [B, T, D], for `Side.values`."""
        return {}

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Rotate or widen the queries of the last tokens [B, H, Q, K], and *all* the keys [B, H, N, K]."""
        return queries.x, keys.x

    def logit_scale(self, queries: Side) -> Tensor | None:
        """Return a factor for the scaled scores, broadcastable to [B, H, Q, 1]; None: no factor."""
        return None

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        """Return logits [B, H, Q, N]; `scale` is one over the root of the model's own head width.

        Here and in every hook below, keys end at the last query of the block. Under an outer window, keys
        begin with the window of the first query, and keys outside `ranges` may be missing: read `keys.index`
        for a key's place in the sequence.
        """
        return scale * (queries.x @ keys.x.mT)

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        """Optional, with `scores`: return the same scores as plain products whose masks cover each pair once.

        All terms have one width, which may be smaller than the width of the transformed queries and keys.
        """
        raise LookupError(f"the scores of {type(self).__name__} have no terms")

    def distance_bias(self, distance: Tensor) -> Tensor | None:
        """Optional: return a bias [H, n] of the distances [n] (query minus key position); not None."""
        return None

    def bias(self, queries: Side, keys: Side) -> Tensor | None:
        """Return a bias [H, Q, N] or [B, H, Q, N] added after the scale; None: no bias.

        The default is `distance_bias` of the difference in position. Values for keys after the query must be
        finite; the mask hides them.
        """
        if not self.overrides("distance_bias"):
            return None
        distance = distances(queries, keys).clamp(min=0)
        flat = self.distance_bias(distance.flatten())
        if flat is None:
            raise TypeError("distance_bias returned None: is a return missing?")
        return batch_first(flat.unflatten(-1, distance.shape))

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Optional: return columns for queries [.., Q, c] and keys [.., N, c] whose product *is* the bias."""
        raise LookupError(f"the bias of {type(self).__name__} has no columns")

    def has_columns(self) -> bool:
        """Return true if the product of `columns` is the whole bias of the encoding."""
        return self.overrides("columns")

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        """Change the logits [B, H, Q, N], if this needs all keys of a query; `visible` is the keys' mask."""
        return scores

    def visible(self, queries: Side, keys: Side) -> Tensor:
        """Return the mask of visible keys, [Q, N] or [H, Q, N]; it follows from indices, never positions."""
        return keys.index <= queries.index.unsqueeze(-1)

    def ranges(self, start: int, stop: int) -> list[range]:
        """Optional, with `visible`: return ranges of indices outside which the queries see no key.

        Queries are the tokens `start` to `stop` - 1. Ranges rise, do not overlap and end at `stop`; the
        default is one range of all keys. Keys outside of the ranges cost nothing, and `visible` decides
        within them.
        """
        return [range(stop)]

    def first_keys(self, tokens: int) -> Tensor | None:
        """Optional, with `visible`: return the first key [T] that each query sees, int64 on the CPU.

        Each query then sees all keys from its first key to itself, and first keys never fall from query to
        query. None: the visible keys are no such range.
        """
        return None if self.overrides("visible") else torch.zeros(tokens, dtype=torch.int64)

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Return attention weights [B, H, Q, N] from logits `scores` and the mask of visible keys."""
        return scores.masked_fill(~visible, float("-inf")).softmax(-1)

    def null_logit(self, queries: Side) -> Tensor | None:
        """Return the logit of one more key without a value, broadcastable to [B, H, Q, 1]; None: no such key.

        Nothing scales this logit. Fast paths add it to the log-sum-exp of the other logits at no cost.
        """
        return None

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        """Return the output [B, H, Q, K] from weights and the keys' values [B, H, N, K]."""
        return weights @ v

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the output of all tokens [B, H, T, K] of a layer without softmax attention.

        x: the layer's input [B, T, D]. Of the other hooks, only `convolve` and `gate` are called.
        """
        raise LookupError(f"{type(self).__name__} attends by softmax")

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Optional: return the same as `attend`, computed faster."""
        return self.attend(x, q, k, v)

    def gate(self, x: Tensor) -> Tensor | None:
        """Return a factor of the queries' output, [B, H, Q, K] or [B, H, Q, 1]; None: no factor.

        x: the layer's input [B, Q, D] at the queries.
        """
        return None


class PositionalEncoding(nn.Module, Declared):
    """The hooks of a whole model: position ids, embeddings, and the `LayerEncoding` of each layer.

    An encoding that only acts inside attention is a `LayerEncoding`, which the decoder wraps in `Layers`.
    """

    claims: frozenset[Claim] = frozenset({"prefix_consistent"})

    def read_vocabulary(self, texts: Sequence[str]) -> None:
        """Read the text of every token id, once, before weights are drawn or loaded.

        Create here parameters and buffers that depend on the vocabulary, such as a parameter for each token.
        """

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        """Return position ids [T] or [B, T] of the tokens [B, T]; integer or float32, zero-based."""
        return torch.arange(tokens.shape[-1], device=tokens.device)

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        """Change the token embeddings x [B, T, D] before the first layer.

        ids: the position ids that `ids` returned. tokens: [B, T].
        """
        return x

    def layer(self, number: int) -> LayerEncoding:
        """Return the encoding that acts in the attention of layer `number`."""
        return _NEUTRAL


# The type of an option that holds another encoding: a function that builds it for a number of layers.
NestedEncoding = Callable[[int], PositionalEncoding]


class Layers(PositionalEncoding):
    """A `LayerEncoding` in every layer: one instance for all layers, or one for each."""

    def __init__(self, layers: list[LayerEncoding]):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.claims, self.past_training = layers[0].claims, layers[0].past_training

    def layer(self, number: int) -> LayerEncoding:
        layer = self.layers[number % len(self.layers)]
        assert isinstance(layer, LayerEncoding)
        return layer


_NEUTRAL = LayerEncoding()


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off on the device of `x`, if that device has autocast."""
    device = x.device.type
    if torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return the type for precise computation: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def distances(queries: Side, keys: Side) -> Tensor:
    """Return the query's position minus the key's, [Q, N] or [B, 1, Q, N]; below 0 for later keys."""
    return queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2)


def batch_first(bias: Tensor) -> Tensor:
    """Return a bias [Q, N] or [H, Q, N] as it is, and a bias [H, B, 1, Q, N] as [B, H, Q, N]."""
    return bias if bias.dim() <= 3 else bias.squeeze(2).transpose(0, 1)


def bounded(parameter: Tensor, smallest: float, largest: float | None = None) -> Tensor:
    """Clamp a parameter, but pass its gradient on unchanged: a plain clamp keeps it at a bound for good."""
    change = parameter.clamp(smallest, largest) - parameter
    return parameter + change.detach()
