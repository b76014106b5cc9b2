"""What a checkpoint's layers do at their positions, found by asking them, and which of our encodings that is.

A window of random tokens passes through the model three times, with an attention that hands on the values, so
that the input of each layer is the same each time: with the model's own rotation, with a rotation by nothing,
and with the latter at later positions. The difference between the first two is a layer's rotation, and one
between the last two is whatever else reads positions.

A run has one encoding, which other encodings can take the place of. In a checkpoint whose layers differ, it
is that of the layers which read the whole text: rotary ones before those without positions, and the most
common ones before others. The rest keep theirs. A rotation is named when the frequencies and the factor of
one of our encodings are the layer's own, also in texts longer than those lengths that the configuration has;
otherwise the model rotates its queries and keys itself.

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
from pe_bench.encodings.scalings.rope_scaling import Scaled, rotation_at
from pe_bench.encodings.signatures import read_part
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.hf.attention import Caught, PassState
from pe_bench.hf.model import sees_all, trunk_of
from pe_bench.hf.rotary import FREQUENCIES, TOLERANCE, RotaryCall, recorded, rotary_modules

TOKENS = 48  # of a pass; fewer where a scaling may begin to depend on the length before
LATER = 7  # positions, of the third pass
FACTOR = "attention_scaling"  # in the names of their attributes
NEUTRAL = "pe_bench.encodings.nope:NoPE"
ORIGINAL, LONGEST = "original_max_position_embeddings", "max_position_embeddings"  # keys of Parameters
LONGER_TIMES = (2, 4)  # a length of the configuration, at which rotations are compared, besides its next one
TRAINED_TIMES = 2  # a layer that sees a text of so many training lengths sees everything
DYNAMIC = "rope_dynamic_ntk"
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")

Parameters = Sequence[Mapping[str, Any]]  # of rotations, as transformers' configurations have them


@dataclass(frozen=True)
class Rotation:
    """The rotation of a layer: `frequencies` of the first pairs of features, and a factor of these."""

    layout: Layout
    frequencies: tuple[float, ...]
    factor: float
    d_head: int

    @property
    def scaled(self) -> Scaled:
        return Scaled(torch.tensor(self.frequencies, dtype=torch.float64), self.factor)

    def turn(self, x: Tensor, position: Tensor) -> Tensor:
        """Return x [..., T, K] at these positions [T], turned."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=x.device)
        turned = rotate(x, position, frequencies, self.layout)
        turned[..., : 2 * len(frequencies)] *= self.factor
        return turned


UNKNOWN = Rotation("half", (), 0.0, 0)  # it is not that of one of the model's rotary modules


@dataclass(frozen=True)
class Answer:
    """What the layers with attention do. numbers: theirs in the model, in which other layers may stand too.

    rotations: of each of them, None where it turns nothing.
    reads_positions: something other than a rotation does. calls: of the model's rotary modules.
    """

    numbers: list[int]
    rotations: list[Rotation | None]
    layers: list[Caught]
    reads_positions: bool
    calls: list[RotaryCall]


def attach(model: nn.Module) -> PassState:
    """Put a state on the model that its attention reads, and by which rotary modules may do nothing."""
    state = PassState()
    for module in model.modules():
        object.__setattr__(module, "_pe_bench", state)

    def undone(module: nn.Module, arguments: Any, output: Any) -> Any:
        return _by_nothing(module, output) if state.is_neutral else output

    for module in rotary_modules(model):
        module.register_forward_hook(undone)
    return state


def _by_nothing(module: nn.Module, output: Any) -> Any:
    if isinstance(output, Tensor) and output.is_complex():
        return torch.ones_like(output)
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        return torch.ones_like(output[0]), torch.zeros_like(output[1])
    raise UserError(f"{type(module).__name__} returns a rotation of a form that pe-bench does not know")


@torch.no_grad()
def ask(model: Any, state: PassState, length: int = TOKENS) -> Answer | None:
    """Return the rotation and the mask of each layer; None where no layer lets its attention be replaced.

    length: of a text, up to which its rotations are the same.
    """
    n_tokens = min(TOKENS, length)
    calls: dict[tuple[Any, ...], RotaryCall] = {}
    with recorded(model, calls):
        actual = _caught(model, state, n_tokens, is_neutral=False)
    if not actual:
        return None
    plain = _caught(model, state, n_tokens, is_neutral=True)
    later = _caught(model, state, n_tokens, is_neutral=True, first=LATER)
    numbers = sorted(actual)
    rotations = [_explain(model, actual[n].queries, plain[n].queries) for n in numbers]
    moves = any(not _is_same(plain[n].queries, later[n].queries) for n in plain)
    return Answer(numbers, rotations, [actual[n] for n in numbers], moves, [*calls.values()])


def _caught(
    model: Any, state: PassState, n_tokens: int, *, is_neutral: bool, first: int = 0
) -> dict[int, Caught]:
    """Return the queries and the mask of each layer, by its number, in a window from a position on."""
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.get_input_embeddings().weight.shape[0]
    tokens_1T = torch.randint(vocab_size, (1, n_tokens), generator=generator).to(model.device)
    ids_1T = torch.arange(first, first + n_tokens, device=model.device)[None]
    caught: dict[int, Caught] = {}
    state.caught, state.is_neutral = caught, is_neutral
    trunk_of(model)(input_ids=tokens_1T, position_ids=ids_1T, use_cache=False)
    state.caught, state.is_neutral = None, False
    return caught


def _explain(model: nn.Module, actual: Tensor, plain: Tensor) -> Rotation | None:
    """Return the rotation from `plain` to `actual` queries [1, H, T, K]; None where they are equal.

    It has the frequencies, and the factor of cosines and sines, of one of the model's rotary modules.
    """
    if _is_same(actual, plain):
        return None
    width = actual.shape[-1]
    ids = torch.arange(actual.shape[-2], device=actual.device)
    buffers = [buffer for name, buffer in model.named_buffers() if FREQUENCIES in name]
    factors = {1.0}
    for module in model.modules():
        numbers = {name: value for name, value in vars(module).items() if isinstance(value, int | float)}
        factors |= {value for name, value in numbers.items() if FACTOR in name}
    for layout, buffer, factor in itertools.product(LAYOUTS, buffers, factors):
        rotation = Rotation(layout, tuple(buffer.double().tolist()), float(factor), width)
        if 2 * len(buffer) <= width and _is_same(actual, rotation.turn(plain.double(), ids)):
            return rotation
    return UNKNOWN


def _is_same(one: Tensor, other: Tensor) -> bool:
    return bool((one.double() - other.double()).abs().max() <= TOLERANCE * one.abs().max())


class Turned(LayerEncoding):
    """A rotation as a layer has it."""

    def __init__(self, rotation: Rotation) -> None:
        super().__init__()
        self.rotation = rotation

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        turn = self.rotation.turn
        return turn(queries.x, queries.position), turn(keys.x, keys.position)


def describe(
    answer: Answer, parameters: Parameters, train_length: int, *, has_table: bool
) -> tuple[dict[str, Any], dict[int, LayerEncoding], bool]:
    """Return the encoding, as a configuration has it, and what other layers keep, by their number.

    The last is whether our encoding turns queries and keys, and the model's own rotation is undone.
    parameters: of rotations in the checkpoint's configuration. has_table: the model has learned vectors of
    positions.
    """
    if UNKNOWN in answer.rotations:
        return neutral("own"), {}, False
    primary = _primary(answer, TRAINED_TIMES * train_length)
    lengths = _lengths(parameters, train_length)
    fixed: dict[int, LayerEncoding] = {}
    for number, rotation in zip(answer.numbers, answer.rotations, strict=True):
        if rotation == primary:
            continue
        if rotation is not None and not _is_constant(rotation, answer.calls, lengths):
            return neutral("own"), {}, False
        fixed[number] = LayerEncoding() if rotation is None else Turned(rotation)
    if primary is None and has_table:
        return neutral("learned"), fixed, True
    if primary is None:
        return neutral("own" if answer.reads_positions else "nope"), fixed, True
    values = name_of(primary, parameters, train_length, answer.calls)
    if values is None:
        return neutral("own"), {}, False
    return values, fixed, True


def name_of(
    rotation: Rotation, parameters: Parameters, train_length: int, calls: Sequence[RotaryCall]
) -> dict[str, Any] | None:
    """Return the encoding that a rotation is, as a configuration has it; None where it is none of ours.

    calls: of the model's rotary modules, which say how it turns in longer texts.
    """
    lengths = _lengths(parameters, train_length)
    for group in parameters:
        for values in _candidates(rotation, group, train_length):
            if _is(values, rotation, calls, lengths):
                return values
    return None


def _lengths(parameters: Parameters, train_length: int) -> list[int]:
    """Return lengths of texts at which a scaling that depends on the length may change."""
    stated = [group.get(name) for group, name in itertools.product(parameters, (ORIGINAL, LONGEST))]
    ends = {int(length) for length in stated if isinstance(length, int | float) and length > 1}
    lengths: set[int] = set()
    for end in ends or {train_length}:
        lengths |= {end + 1, *(times * end for times in LONGER_TIMES)}
    return sorted(lengths)


def _is_constant(rotation: Rotation, calls: Sequence[RotaryCall], lengths: Sequence[int]) -> bool:
    """Return whether a rotation is the same in texts of these lengths too."""
    pairs = itertools.product(_calls_of(rotation, calls), lengths)
    return all(call.turns_as(rotation.scaled, length) for call, length in pairs)


def _calls_of(rotation: Rotation, calls: Sequence[RotaryCall]) -> list[RotaryCall]:
    """Return the calls that may have made a rotation: those that give it in a short text."""
    return [call for call in calls if call.turns_as(rotation.scaled, 2)]


def _primary(answer: Answer, length: int) -> Rotation | None:
    """Return the rotation of the layers that a run's encoding stands for, None where they have none."""
    layers = zip(answer.rotations, answer.layers, strict=True)
    unlimited = [rotation for rotation, layer in layers if sees_all(layer.mask, length)]
    counts = Counter(unlimited or answer.rotations)
    rotary = [rotation for rotation in counts if rotation is not None]
    return max(rotary, key=counts.__getitem__) if rotary else None


def neutral(name: str) -> dict[str, Any]:
    return {"name": name, "class": NEUTRAL, "derived": [], "modifiers": {}}


def _candidates(rotation: Rotation, group: Mapping[str, Any], train_length: int) -> Iterator[dict[str, Any]]:
    """Yield encodings that a rotation may be, with numbers from a group of the checkpoint's config."""
    pairs = len(rotation.frequencies)
    width = rotation.d_head
    turning = sum(frequency != 0 for frequency in rotation.frequencies)
    base = float(group.get("rope_theta") or 10_000.0)
    options = {"d_head": width, "layout": rotation.layout, "base": base}
    part: dict[str, Any] = {}
    if turning < pairs:
        part = {"fraction": 2 * turning / width, "fraction_of": "frequencies"}
        yield _values("p_rope", {**options, "fraction": part["fraction"]})
    elif 2 * pairs != width:
        part = {"fraction": 2 * pairs / width}
    for name, scaling in _scalings(group, rotation, train_length):
        length = group.get(LONGEST if name == DYNAMIC else ORIGINAL) or train_length
        derived = ["train_length"] if length == train_length else []
        yield _values(name, {**scaling, **options, "train_length": length, **part}, derived)
    if turning == pairs:
        yield _values("partial_rope" if part else "rope", {**options, **part})


def _scalings(
    group: Mapping[str, Any], rotation: Rotation, train_length: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield scalings with the numbers in the configuration; those that fit depend on the frequencies."""
    factor = {"factor": float(group["factor"])} if group.get("factor") else {}
    if group.get("long_factor"):
        factors = {f"{end}_factors": [*map(float, group[f"{end}_factor"])] for end in ("long", "short")}
        original = float(group.get(ORIGINAL) or train_length)
        longest = max(1.0, float(group.get(LONGEST) or original) / original)
        yield "longrope", {"factor": longest, **factor, **factors}
    if not factor:
        return
    if group.get("rope_type") == "dynamic":
        yield DYNAMIC, factor
    yield "rope_pi", factor
    ends = {f"{end}_frequency_factor": float(group.get(f"{end}_freq_factor") or 0) for end in ("low", "high")}
    if all(ends.values()):
        yield "llama3", {**factor, **ends}
    ends = {name: float(group[name]) for name in ("beta_fast", "beta_slow") if group.get(name)}
    yarn = {**factor, **ends, "ramp": "index" if group.get("truncate", True) else "exact"}
    yield "yarn", yarn
    yield "yarn", {**yarn, "attention_factor": rotation.factor}


def _values(name: str, options: Mapping[str, Any], derived: Sequence[str] = ()) -> dict[str, Any]:
    about = {"name": name, "class": read_part(config_dir() / "encoding" / f"{name}.yaml")["class"]}
    return {**about, **options, "derived": ["d_head", *derived], "modifiers": {}}


def _is(
    values: dict[str, Any], rotation: Rotation, calls: Sequence[RotaryCall], lengths: Sequence[int]
) -> bool:
    """Return whether an encoding turns pairs as the layer does, in a short text and in longer ones."""
    try:
        built = EncodingSpec(values).build(1).layer(0)
    except UserError:  # such options do not fit
        return False
    short = _scaled(built, 2)
    theirs = torch.tensor(rotation.frequencies, dtype=torch.float64)
    if short.frequencies.shape != theirs.shape:
        return False
    if not torch.allclose(short.frequencies, theirs, rtol=TOLERANCE, atol=0):
        return False
    if not math.isclose(short.attention_factor, rotation.factor, rel_tol=TOLERANCE):
        return False
    made_by = _calls_of(rotation, calls)
    for length in lengths:
        longer = _scaled(built, length)
        if not made_by and not torch.equal(longer.frequencies, short.frequencies):
            return False  # nothing says that the model's own rotation grows in this way
        if not all(call.turns_as(longer, length) for call in made_by):
            return False
    return True


def _scaled(built: LayerEncoding, window: int) -> Scaled:
    """Return the frequencies and the factor of an encoding of `_candidates` in a window of so many tokens."""
    scaled = rotation_at(built, window)
    assert scaled is not None
    return scaled
