"""The case that is checked: an encoding in a small decoder, with random parameters so that none is neutral.

Letters: B batch, H query heads, T tokens, K head width, D model width.
"""

import math
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pe_bench.config.schema import ModelConfig
from pe_bench.encodings.base import LayerEncoding, Layers, PositionalEncoding
from pe_bench.encodings.compose import Composition, Stack
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, first_line
from pe_bench.inspection.resolve import ResolvedEncoding, resolve
from pe_bench.model.checks import user_code_line
from pe_bench.model.decoder import Decoder
from pe_bench.system.signals import INTERRUPTIONS

State = Literal["holds", "fails", "not claimed", "not checked"]

EXACT = 1e-10  # float64, other shapes of the same products
SHOWS = 1e-6  # a larger difference is not rounding


class Finding(NamedTuple):
    state: State
    measured: str
    note: str = ""  # shown even where all is well
    places: tuple[str, ...] = ()  # `FILE:LINE hook` of what may be wrong


def largest(errors: Iterable[float]) -> float:
    """Return the largest error, and infinity where one is not a number: `max` would pass over it."""
    return max(math.inf if math.isnan(error) else error for error in errors)


def at_most(error: float, limit: float, label: str) -> Finding:
    # A value that is not a number fails.
    return Finding("holds" if error <= limit else "fails", f"{label} {error:.1e}")


def as_claimed(claim: str, is_claimed: bool, error: float, label: str) -> Finding:
    """Judge a property that the class claims or does not claim.

    A claimed one must hold. One that is not claimed must visibly not hold, because a missing claim leaves an
    encoding unchecked.
    """
    if is_claimed:
        return at_most(error, EXACT, label)
    if error > SHOWS:
        return Finding("not claimed", f"{label} {error:.1e}")
    return Finding("fails", f"{claim} is not claimed, and holds: {label} {error:.1e}")


# Small, and no two sizes are equal, so that none can be mistaken for another; but two heads share keys.
MODEL = ModelConfig(name="check", d_model=32, n_layers=4, n_heads=4, n_kv_heads=2, d_head=8, d_ff=24)
TRAIN_LENGTH = 32
# The text of the tokens, for encodings that read it: full stops and line ends among letters.
VOCABULARY = (*"abcdefghi", ".", "\n")

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """An encoding's configuration, resolved for a model of the size `MODEL` trained at `TRAIN_LENGTH`."""

    name: str
    spec: EncodingSpec
    examples: Mapping[str, Any] = field(default_factory=dict)  # of options that have no default
    sizes: ModelConfig = MODEL

    def as_built(self, seed: int = 0) -> Composition:
        """Build the encoding with its initial values, in the types that it chose."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.spec.build(self.sizes.n_layers, VOCABULARY)

    def with_random_parameters(self) -> Composition:
        """Build the encoding with random parameters: at their initial zeros, many encodings do nothing."""
        encoding = self.as_built()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.3)
        return encoding

    def model_of(self, encoding: Composition) -> Decoder:
        """Build a decoder in float64 whose own weights are always the same."""
        generator = torch.Generator().manual_seed(1)
        return Decoder(self.sizes, len(VOCABULARY), encoding, generator).double()

    def inputs(self, length: int, dtype: torch.dtype = torch.float64, batch: int = 2) -> Inputs:
        """Return a layer's input [B, T, D] and its queries, keys and values [B, H, T, K]."""
        return layer_inputs(length, dtype, batch, d_head=self.sizes.d_head)

    @property
    def config(self) -> dict[str, Any]:
        return self.spec.values

    @cached_property
    def encoding(self) -> Composition:
        return self.with_random_parameters().double()

    @cached_property
    def model(self) -> Decoder:
        return self.model_of(self.with_random_parameters())

    @cached_property
    def parts(self) -> list[PositionalEncoding | LayerEncoding]:
        """Return the encoding and its modifiers; `LayerEncoding`s without their wrappers."""
        found = [self.encoding.base, *self.encoding.modifiers.children()]
        return [part.layer(0) if isinstance(part, Layers) else part for part in found]  # type: ignore[misc]

    @property
    def past_training(self) -> str:
        return self.encoding.past_training

    def claims(self, claim: str) -> bool:
        return claim in self.encoding.claims

    def overrides(self, *hooks: str) -> bool:
        """Return whether the encoding changes one of these hooks in any layer."""
        of_model = [hook for hook in hooks if hasattr(PositionalEncoding, hook)]
        of_layer = [hook for hook in hooks if hasattr(LayerEncoding, hook)]
        parts = [self.encoding.base, *self.encoding.modifiers.children()]
        in_model = any(part.overrides(hook) for part in parts for hook in of_model)  # type: ignore[operator]
        return in_model or any(layer.overrides(*of_layer) for layer in layers_of(self.encoding))


def find_cases(arguments: Sequence[str], search: Sequence[Path] = ()) -> list[Case]:
    """Return the cases that the arguments name: encodings by name or `file.py:Class`, with options.

    `search` are folders with a person's own YAML files. Raises `UserError`, also where an encoding cannot
    be built.
    """
    sizes = [f"model.{key}={value}" for key, value in asdict(MODEL).items()]
    found = resolve([*sizes, f"train.length={TRAIN_LENGTH}", *arguments], search)
    names = Counter(subject.name for subject in found)
    return [_case(subject, subject.name if names[subject.name] == 1 else subject.label) for subject in found]


def _case(subject: ResolvedEncoding, name: str) -> Case:
    given, spec = subject.config.encoding, subject.spec.with_examples()
    examples = {option: value for option, value in spec.values.items() if given.get(option, {}) != value}
    found = Case(name, spec, examples)
    try:
        found.as_built()
    except (UserError, *INTERRUPTIONS):
        raise
    except BaseException as error:
        raise UserError(f"{name} cannot be built: {where(error)}: {first_line(error)}") from error
    return found


def where(error: BaseException) -> str:
    """Return the file that raised an error, or the user's that it passed through, and the error's type."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if "/torch/" not in frame.filename), frames[-1])
    line = user_code_line(error) or f"{frame.filename}:{frame.lineno}"
    return f"{Path(line).name}: {type(error).__name__}"


def layers_of(encoding: Composition) -> list[LayerEncoding]:
    """Return one layer of each kind: they differ only where a schedule says so."""
    kinds: dict[tuple[Any, ...], LayerEncoding] = {}
    for number in range(MODEL.n_layers):
        layer = encoding.layer(number)
        kinds.setdefault(_kind(layer), layer)
    return list(kinds.values())


def both_precisions(case: Case) -> list[tuple[LayerEncoding, LayerEncoding]]:
    """Return each kind of layer in float64 and in float32, with the same parameters."""
    return list(zip(layers_of(case.encoding), layers_of(case.with_random_parameters()), strict=True))


def _kind(layer: LayerEncoding) -> tuple[Any, ...]:
    """Return the classes that act in a layer, and what tells two of a class apart: options and tables."""
    parts = layer.parts if isinstance(layer, Stack) else (layer,)
    options = [
        sorted((name, value) for name, value in vars(part).items() if isinstance(value, int | float | str))
        for part in parts
    ]
    tables = [[float(table.double().sum()) for table in part.buffers()] for part in parts]
    return tuple((type(part), str(found)) for part, *found in zip(parts, options, tables, strict=True))


def tokens(batch: int, length: int) -> Tensor:
    """Return random tokens [B, T] of the vocabulary."""
    return torch.randint(len(VOCABULARY), (batch, length), generator=torch.Generator().manual_seed(2))


def ids_of(encoding: Composition, tokens_BT: Tensor, train: bool = False) -> Tensor:
    return encoding.ids(tokens_BT, train=train, generator=torch.Generator().manual_seed(3))


def hidden(model: Decoder, tokens_BT: Tensor, shift: int = 0) -> Tensor:
    """Return the decoder's last hidden states [B, T, D] with the ids of scoring, moved by `shift`."""
    return model.hidden(tokens_BT, ids_of(model.encoding, tokens_BT) + shift)


def layer_inputs(
    length: int,
    dtype: torch.dtype = torch.float64,
    batch: int = 2,
    drawn_as: torch.dtype = torch.float64,
    d_head: int = MODEL.d_head,
) -> Inputs:
    """Return a layer's input [B, T, D] and its queries, keys and values [B, H, T, K].

    drawn_as: float32 is drawn faster, and gives other numbers.
    """
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(batch, length, MODEL.d_model, generator=generator, dtype=drawn_as)
    shape = (3, batch, MODEL.n_heads, length, d_head)
    q, k, v = torch.randn(shape, generator=generator, dtype=drawn_as)
    return as_type((x, q, k, v), dtype)


def as_type(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    x, q, k, v = inputs
    return x.to(dtype), q.to(dtype), k.to(dtype), v.to(dtype)


def one_token_repeated(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer's input, queries and keys: all tokens are the same, and each query equals its key."""
    x, q, _, _ = layer_inputs(1, batch=1)
    repeated = q.expand(-1, -1, length, -1)
    return x.expand(-1, length, -1), repeated, repeated


def worst(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; infinity where one of the two is not a number."""
    return float((a.detach().double() - b.detach().double()).abs().nan_to_num(torch.inf).max())
