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

# Types of options that are numbers, beside those of `values`; `check_type` refuses others.
Base = Annotated[float, Range(1, is_open=True)]  # of frequencies, which fall
Factor = Annotated[float, Range(1)]

# Weights load into any other encoding where neither has parameters. Without `compatible_with` their scores
# mean nothing, because the model never saw such logits in training.
ROTARY = frozenset({"rope", "partial_rope", "p_rope"})
# A bias or terms of the distance or of the content, added to the logits: fewer keys or sharper logits leave
# what they mean as it is.
RELATIVE = frozenset(
    {"alibi", "kerple_log", "kerple_power", "sandwich", "t5", "fire", "fox", "cope", "shaw"}
    | {"transformer_xl", "deberta"}
)
# Families of folders that have another name.
FAMILIES = {"inputs": "input", "logits": "scale", "masks": "mask", "layers": "schedule", "scalings": "rotary"}
CITATION = re.compile(r"arXiv:\d{4}\.\d{5}|https?://[^\s,;]*[^\s,;.:]|modded-nanogpt#\d+")
NO_VOCABULARY = "it was built without a vocabulary: call read_vocabulary with the text of every token id"


class LengthError(ValueError):
    """An encoding has no meaning at the length it was given; the text says why."""


class Side(NamedTuple):
    """The queries, or the keys, of one block of scores."""

    x: Tensor  # [B, H, n, *] after `transform`
    raw: Tensor  # [B, H, n, K] before `transform`
    position: Tensor  # [n] or [B, 1, n], integer or float32
    index: Tensor  # [n] place in the sequence  # pyright: ignore[reportIncompatibleMethodOverride]
    values: dict[str, Tensor]  # what `prepare` returned, cut to these tokens: [B, ..., n]


class ScoreTerm(NamedTuple):
    """Scores of some pairs of queries and keys: plain products, times the scale."""

    q: Tensor  # [B, H, Q, *]
    k: Tensor  # [B, H, N, *]
    mask: Tensor  # [Q, N] or [B, 1, Q, N], true for the pairs whose score this is


class Declared:
    """What other code needs to know of an encoding: it stands on the class."""

    # Those of pe-bench's own classes follow from their folders and from what their modules cite first.
    family: ClassVar[str] = "none"
    paper: ClassVar[str] = ""
    past_training: PastTraining = "defined"  # this and `claims` are an instance's, for options decide
    # The encodings on whose trained weights this one may be scored, by the names of their files and without
    # their modifiers; and the options of this one that may change after training.
    compatible_with: ClassVar[frozenset[str]] = frozenset()
    changeable_after_training: ClassVar[frozenset[str]] = frozenset()
    # The rate at which its parameters learn, as a multiple of the model's. Biases of scores have further
    # to go than the entries of a matrix; at 0 they stay as they are at first.
    lr_multiple: ClassVar[float] = 1.0
    inert: ClassVar[frozenset[str]] = frozenset()  # parameters that cancel in the softmax, for `check`
    window_factor: ClassVar[str | None] = None  # the option that, at null, follows the window's length
    searched: ClassVar[str | None] = None  # the option that `extend` searches for each trained model

    @classmethod
    def guesses(cls, options: Mapping[str, Any], length: int) -> list[list[float]]:
        """Return the values that a search of the option `searched` begins with, for windows of `length`."""
        return []

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        package, _, folder = cls.__module__.rpartition(".")[0].rpartition(".")
        if package == "pe_bench.encodings":
            cls.family = FAMILIES.get(folder, folder)
        if package.split(".")[0] == "pe_bench" and "paper" not in vars(cls):
            cited = CITATION.search(sys.modules[cls.__module__].__doc__ or "")
            if cited:
                cls.paper = cited[0]

    def overrides(self, *hooks: str) -> bool:
        """Return whether this encoding changes any of the named hooks, which decides on fast paths."""
        base = LayerEncoding if isinstance(self, LayerEncoding) else PositionalEncoding
        return any(getattr(type(self), hook) is not getattr(base, hook) for hook in hooks)

    @classmethod
    def implied(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the option values implied by these, under the names used by compatible encodings."""
        return {}

    @classmethod
    def example(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values of options that have no default, for `check` and `list`, from those given."""
        return {}


# Optional hooks, which only compute faster what another hook defines.
SHORTCUTS = {
    "scores": "terms",
    "bias": "columns",
    "distance_bias": "columns",
    "visible": "ranges",
    "attend": "attend_chunked",
}
# Hooks that read the queries of all tokens, so that none may be left out before they are called.
OF_ALL_QUERIES = ("convolve", "attend")


class LayerEncoding(nn.Module, Declared):
    """What an encoding does inside the attention of one layer."""

    claims: frozenset[Claim] = frozenset({"shift_invariant", "prefix_consistent"})
    per_layer: ClassVar[bool] = False  # True: every layer has its own parameters

    def __init_subclass__(cls, **options: Any) -> None:
        """Drop the inherited shortcut of each hook that the class changes."""
        super().__init_subclass__(**options)
        for hook, shortcut in SHORTCUTS.items():
            if hook in vars(cls) and shortcut not in vars(cls):
                setattr(cls, shortcut, getattr(LayerEncoding, shortcut))

    def convolve(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Change the queries, keys and values of all tokens [B, H, T, K] by those of earlier tokens."""
        return q, k, v

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        """Return values of each token from the layer's input `x` [B, T, D]; tokens are the last axis."""
        return {}

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Rotate or widen the queries [B, H, Q, K], which are the last, and *all* the keys [B, H, N, K]."""
        return queries.x, keys.x

    def logit_scale(self, queries: Side) -> Tensor | None:
        """Return a factor for the scaled scores, broadcastable to [B, H, Q, 1]."""
        return None

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        """Return logits [B, H, Q, N]; `scale` is one over the root of the model's own head width.

        The keys, here and in every hook below, are those up to the last query of the block. With a window
        from outside they begin where its first query's does, and keys out of `ranges` may be missing, so that
        a key's place among them is no index.
        """
        return scale * (queries.x @ keys.x.mT)

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        """Optional: return the plain products of which `scores` chooses one for each pair.

        All have one width, which may be less than that of what `transform` returned.
        """
        raise LookupError(f"the scores of {type(self).__name__} have no terms")

    def distance_bias(self, distance: Tensor) -> Tensor | None:
        """Return a bias [H, n] of the distance alone, for distances [n] (query minus key position)."""
        return None

    def bias(self, queries: Side, keys: Side) -> Tensor | None:
        """Return a bias [H, Q, N] or [B, H, Q, N] added after the scale.

        By default `distance_bias` of the positions' difference; its values for keys
        after the query do not matter, because they are masked, but must be finite.
        """
        if not self.overrides("distance_bias"):
            return None
        distance = (queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2)).clamp(min=0)
        flat = self.distance_bias(distance.flatten())
        assert flat is not None
        bias = flat.unflatten(-1, distance.shape)  # [H, Q, N] or [H, B, 1, Q, N]
        return bias if distance.dim() == 2 else bias.squeeze(2).transpose(0, 1)

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Optional: return columns for queries [.., Q, c] and keys [.., N, c] whose product *is* the bias."""
        raise LookupError(f"the bias of {type(self).__name__} has no columns")

    def has_columns(self) -> bool:
        """Return whether `columns` has the whole bias."""
        return self.overrides("columns")

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        """Change the logits in ways that need the whole row."""
        return scores

    def visible(self, queries: Side, keys: Side) -> Tensor:
        """Return which keys a query may see [Q, N], or [H, Q, N]; read indices, never positions."""
        return keys.index <= queries.index.unsqueeze(-1)

    def ranges(self, start: int, stop: int) -> list[range]:
        """Optional, beside `visible`: return ranges of indices that hold all keys which a query may see.

        The queries are those from `start` to `stop` - 1. Ranges rise, do not overlap and end at `stop`; by
        default there is one. Keys outside of them cost nothing; within them `visible` decides.
        """
        return [range(stop)]

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Return attention weights [B, H, Q, N] from logits."""
        return scores.masked_fill(~visible, float("-inf")).softmax(-1)

    def null_logit(self, queries: Side) -> Tensor | None:
        """Return a logit, broadcastable to [B, H, Q, 1], of one more key in the softmax that has no value.

        Nothing scales it. Fast paths know it by the log-sum-exp of the other logits, and it costs nothing.
        """
        return None

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        """Return the output [B, H, Q, K] from weights and the keys' values [B, H, N, K]."""
        return weights @ v

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what all tokens read [B, H, T, K], in place of softmax attention.

        x: the layer's input [B, T, D]. No hook but `convolve` and `gate` is called beside it.
        """
        raise LookupError(f"{type(self).__name__} attends by softmax")

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Optional: return what `attend` does, by another way to compute it."""
        return self.attend(x, q, k, v)

    def gate(self, x: Tensor) -> Tensor | None:
        """Return a factor [B, H, Q, K] or [B, H, Q, 1] of what the queries read.

        x: the layer's input of their tokens [B, Q, D].
        """
        return None


class PositionalEncoding(nn.Module, Declared):
    """What an encoding does to a whole model: position ids, embeddings, and which layer gets what.

    Only an encoding that changes one of these is a `PositionalEncoding`; the decoder wraps any
    other in `Layers`.
    """

    claims: frozenset[Claim] = frozenset({"prefix_consistent"})

    def read_vocabulary(self, texts: Sequence[str]) -> None:
        """Read the text of every token id, once, before weights are drawn or loaded.

        Create here what depends on the vocabulary, such as a parameter for each token.
        """

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        """Return position ids [T] or [B, T] of the tokens [B, T]; integer or float32, zero-based."""
        return torch.arange(tokens.shape[-1], device=tokens.device)

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        """Change the token embeddings [B, T, D] before the first layer."""
        return x

    def layer(self, number: int) -> LayerEncoding:
        """Return the encoding that acts in the attention of layer `number`."""
        return _NEUTRAL


# The type of an option that holds another encoding: called with a number of layers, it builds it for these.
NestedEncoding = Callable[[int], PositionalEncoding]


class Layers(PositionalEncoding):
    """A `LayerEncoding` in every layer: one shared instance, or one a layer."""

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
    """Turn autocast off where `x` is: not every device has it."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def bounded(parameter: Tensor, smallest: float, largest: float | None = None) -> Tensor:
    """Return the value within the bounds: a plain clamp would stop its gradient and hold it for good."""
    return parameter + (parameter.clamp(smallest, largest) - parameter).detach()
