"""The case that is checked: an encoding in a small decoder, with random parameters so that none is neutral.

Letters: B batch, H query heads, T tokens, K head width, D model width.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.config.schema import ModelConfig
from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, Side
from pe_bench.encodings.compose import Composition, leaves_of
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import first_line
from pe_bench.inspection.curves import layer_kinds
from pe_bench.inspection.resolve import resolve
from pe_bench.model.attention.reference import make_sides
from pe_bench.model.checks import describe_user_code_error
from pe_bench.model.decoder import Decoder
from pe_bench.system.signals import INTERRUPTIONS

# Small, and no two sizes are equal, so that none can be mistaken for another; but two heads share keys.
MODEL = ModelConfig(name="check", d_model=32, n_layers=4, n_heads=4, n_kv_heads=2, d_head=8, d_ff=24)
TRAIN_LENGTH = 32
OVERRIDES = [
    *(f"model.{key}={value}" for key, value in asdict(MODEL).items()),
    f"train.length={TRAIN_LENGTH}",
]
# The text of the tokens, for encodings that read it: full stops and line ends among letters.
VOCABULARY = (*"abcdefghi", ".", "\n")
EXACT_TOLERANCE = 1e-10  # float64, other shapes of the same products
MIN_VISIBLE_ERROR = 1e-6  # a larger difference is not rounding
PER_QUERY_SHAPES = ("BHQ1", "HQ1", "Q1", "1", "")
# The shapes that a hook may return, in the letters of base.py; * is any number of axes.
SHAPES = {
    "ids": ("T", "BT"),
    "embed": ("BTD",),
    "convolve": ("BHTK",),
    "attend": ("BHTK",),
    "prepare": ("B*T",),
    "transform": ("BHT*",),
    "logit_scale": PER_QUERY_SHAPES,
    "scores": ("BHQN",),
    "distance_bias": ("Hn",),
    "bias": ("HQN", "BHQN"),
    "adjust": ("BHQN",),
    "visible": ("QN", "HQN"),
    "first_keys": ("T",),
    "weights": ("BHQN",),
    "null_logit": PER_QUERY_SHAPES,
    "mix": ("BHQK",),
    "gate": ("BHQK", "BHQ1"),
}

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


class Finding(NamedTuple):
    """The outcome of one check of an encoding."""

    state: Literal["holds", "fails", "not claimed"]
    measured: str  # what was measured, as text
    lines: tuple[str, ...] = ()  # `FILE:LINE hook` of what may be wrong


class FailureError(Exception):
    """Raised by the check of a property that does not hold; the text says what was measured."""


class UnclaimedError(Exception):
    """Raised by the check of a property that the encoding does not claim or that does not apply to it.

    The text says why.
    """


@dataclass(frozen=True)
class Case:
    """An encoding's configuration, resolved for a model of the size `MODEL` trained at `TRAIN_LENGTH`."""

    name: str
    spec: EncodingSpec  # the encoding and its modifiers
    examples: Mapping[str, Any] = field(default_factory=dict)  # examples for options that have no default
    sizes: ModelConfig = MODEL  # the sizes of the model
    vocabulary: Sequence[str] = VOCABULARY  # the text of every token

    def as_built(self, seed: int = 0) -> Composition:
        """Build the encoding with its initial values, drawn with `seed`, in the dtypes of its own code."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.spec.build(self.sizes.n_layers, self.vocabulary)

    def with_random_parameters(self) -> Composition:
        """Build the encoding with random parameters: at their initial zeros, many encodings do nothing."""
        encoding = self.as_built()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.3)
        return encoding

    def nudged(self, nudge: float) -> Composition:
        """Build the encoding in float64, with parameters moved away from their initial values.

        At their initial values, some parameters have no effect. nudge: a parameter moves by 0.1 to 1.1 times
        this number.
        """
        encoding = self.as_built()
        generator = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for parameter in encoding.parameters():
                step = 0.1 + torch.rand(parameter.shape, generator=generator)
                parameter.add_(nudge * step)
        return encoding.double()

    def model_of(self, encoding: Composition) -> Decoder:
        """Build a decoder in float64 whose own weights are always the same."""
        generator = torch.Generator().manual_seed(1)
        return Decoder(self.sizes, len(self.vocabulary), encoding, generator).double()

    def new_model(self) -> Decoder:
        """Build a decoder with the encoding and random parameters."""
        return self.model_of(self.with_random_parameters())

    @cached_property
    def model(self) -> Decoder:
        return self.new_model()

    @cached_property
    def encoding(self) -> Composition:
        return self.with_random_parameters().double()

    @cached_property
    def layers(self) -> list[LayerEncoding]:
        """The layers of `encoding`, one of each kind."""
        return distinct_layers(self.encoding)

    @property
    def softmax_layers(self) -> list[LayerEncoding]:
        """Return the `layers` with softmax attention. Raises `UnclaimedError` without such a layer."""
        layers = [layer for layer in self.layers if not layer.overrides("attend")]
        if not layers:
            raise UnclaimedError("no layer has softmax attention")
        return layers

    def both_precisions(self) -> list[tuple[LayerEncoding, LayerEncoding]]:
        """Return each kind of layer in float64 and in float32, with the same parameters."""
        return list(zip(self.layers, distinct_layers(self.with_random_parameters()), strict=True))

    def inputs(self, length: int, batch: int = 2) -> Inputs:
        """Return a layer's input and its queries, keys and values, as `layer_inputs` does."""
        return layer_inputs(length, batch=batch, d_head=self.sizes.d_head)

    def sides(self, length: int, shift: int = 0) -> Iterator[tuple[LayerEncoding, Side, Side]]:
        """Yield each kind of layer with softmax, and queries and keys at positions from `shift` on."""
        x, q, k, _ = self.inputs(length)
        position = torch.arange(length) + shift
        for layer in self.softmax_layers:
            yield layer, *make_sides(layer, x, q, k, position)

    @property
    def is_undefined_past_training(self) -> bool:
        """Whether the encoding has no meaning past the training length."""
        return self.encoding.past_training == "undefined"

    def claims(self, claim: str) -> bool:
        return claim in self.encoding.claims

    def as_claimed(self, claim: str, label: str, *errors: float) -> str:
        """Return the largest of `errors` as text, if the class claims `claim` and no error is too large.

        Raises `FailureError` for a claim with too large an error, and for a property without a claim whose
        errors are small, because a missing claim leaves an encoding unchecked. Raises `UnclaimedError` for a
        property without a claim that visibly does not hold.
        """
        if self.claims(claim):
            return at_most(label, *errors)
        measured = f"{label} {largest(errors):.1e}"
        if largest(errors) > MIN_VISIBLE_ERROR:
            raise UnclaimedError(measured)
        raise FailureError(f"{claim} is not claimed, and holds: {measured}")


def find_cases(arguments: Sequence[str], search: Sequence[Path] = ()) -> list[Case]:
    """Return a case for each encoding in the arguments: a name or `file.py:Class`, with options.

    search: folders with a person's own YAML files. Raises `UserError`.
    """
    subjects = resolve([*OVERRIDES, *arguments], search)
    return [Case(subject.label_with_file, subject.spec, subject.examples) for subject in subjects]


# The parts of an encoding


def distinct_layers(encoding: Composition) -> list[LayerEncoding]:
    """Return one layer of each kind; layers of one kind have the same structure and tables."""
    return [encoding.layer(numbers[0]) for numbers in layer_kinds(encoding, MODEL.n_layers)]


def parts_of(encoding: Composition) -> list[nn.Module]:
    """Return the encoding, its modifiers and the parts that act in its layers, each once."""
    parts: list[nn.Module] = [encoding.base, *encoding.modifiers.children()]
    for number in range(MODEL.n_layers):
        parts += leaves_of(encoding.layer(number))
    return list(dict.fromkeys(parts))


def base_class_of(part: nn.Module) -> type[LayerEncoding] | type[PositionalEncoding]:
    """Return the base class of a part, `LayerEncoding` or `PositionalEncoding`, which declares its hooks."""
    return LayerEncoding if isinstance(part, LayerEncoding) else PositionalEncoding


def changed_hooks(encoding: Composition, hooks: Iterable[str]) -> list[tuple[nn.Module, str]]:
    """Return the pairs of a part of the encoding and a hook, one of `hooks`, that the part changes."""
    pairs = product(parts_of(encoding), hooks)
    return [(part, hook) for part, hook in pairs if changes(part, hook)]


def changes(part: nn.Module, hook: str) -> bool:
    """Return whether the class of a part has a hook of its own."""
    neutral = getattr(base_class_of(part), hook, None)
    return getattr(type(part), hook, None) is not neutral


def line_of(part: nn.Module, hook: str) -> str:
    """Return the file and line where a class has a hook."""
    code = inspect.unwrap(getattr(type(part), hook)).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def never_called(part: nn.Module) -> str:
    """Return a message on a method that is never called; empty if there is no such method.

    The method is a misspelt hook, or a hook of the other base class. A method that the class itself uses is a
    helper, whatever its name.
    """
    kind = base_class_of(part)
    hooks = [*_public_methods(LayerEncoding), *_public_methods(PositionalEncoding)]
    used = _names_in_methods(type(part))
    for name in _public_methods(type(part)):
        close = get_close_matches(name, hooks, 1, 0.8)
        if close and not hasattr(kind, name) and name not in used:
            return f"{name} is never called: is it {close[0]} of a {kind.__name__}?"
    return ""


def _public_methods(kind: type[nn.Module]) -> list[str]:
    """Return the names of the public methods that torch's modules do not have."""
    names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction)]
    public = [name for name in names if not name.startswith("_")]
    return [name for name in public if not hasattr(nn.Module, name)]


def _names_in_methods(kind: type[nn.Module]) -> set[str]:
    """Return the names that the methods of a class use as attributes, but not the methods of nn.Module."""
    names: set[str] = set()
    for method, function in inspect.getmembers(kind, inspect.isfunction):
        is_own = getattr(nn.Module, method, None) is not function
        codes = [inspect.unwrap(function).__code__] if is_own else []
        for code in codes:
            names.update(code.co_names)
            codes += filter(inspect.iscode, code.co_consts)  # inner functions
    return names


# Inputs


def tokens(batch: int, length: int) -> Tensor:
    """Return random tokens [B, T] of the vocabulary."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(len(VOCABULARY), (batch, length), generator=generator)


def other_tokens(tokens_BT: Tensor) -> Tensor:
    """Return tokens that differ from the given tokens at every place."""
    steps = 1 + torch.arange(tokens_BT.shape[-1]) % 9
    return (tokens_BT + steps) % len(VOCABULARY)


def ids_of(encoding: Composition, tokens_BT: Tensor, train: bool = False) -> Tensor:
    """Return the position ids of tokens, by default those of scoring, drawn with a fixed seed."""
    return encoding.ids(tokens_BT, train=train, generator=torch.Generator().manual_seed(3))


def hidden(model: Decoder, tokens_BT: Tensor, shift: int = 0) -> Tensor:
    """Return the decoder's last hidden states [B, T, D] with the ids of scoring, moved by `shift`."""
    return model.hidden(tokens_BT, ids_of(model.encoding, tokens_BT) + shift)


def layer_inputs(
    length: int, dtype: torch.dtype = torch.float64, batch: int = 2, d_head: int = MODEL.d_head
) -> Inputs:
    """Return a layer's input [B, T, D] and its queries, keys and values [B, H, T, K]."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(batch, length, MODEL.d_model, generator=generator, dtype=torch.float64)
    shape = (3, batch, MODEL.n_heads, length, d_head)
    q, k, v = torch.randn(shape, generator=generator, dtype=torch.float64)
    return as_type((x, q, k, v), dtype)


def as_type(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    x, q, k, v = (tensor.to(dtype) for tensor in inputs)
    return x, q, k, v


def one_token_repeated(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer's input, queries and keys: all tokens are the same, and each query equals its key."""
    x, q, _, _ = layer_inputs(1, batch=1)
    repeated = q.expand(-1, -1, length, -1)
    return x.expand(-1, length, -1), repeated, repeated


# Errors


def judge(check: Callable[[Case], str], case: Case) -> Finding:
    """Run a check, and return its finding. An encoding that raises any error has failed the check."""
    try:
        return Finding("holds", check(case))
    except INTERRUPTIONS:
        raise
    except UnclaimedError as reason:
        return Finding("not claimed", str(reason))
    except FailureError as failure:
        return Finding("fails", str(failure))
    except BaseException as error:
        return Finding("fails", describe(error))


def expect(holds: bool, measured: str) -> None:
    """Raise `FailureError` with the text unless the property holds."""
    if not holds:
        raise FailureError(measured)


def at_most(label: str, *errors: float, limit: float = EXACT_TOLERANCE) -> str:
    """Return the largest error after its label. Raises `FailureError` for one above the limit."""
    measured = f"{label} {largest(errors):.1e}"
    expect(largest(errors) <= limit, measured)
    return measured


def largest(errors: Iterable[float]) -> float:
    """Return the largest error; infinity if an error is NaN, which `max` would pass over."""
    errors = list(errors)
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tensors; infinity if either has a NaN."""
    difference = a.detach().double() - b.detach().double()
    return float(difference.abs().nan_to_num(math.inf).max())


def describe(error: BaseException) -> str:
    """Return an error with its type, and the line of a person's own code that raised it."""
    in_user_code = describe_user_code_error(error)
    return in_user_code or f"{type(error).__name__}: {first_line(error)}"
