"""The encoding of a Hugging Face model: it is found by trials, and named as one of our encodings.

A window of random tokens passes through the model three times, with an attention that returns its values, so
that the input of each layer is the same each time: with the model's own rotation, without a rotation, and
without a rotation at later positions. The difference between the first two passes is a layer's rotation; a
difference between the last two shows that something else reads positions.

A run has one encoding, which other encodings can replace. In a model whose layers differ, it is that of the
layers that see the whole text: rotary layers before layers without positions, and common layers before rare
ones. The other layers keep their encodings. A rotation gets the name of one of our encodings if both have the
same frequencies and factor, also in texts longer than the lengths in the configuration; otherwise the model
rotates its queries and keys itself.

Letters: B batch, H query heads, T tokens, K head width.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.config.groups import config_dir
from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.rotary.rope import Layout, rotate
from pe_bench.encodings.scalings.rope_scaling import ScaledRotation, rotation_at
from pe_bench.encodings.signatures import read_part
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.hf.attention import AttentionArguments, PassState
from pe_bench.hf.model import sees_all, trunk_of
from pe_bench.hf.rotary import (
    FREQUENCIES_BUFFER,
    ROTATION_TOLERANCE,
    RotaryCall,
    recording_calls,
    rotary_modules,
)

PASS_TOKENS = 48  # tokens of a pass; fewer if a scaling depends on the length of shorter texts already
LATER_POSITION = 7  # the first position of the third pass
FACTOR_ATTRIBUTE = "attention_scaling"  # a part of the names of rotary modules' attributes
NEUTRAL_CLASS = "pe_bench.encodings.nope:NoPE"
ORIGINAL, LONGEST = "original_max_position_embeddings", "max_position_embeddings"  # keys of Parameters
# Over a length in the configuration: lengths of texts at which a scaling may have changed the rotation.
CHANGE_TIMES = (2, 4)
WHOLE_TEXT_TIMES = 2  # training lengths: a layer that sees all of such a text counts as seeing every text
DYNAMIC_SCALING = "rope_dynamic_ntk"
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")

# The parameters of rotations, as transformers' configurations have them.
Parameters = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Rotation:
    """The rotation of a layer."""

    layout: Layout
    frequencies: tuple[float, ...]  # the frequencies of the first pairs of features
    factor: float  # the factor by which these features are multiplied
    d_head: int

    @property
    def scaled(self) -> ScaledRotation:
        return ScaledRotation(torch.tensor(self.frequencies, dtype=torch.float64), self.factor)

    def turn(self, x: Tensor, position: Tensor) -> Tensor:
        """Rotate x [..., T, K] by its positions [T]."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=x.device)
        turned = rotate(x, position, frequencies, self.layout)
        turned[..., : 2 * len(frequencies)] *= self.factor
        return turned


UNKNOWN_ROTATION = Rotation("half", (), 0.0, 0)  # of a layer that no rotary module of the model explains


@dataclass(frozen=True)
class LayerFacts:
    """The facts of a model's layers with attention: their rotations, arguments and rotary calls."""

    numbers: list[int]  # the numbers of these layers in the model
    rotations: list[Rotation | None]  # None for a layer without a rotation
    layers: list[AttentionArguments]
    reads_positions: bool  # the model reads positions in another way than by a rotation
    calls: list[RotaryCall]  # the calls of the model's rotary modules


def attach_state(model: nn.Module) -> PassState:
    """Put a `PassState` on each module of a model; while it is neutral, rotary modules rotate by 0."""
    state = PassState()
    for module in model.modules():
        object.__setattr__(module, "_pe_bench", state)

    def neutralise(module: nn.Module, arguments: Any, output: Any) -> Any:
        return _identity_rotation(module, output) if state.is_neutral else output

    for module in rotary_modules(model):
        module.register_forward_hook(neutralise)
    return state


def _identity_rotation(module: nn.Module, output: Any) -> Any:
    """Return a rotary module's output for angles of 0. Raise `UserError` for an unknown form of output."""
    if isinstance(output, Tensor) and output.is_complex():
        return torch.ones_like(output)
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        return torch.ones_like(output[0]), torch.zeros_like(output[1])
    raise UserError(f"{type(module).__name__} returns a rotation of a form that pe-bench does not know")


@torch.no_grad()
def find_layer_facts(model: Any, state: PassState, length: int = PASS_TOKENS) -> LayerFacts | None:
    """Find the rotation and the mask of each layer; None if no layer's attention can be replaced.

    length: a length of text up to which rotations do not depend on the length; no longer text is tried.
    """
    n_tokens = min(PASS_TOKENS, length)
    rotary_calls: dict[tuple[Any, ...], RotaryCall] = {}
    with recording_calls(model, rotary_calls):
        actual = _capture_arguments(model, state, n_tokens, is_neutral=False)
    if not actual:
        return None
    plain = _capture_arguments(model, state, n_tokens, is_neutral=True)
    later = _capture_arguments(model, state, n_tokens, is_neutral=True, first=LATER_POSITION)
    numbers = sorted(actual)
    rotations = [_find_rotation(model, actual[n].queries, plain[n].queries) for n in numbers]
    is_same = [_is_same(layer.queries, later[n].queries) for n, layer in plain.items()]
    layers = [actual[number] for number in numbers]
    return LayerFacts(numbers, rotations, layers, not all(is_same), [*rotary_calls.values()])


def _capture_arguments(
    model: Any, state: PassState, n_tokens: int, *, is_neutral: bool, first: int = 0
) -> dict[int, AttentionArguments]:
    """Return the arguments that each layer's attention gets in a pass over random tokens, by its number.

    is_neutral: undo the model's own rotation. first: the position of the first token.
    """
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.get_input_embeddings().weight.shape[0]
    tokens_1T = torch.randint(vocab_size, (1, n_tokens), generator=generator).to(model.device)
    ids_1T = torch.arange(first, first + n_tokens, device=model.device)[None]
    captured: dict[int, AttentionArguments] = {}
    state.captured, state.is_neutral = captured, is_neutral
    trunk_of(model)(input_ids=tokens_1T, position_ids=ids_1T, use_cache=False)
    state.captured, state.is_neutral = None, False
    return captured


def _find_rotation(model: nn.Module, actual: Tensor, plain: Tensor) -> Rotation | None:
    """Return the rotation from `plain` to `actual` queries [1, H, T, K]; None if they are equal.

    Candidates have the frequencies and the factor of a rotary module of the model.
    """
    if _is_same(actual, plain):
        return None
    width = actual.shape[-1]
    ids = torch.arange(actual.shape[-2], device=actual.device)
    buffers = [buffer for name, buffer in model.named_buffers() if FREQUENCIES_BUFFER in name]
    factors = {1.0}
    for module in model.modules():
        for name, value in vars(module).items():
            if FACTOR_ATTRIBUTE in name and isinstance(value, int | float):
                factors.add(value)
    for layout, buffer, factor in itertools.product(LAYOUTS, buffers, factors):
        if 2 * len(buffer) > width:
            continue
        frequencies = tuple(buffer.double().tolist())
        rotation = Rotation(layout, frequencies, float(factor), width)
        if _is_same(actual, rotation.turn(plain.double(), ids)):
            return rotation
    return UNKNOWN_ROTATION


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ by at most `ROTATION_TOLERANCE` of the largest number of `one`."""
    difference = (one.double() - other.double()).abs().max()
    return bool(difference <= ROTATION_TOLERANCE * one.abs().max())


class RotatedLayer(LayerEncoding):
    """A layer with a given rotation."""

    def __init__(self, rotation: Rotation) -> None:
        super().__init__()
        self.rotation = rotation

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        turn = self.rotation.turn
        return turn(queries.x, queries.position), turn(keys.x, keys.position)


def describe_encoding(
    layer_facts: LayerFacts, parameters: Parameters, train_length: int, *, has_table: bool
) -> tuple[dict[str, Any], dict[int, LayerEncoding], bool]:
    """Return the run's encoding, the encodings of layers that keep their own, and whether ours rotates.

    The first are the values of an encoding in a configuration, the second are by the number of the layer, and
    the third is false if the model itself rotates queries and keys. parameters: the parameters of rotations
    in the model's configuration. has_table: the model has learned vectors of positions.
    """
    if UNKNOWN_ROTATION in layer_facts.rotations:
        return neutral_encoding_values("own"), {}, False
    primary = _primary_rotation(layer_facts, WHOLE_TEXT_TIMES * train_length)
    lengths = _lengths_to_try(parameters, train_length)
    fixed_layers: dict[int, LayerEncoding] = {}
    for number, rotation in zip(layer_facts.numbers, layer_facts.rotations, strict=True):
        if rotation == primary:
            continue
        if rotation is not None and not _is_constant(rotation, layer_facts.calls, lengths):
            return neutral_encoding_values("own"), {}, False
        fixed_layers[number] = LayerEncoding() if rotation is None else RotatedLayer(rotation)
    if primary is None and has_table:
        return neutral_encoding_values("learned"), fixed_layers, True
    if primary is None:
        return neutral_encoding_values("own" if layer_facts.reads_positions else "nope"), fixed_layers, True
    values = encoding_with_rotation(primary, parameters, train_length, layer_facts.calls)
    if values is None:
        return neutral_encoding_values("own"), {}, False
    return values, fixed_layers, True


def encoding_with_rotation(
    rotation: Rotation, parameters: Parameters, train_length: int, calls: Sequence[RotaryCall]
) -> dict[str, Any] | None:
    """Return the values of our encoding with this rotation; None if no encoding of ours has it.

    calls: the calls of the model's rotary modules, which show the rotation in longer texts.
    """
    lengths = _lengths_to_try(parameters, train_length)
    for group in parameters:
        for values in _candidate_values(rotation, group, train_length):
            if _has_rotation(values, rotation, calls, lengths):
                return values
    return None


def _lengths_to_try(parameters: Parameters, train_length: int) -> list[int]:
    """Return lengths of texts at which a scaling that depends on the length may change."""
    table_ends: set[int] = set()
    for group, name in itertools.product(parameters, (ORIGINAL, LONGEST)):
        length = group.get(name)
        if isinstance(length, int | float) and length > 1:
            table_ends.add(int(length))
    lengths_to_try: set[int] = set()
    for end in table_ends or {train_length}:
        lengths_to_try.add(end + 1)
        lengths_to_try.update(times * end for times in CHANGE_TIMES)
    return sorted(lengths_to_try)


def _is_constant(rotation: Rotation, calls: Sequence[RotaryCall], lengths: Sequence[int]) -> bool:
    """Return whether a rotation is the same in texts of these lengths too."""
    pairs = itertools.product(_calls_with_rotation(rotation, calls), lengths)
    return all(call.turns_as(rotation.scaled, length) for call, length in pairs)


def _calls_with_rotation(rotation: Rotation, calls: Sequence[RotaryCall]) -> list[RotaryCall]:
    """Return the calls of rotary modules that rotate a text of two tokens by this rotation."""
    return [call for call in calls if call.turns_as(rotation.scaled, 2)]


def _primary_rotation(layer_facts: LayerFacts, length: int) -> Rotation | None:
    """Return the rotation of the layers that get the run's encoding; None if they have none."""
    layers = zip(layer_facts.rotations, layer_facts.layers, strict=True)
    unlimited = [rotation for rotation, layer in layers if sees_all(layer.mask, length)]
    counts = Counter(unlimited or layer_facts.rotations)
    rotary = [rotation for rotation in counts if rotation is not None]
    return max(rotary, key=counts.__getitem__) if rotary else None


def neutral_encoding_values(name: str) -> dict[str, Any]:
    """Return the values of an encoding that does nothing, under the name `name`."""
    return {"name": name, "class": NEUTRAL_CLASS, "derived": [], "modifiers": {}}


def _candidate_values(
    rotation: Rotation, group: Mapping[str, Any], train_length: int
) -> Iterator[dict[str, Any]]:
    """Yield the values of encodings that may have a rotation. group: parameters in the configuration."""
    pairs = len(rotation.frequencies)
    width = rotation.d_head
    turning = sum(frequency != 0 for frequency in rotation.frequencies)
    base = float(group.get("rope_theta") or 10_000.0)
    options = {"d_head": width, "layout": rotation.layout, "base": base}
    partial_options: dict[str, Any] = {}
    if turning < pairs:
        partial_options = {"fraction": 2 * turning / width, "fraction_of": "frequencies"}
        yield _encoding_values("p_rope", {**options, "fraction": partial_options["fraction"]})
    elif 2 * pairs != width:
        partial_options = {"fraction": 2 * pairs / width}
    for name, scaling in _scalings(group, rotation, train_length):
        length = group.get(LONGEST if name == DYNAMIC_SCALING else ORIGINAL) or train_length
        derived = ["train_length"] if length == train_length else []
        yield _encoding_values(
            name, {**scaling, **options, "train_length": length, **partial_options}, derived
        )
    if turning == pairs:
        yield _encoding_values("partial_rope" if partial_options else "rope", {**options, **partial_options})


def _scalings(
    group: Mapping[str, Any], rotation: Rotation, train_length: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the options of each scaling that the parameters `group` may mean."""
    factor = {"factor": float(group["factor"])} if group.get("factor") else {}
    if group.get("long_factor"):
        factors = {f"{end}_factors": [*map(float, group[f"{end}_factor"])] for end in ("long", "short")}
        original = float(group.get(ORIGINAL) or train_length)
        longest = max(1.0, float(group.get(LONGEST) or original) / original)
        yield "longrope", {"factor": longest, **factor, **factors}
    if not factor:
        return
    if group.get("rope_type") == "dynamic":
        yield DYNAMIC_SCALING, factor
    yield "rope_pi", factor
    ends = {f"{end}_frequency_factor": float(group.get(f"{end}_freq_factor") or 0) for end in ("low", "high")}
    if all(ends.values()):
        yield "llama3", {**factor, **ends}
    ends = {name: float(group[name]) for name in ("beta_fast", "beta_slow") if group.get(name)}
    yarn = {**factor, **ends, "ramp": "index" if group.get("truncate", True) else "exact"}
    yield "yarn", yarn
    yield "yarn", {**yarn, "attention_factor": rotation.factor}


def _encoding_values(name: str, options: Mapping[str, Any], derived: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of an encoding in a configuration, with these options.

    derived: the names of the options, besides `d_head`, that are not chosen but follow from other values.
    """
    about = {"name": name, "class": read_part(config_dir() / "encoding" / f"{name}.yaml")["class"]}
    return {**about, **options, "derived": ["d_head", *derived], "modifiers": {}}


def _has_rotation(
    values: dict[str, Any], rotation: Rotation, calls: Sequence[RotaryCall], lengths: Sequence[int]
) -> bool:
    """Return whether an encoding has a layer's rotation, in a short text and in longer texts."""
    try:
        built = EncodingSpec(values).build(1).layer(0)
    except UserError:  # such options do not fit
        return False
    short = _candidate_rotation(built, 2)
    theirs = torch.tensor(rotation.frequencies, dtype=torch.float64)
    if short.frequencies.shape != theirs.shape:
        return False
    if not torch.allclose(short.frequencies, theirs, rtol=ROTATION_TOLERANCE, atol=0):
        return False
    if not math.isclose(short.attention_factor, rotation.factor, rel_tol=ROTATION_TOLERANCE):
        return False
    calls_of_layer = _calls_with_rotation(rotation, calls)
    for length in lengths:
        longer = _candidate_rotation(built, length)
        if not calls_of_layer and not torch.equal(longer.frequencies, short.frequencies):
            return False  # nothing says that the model's own rotation grows in this way
        if not all(call.turns_as(longer, length) for call in calls_of_layer):
            return False
    return True


def _candidate_rotation(built: LayerEncoding, length: int) -> ScaledRotation:
    """Return the frequencies and the factor of a candidate's rotation in a text of `length` tokens.

    built: an encoding with values of `_candidate_values`.
    """
    scaled = rotation_at(built, length)
    assert scaled is not None
    return scaled
