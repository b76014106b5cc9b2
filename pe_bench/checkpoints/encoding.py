"""The encoding of a checkpoint's layers, as one of ours.

A run has one encoding, which other encodings can take the place of. In a checkpoint whose layers differ, it
is that of the layers which read the whole text: rotary ones before those without positions, and the most
common ones before others. The rest keep theirs. A rotation is named when the frequencies and the factor of
one of our encodings are the layer's own; otherwise the model rotates its queries and keys itself.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pe_bench.checkpoints.model import sees_all
from pe_bench.checkpoints.rotation import Answer, Rotation
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.rope import RoPE, rotate
from pe_bench.encodings.shared.rope_scaling import RopeScaling
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError

TOLERANCE = 1e-5  # of a frequency, which transformers computes in float32
NEUTRAL = "pe_bench.encodings.nope:NoPE"
TRAINED_TIMES = 2  # a layer that sees a text of so many training lengths sees everything


class Turned(LayerEncoding):
    """A rotation as a layer has it."""

    def __init__(self, rotation: Rotation) -> None:
        super().__init__()
        self.rotation = rotation
        self.frequencies = torch.tensor(rotation.frequencies, dtype=torch.float64)

    def transform(
        self, q: Tensor, k: Tensor, q_position: Tensor, k_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._turn(q, q_position), self._turn(k, k_position)

    def _turn(self, x: Tensor, position: Tensor) -> Tensor:
        frequencies = self.frequencies.to(x.device)
        turned, rest = x.tensor_split([2 * len(frequencies)], -1)
        turned = self.rotation.factor * rotate(turned, position, frequencies, self.rotation.layout)
        return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


@dataclass(frozen=True)
class Described:
    """The encoding of a checkpoint, as a configuration has it, and what other layers keep.

    is_ours: our encoding turns queries and keys, and the model's own rotation is undone.
    """

    values: dict[str, Any]
    fixed: dict[int, LayerEncoding]
    is_ours: bool


def describe(
    answer: Answer, parameters: Sequence[Mapping[str, Any]], train_length: int, *, has_table: bool
) -> Described:
    """Return the encoding; `parameters` are those of rotations in the checkpoint's configuration.

    has_table: the model has learned vectors of positions.
    """
    primary = _primary(answer, TRAINED_TIMES * train_length)
    fixed = {
        number: LayerEncoding() if rotation is None else Turned(rotation)
        for number, rotation in enumerate(answer.rotations)
        if rotation != primary
    }
    if not answer.is_known:
        return Described(_neutral("own"), {}, is_ours=False)
    if primary is None:
        rotates = any(rotation is not None for rotation in answer.rotations)
        name = "learned" if has_table else "own" if answer.reads_positions else "nope"
        return Described(_neutral(name), fixed if rotates else {}, is_ours=True)
    for values in _candidates(primary, parameters, train_length):
        if _is(values, primary):
            return Described(values, fixed, is_ours=True)
    return Described(_neutral("own"), {}, is_ours=False)


def _primary(answer: Answer, length: int) -> Rotation | None:
    """Return the rotation of the layers that a run's encoding stands for, None where they have none."""
    whole = [
        rotation
        for rotation, mask in zip(answer.rotations, answer.masks, strict=True)
        if sees_all(mask, length)
    ]
    counted = Counter(whole or answer.rotations)
    rotary = [(rotation, count) for rotation, count in counted.items() if rotation is not None]
    return max(rotary, key=lambda pair: pair[1])[0] if rotary else None


def _neutral(name: str) -> dict[str, Any]:
    return {"name": name, "class": NEUTRAL, "derived": [], "modifiers": {}}


def _candidates(
    rotation: Rotation, parameters: Sequence[Mapping[str, Any]], train_length: int
) -> Iterator[dict[str, Any]]:
    """Yield encodings that a rotation may be, with the options that the configuration gives."""
    pairs, width = len(rotation.frequencies), rotation.d_head
    turning = sum(frequency != 0 for frequency in rotation.frequencies)
    shared: dict[str, Any] = {"d_head": width, "layout": rotation.layout}
    for given in parameters:
        base = float(given.get("rope_theta") or 10_000.0)
        known = {**shared, "base": base}
        part = {} if 2 * pairs == width else {"fraction": 2 * pairs / width}
        if turning < pairs:
            yield _values("p_rope", "PRoPE", known, fraction=2 * turning / width)
            part = {"fraction": 2 * turning / width, "fraction_of": "frequencies"}
        original = given.get("original_max_position_embeddings") or train_length
        yield from _scalings({**known, "train_length": original, **part}, given, rotation, train_length)
        if part:
            yield _values("partial_rope", "PartialRoPE", known, fraction=2 * pairs / width)
        else:
            yield _values("rope", "RoPE", known)


def _scalings(
    known: Mapping[str, Any], given: Mapping[str, Any], rotation: Rotation, train_length: int
) -> Iterator[dict[str, Any]]:
    """Yield scalings with the numbers in the configuration; those that fit depend on the frequencies."""
    factor = given.get("factor")
    derived = ["train_length"] if known["train_length"] == train_length else []

    def values(name: str, kind: str, **options: Any) -> dict[str, Any]:
        return _values(name, kind, known, derived, **options)

    if given.get("long_factor"):
        yield values(
            *("longrope", "LongRoPE"),
            factor=float(factor or _longer(given, known)),
            long_factors=[*map(float, given["long_factor"])],
            short_factors=[*map(float, given["short_factor"])],
        )
    if factor is None:
        return
    if given.get("rope_type") == "dynamic":
        yield values("rope_dynamic_ntk", "RopeDynamicNTK", factor=float(factor))
    yield values("rope_pi", "RopePI", factor=float(factor))
    low, high = given.get("low_freq_factor"), given.get("high_freq_factor")
    if low and high:
        frequencies = {"low_frequency_factor": float(low), "high_frequency_factor": float(high)}
        yield values("llama3", "Llama3", factor=float(factor), **frequencies)
    ramp = "index" if given.get("truncate", True) else "exact"
    ends = {name: float(given[name]) for name in ("beta_fast", "beta_slow") if given.get(name)}
    yield values("yarn", "YaRN", factor=float(factor), ramp=ramp, **ends)
    yield values("yarn", "YaRN", factor=float(factor), ramp=ramp, attention_factor=rotation.factor, **ends)


def _longer(given: Mapping[str, Any], known: Mapping[str, Any]) -> float:
    """Return how many times longer texts may be than in training, as LongRoPE's factor has it."""
    return max(1.0, float(given.get("max_position_embeddings", 1)) / known["train_length"])


def _values(
    name: str, kind: str, known: Mapping[str, Any], derived: Sequence[str] = (), **options: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "class": f"pe_bench.encodings.{name}:{kind}",
        **options,
        **known,
        "derived": ["d_head", *derived],
        "modifiers": {},
    }


def _is(values: dict[str, Any], rotation: Rotation) -> bool:
    """Return whether an encoding turns pairs as the layer does, in a window of its training length."""
    try:
        built = EncodingSpec(values).build(1).layer(0)
    except UserError:  # such options do not fit
        return False
    factor, frequencies = 1.0, torch.empty(0)
    if isinstance(built, RopeScaling):
        frequencies, factor = built.scaled(built.train_length)
        frequencies = torch.cat(
            [frequencies[: built.pairs], frequencies.new_zeros(len(frequencies) - built.pairs)]
        )
    elif isinstance(built, RoPE):
        frequencies = built.frequencies
    wanted = torch.tensor(rotation.frequencies, dtype=torch.float64)
    if len(frequencies) != len(wanted) or abs(factor - rotation.factor) > TOLERANCE * rotation.factor:
        return False
    return bool(((frequencies - wanted).abs() <= TOLERANCE * wanted.abs()).all())
