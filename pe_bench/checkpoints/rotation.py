"""What each layer does to its queries at their positions: found by asking it, not from a table of models.

A window of random tokens passes through the model three times, with an attention that hands on the values, so
that the input of each layer is the same each time: with the model's own rotation, with a rotation by nothing,
and with the latter at later positions. The difference between the first two is a layer's rotation, and one
between the last two is whatever else reads positions.

Letters: B batch, H query heads, T tokens, K head width.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.checkpoints.attention import PassMask, PassState, put_state
from pe_bench.encodings.rope import Layout, rotate
from pe_bench.errors import UserError

TOKENS = 48
LATER = 7  # positions, of the third pass
TOLERANCE = 1e-5  # of the largest query
FREQUENCIES = "inv_freq"  # in the names of rotary modules' buffers
FACTOR = "attention_scaling"  # in the names of their attributes
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")


@dataclass(frozen=True)
class Rotation:
    """The rotation of a layer: `frequencies` of the first pairs of features, and a factor of these."""

    layout: Layout
    frequencies: tuple[float, ...]
    factor: float
    d_head: int


@dataclass(frozen=True)
class Answer:
    """What the layers do. rotations: of each layer, None where it turns nothing.

    is_known: the rotations explain all that the rotary modules do. reads_positions: something else does, too.
    """

    rotations: list[Rotation | None]
    masks: list[PassMask | None]
    d_head: int
    is_known: bool
    reads_positions: bool


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if any(FREQUENCIES in name for name, _ in module.named_buffers(recurse=False))
    ]


def undo_rotations(model: nn.Module, state: PassState) -> None:
    """Let rotary modules return a rotation by nothing wherever the state says so."""

    def undone(module: nn.Module, arguments: Any, output: Any) -> Any:
        return _by_nothing(module, output) if state.is_neutral else output

    for module in rotary_modules(model):
        module.register_forward_hook(undone)


def _by_nothing(module: nn.Module, output: Any) -> Any:
    if isinstance(output, Tensor) and output.is_complex():
        return torch.ones_like(output)
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        return torch.ones_like(output[0]), torch.zeros_like(output[1])
    raise UserError(f"{type(module).__name__} returns a rotation of a form that pe-bench does not know")


@torch.no_grad()
def ask(model: Any, trunk: Any, state: PassState) -> Answer | None:
    """Return what each layer of a model does; None where none of them lets its attention be replaced."""
    own = _caught(model, trunk, state, is_neutral=False)
    if not own:
        return None
    if sorted(own) != list(range(len(own))):
        raise UserError(f"{type(model).__name__} has layers without attention, or of other kinds, beside it")
    plain = _caught(model, trunk, state, is_neutral=True)
    later = _caught(model, trunk, state, is_neutral=True, later=LATER)
    turns, factors = _candidates(model), _factors(model)
    found = [_explain(own[n][0], plain[n][0], turns, factors) for n in range(len(own))]
    return Answer(
        rotations=[rotation for rotation, _ in found],
        masks=[own[n][1] for n in range(len(own))],
        d_head=own[0][0].shape[-1],
        is_known=all(is_known for _, is_known in found),
        reads_positions=any(not _same(plain[n][0], later[n][0]) for n in range(len(own))),
    )


def _caught(
    model: Any, trunk: Any, state: PassState, *, is_neutral: bool, later: int = 0
) -> dict[int, tuple[Tensor, PassMask | None]]:
    """Return the queries [1, H, T, K] and the mask of each layer, by its number."""
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.get_input_embeddings().weight.shape[0]
    tokens_1T = torch.randint(vocab_size, (1, TOKENS), generator=generator).to(model.device)
    caught: dict[int, tuple[Tensor, PassMask | None]] = {}
    with catching(state, caught, is_neutral=is_neutral):
        ids_1T = torch.arange(later, later + TOKENS, device=model.device)[None]
        trunk(input_ids=tokens_1T, position_ids=ids_1T, use_cache=False)
    return caught


@contextmanager
def catching(state: PassState, caught: dict[int, Any], *, is_neutral: bool) -> Iterator[None]:
    state.caught, state.is_neutral = caught, is_neutral
    try:
        yield
    finally:
        state.caught, state.is_neutral = None, False


def _candidates(model: nn.Module) -> list[Tensor]:
    """Return the frequencies that rotary modules have, each once, in float64."""
    found: dict[tuple[float, ...], Tensor] = {}
    for module in rotary_modules(model):
        for name, buffer in module.named_buffers(recurse=False):
            if FREQUENCIES in name and buffer.dim() == 1:
                found.setdefault(tuple(buffer.tolist()), buffer.double())
    return list(found.values())


def _factors(model: nn.Module) -> set[float]:
    """Return the factors of cosines and sines that rotary modules have."""
    values = [
        getattr(module, name) for module in rotary_modules(model) for name in vars(module) if FACTOR in name
    ]
    return {1.0, *(float(value) for value in values if isinstance(value, int | float))}


def _explain(
    own: Tensor, plain: Tensor, candidates: Iterable[Tensor], factors: Iterable[float]
) -> tuple[Rotation | None, bool]:
    """Return the rotation between queries [1, H, T, K], if any, and whether it was found."""
    if _same(own, plain):
        return None, True
    ids = torch.arange(own.shape[-2], device=own.device)
    for frequencies in candidates:
        width = 2 * len(frequencies)
        if width > own.shape[-1]:
            continue
        measured = float(own[..., :width].double().norm() / plain[..., :width].double().norm())
        factor = min(factors, key=lambda factor: abs(factor - measured))
        turned, rest = plain.double().tensor_split([width], -1)
        for layout in LAYOUTS:
            expected = torch.cat([factor * rotate(turned, ids, frequencies, layout), rest], -1)
            if _same(own.double(), expected):
                return Rotation(layout, tuple(frequencies.tolist()), factor, own.shape[-1]), True
    return None, False


def _same(one: Tensor, other: Tensor) -> bool:
    coarse = one.dtype in (torch.bfloat16, torch.float16)
    return bool((one - other).abs().max() <= (2e-2 if coarse else TOLERANCE) * one.abs().max())


def attach(model: nn.Module) -> PassState:
    """Put a state on the model that its attention and its rotary modules read."""
    state = PassState()
    put_state(model, state)
    undo_rotations(model, state)
    return state
