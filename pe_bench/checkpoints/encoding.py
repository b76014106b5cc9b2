"""What a checkpoint's layers do at their positions, found by asking them, and which of our encodings that is.

A window of random tokens passes through the model three times, with an attention that hands on the values, so
that the input of each layer is the same each time: with the model's own rotation, with a rotation by nothing,
and with the latter at later positions. The difference between the first two is a layer's rotation, and one
between the last two is whatever else reads positions.

A run has one encoding, which other encodings can take the place of. In a checkpoint whose layers differ, it
is that of the layers which read the whole text: rotary ones before those without positions, and the most
common ones before others. The rest keep theirs. A rotation is named when the frequencies and the factor of
one of our encodings are the layer's own; otherwise the model rotates its queries and keys itself.

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

from pe_bench.checkpoints.attention import Caught, PassState
from pe_bench.checkpoints.model import sees_all
from pe_bench.config.groups import config_dir
from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.rotary.rope import Layout, RoPE, rotate
from pe_bench.encodings.scalings.rope_scaling import RopeScaling
from pe_bench.encodings.signatures import read_part
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError

TOKENS = 48
LATER = 7  # positions, of the third pass
TOLERANCE = 1e-5  # of the largest query, and of a frequency, which transformers computes in float32
FREQUENCIES = "inv_freq"  # in the names of rotary modules' buffers
FACTOR = "attention_scaling"  # in the names of their attributes
NEUTRAL = "pe_bench.encodings.nope:NoPE"
TRAINED_TIMES = 2  # a layer that sees a text of so many training lengths sees everything
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")

Parameters = Sequence[Mapping[str, Any]]  # of rotations, as transformers' configurations have them


@dataclass(frozen=True)
class Rotation:
    """The rotation of a layer: `frequencies` of the first pairs of features, and a factor of these."""

    layout: Layout
    frequencies: tuple[float, ...]
    factor: float
    d_head: int

    def turn(self, x: Tensor, position: Tensor) -> Tensor:
        """Return x [..., T, K] at these positions [T], turned."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=x.device)
        turned = rotate(x, position, frequencies, self.layout)
        turned[..., : 2 * len(frequencies)] *= self.factor
        return turned


UNKNOWN = Rotation("half", (), 0.0, 0)  # it is not that of one of the model's rotary modules


@dataclass(frozen=True)
class Answer:
    """What the layers do. rotations: of each layer, None where it turns nothing.

    reads_positions: something other than a rotation does.
    """

    rotations: list[Rotation | None]
    layers: list[Caught]
    reads_positions: bool


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if any(FREQUENCIES in name for name, _ in module.named_buffers(recurse=False))
    ]


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
def ask(model: Any, state: PassState) -> Answer | None:
    """Return what each layer of a model does; None where none of them lets its attention be replaced."""
    actual = _caught(model, state, is_neutral=False)
    if not actual:
        return None
    plain = _caught(model, state, is_neutral=True)
    later = _caught(model, state, is_neutral=True, first=LATER)
    rotations = [_explain(model, actual[n].queries, plain[n].queries) for n in sorted(actual)]
    moves = any(not _is_same(plain[n].queries, later[n].queries) for n in plain)
    return Answer(rotations, [actual[n] for n in sorted(actual)], moves)


def _caught(model: Any, state: PassState, *, is_neutral: bool, first: int = 0) -> dict[int, Caught]:
    """Return what each layer attends with, by its number, in a window that begins at a position."""
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.get_input_embeddings().weight.shape[0]
    tokens_1T = torch.randint(vocab_size, (1, TOKENS), generator=generator).to(model.device)
    ids_1T = torch.arange(first, first + TOKENS, device=model.device)[None]
    caught: dict[int, Caught] = {}
    state.caught, state.is_neutral = caught, is_neutral
    model.get_decoder()(input_ids=tokens_1T, position_ids=ids_1T, use_cache=False)
    state.caught, state.is_neutral = None, False
    return caught


def _explain(model: nn.Module, actual: Tensor, plain: Tensor) -> Rotation | None:
    """Return the rotation from `plain` to `actual` queries [1, H, T, K]; None where they are equal.

    It has the frequencies, and the factor of cosines and sines, of one of the model's rotary modules.
    """
    if _is_same(actual, plain):
        return None
    width, ids = actual.shape[-1], torch.arange(actual.shape[-2], device=actual.device)
    buffers = [buffer for name, buffer in model.named_buffers() if FREQUENCIES in name]
    attributes = [each for module in model.modules() for each in vars(module).items()]
    numbers = [value for name, value in attributes if FACTOR in name and isinstance(value, int | float)]
    for layout, buffer, factor in itertools.product(LAYOUTS, buffers, {1.0, *numbers}):
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
    fixed = {
        number: LayerEncoding() if rotation is None else Turned(rotation)
        for number, rotation in enumerate(answer.rotations)
        if rotation != primary
    }
    if primary is None:
        name = "learned" if has_table else "own" if answer.reads_positions else "nope"
        return neutral(name), fixed, True
    values = name_of(primary, parameters, train_length)
    return (neutral("own"), {}, False) if values is None else (values, fixed, True)


def name_of(rotation: Rotation, parameters: Parameters, train_length: int) -> dict[str, Any] | None:
    """Return the encoding that a rotation is, as a configuration has it; None where it is none of ours."""
    groups = (_candidates(rotation, group, train_length) for group in parameters)
    return next((values for group in groups for values in group if _is(values, rotation)), None)


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
    pairs, width = len(rotation.frequencies), rotation.d_head
    turning = sum(frequency != 0 for frequency in rotation.frequencies)
    base = float(group.get("rope_theta") or 10_000.0)
    options = {"d_head": width, "layout": rotation.layout, "base": base}
    part = {} if 2 * pairs == width else {"fraction": 2 * pairs / width}
    if turning < pairs:
        yield _values("p_rope", {**options, "fraction": 2 * turning / width})
        part = {"fraction": 2 * turning / width, "fraction_of": "frequencies"}
    length = group.get("original_max_position_embeddings") or train_length
    derived = ["train_length"] if length == train_length else []
    for name, scaling in _scalings(group, rotation, float(length)):
        yield _values(name, {**scaling, **options, "train_length": length, **part}, derived)
    if turning == pairs:
        yield _values("partial_rope" if part else "rope", {**options, **part})


def _scalings(
    group: Mapping[str, Any], rotation: Rotation, train_length: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield scalings with the numbers in the configuration; those that fit depend on the frequencies."""
    factor = {"factor": float(group["factor"])} if group.get("factor") else {}
    if group.get("long_factor"):
        factors = {f"{end}_factors": [*map(float, group[f"{end}_factor"])] for end in ("long", "short")}
        longest = max(1.0, float(group["max_position_embeddings"]) / train_length)
        yield "longrope", {"factor": longest, **factor, **factors}
    if not factor:
        return
    if group.get("rope_type") == "dynamic":
        yield "rope_dynamic_ntk", factor
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


def _is(values: dict[str, Any], rotation: Rotation) -> bool:
    """Return whether an encoding turns pairs as the layer does, in a window of its training length."""
    try:
        built = EncodingSpec(values).build(1).layer(0)
    except UserError:  # such options do not fit
        return False
    assert isinstance(built, RoPE | RopeScaling)
    if isinstance(built, RopeScaling):
        scaled, factor = built.scaled(built.train_length)
        ours = built.kept(scaled)
    else:
        ours, factor = built.frequencies, 1.0
    theirs = torch.tensor(rotation.frequencies, dtype=torch.float64)
    is_same = ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=TOLERANCE, atol=0)
    return is_same and math.isclose(factor, rotation.factor, rel_tol=TOLERANCE)
