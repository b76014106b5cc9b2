"""The rotary modules of a Hugging Face model: their rotations in texts of any length, without a forward pass.

Some scalings depend on the length of the text. transformers keeps the frequencies of the longest text so far
in such a module; here each pass has those of its own text.

Letters: K head width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.encodings.scalings.rope_scaling import ScaledRotation

FREQUENCIES_BUFFER = "inv_freq"  # a part of the names of rotary modules' buffers
# A part of the names of attributes of rotary modules that depend on the length.
LONGEST_SO_FAR_ATTRIBUTE = "max_seq_len_cached"
ROTATION_TOLERANCE = 1e-5  # the largest relative error of a frequency, which transformers computes in float32


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model that have a buffer of rotary frequencies."""
    return list(filter(_has_frequencies, model.modules()))


def _has_frequencies(module: nn.Module) -> bool:
    return any(FREQUENCIES_BUFFER in name for name, _ in module.named_buffers(recurse=False))


def forget_longer_texts(model: nn.Module) -> None:
    """Let rotary modules compute their frequencies for the text of each pass, whatever passed before."""
    for module in rotary_modules(model):
        if any(LONGEST_SO_FAR_ATTRIBUTE in name for name in vars(module)):
            module.register_forward_pre_hook(_reset_longest_length)


def _reset_longest_length(module: nn.Module, _: Any) -> None:
    """Set a rotary module's length of the longest text so far to 0: a hook before each forward pass."""
    for name in [name for name in vars(module) if LONGEST_SO_FAR_ATTRIBUTE in name]:
        setattr(module, name, 0)


@dataclass(frozen=True)
class RotaryCall:
    """A call of a rotary module in a forward pass, which can be repeated for texts of other lengths."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]  # keyword arguments

    @property
    def kind(self) -> tuple[Any, ...]:
        """Return the module and the plain arguments: calls of one kind differ only in tensors."""
        values = (*self.arguments, *self.named.values())
        return id(self.module), *(value for value in values if not isinstance(value, Tensor))

    @torch.no_grad()
    def turns_as(self, rotation: ScaledRotation, length: int) -> bool:
        """Return whether the module rotates by `rotation` in a text of `length` tokens."""
        output = self.module(
            *self._with_positions_at(self.arguments, length), **self._named_with_positions_at(length)
        )
        cosines, sines = _cosines_and_sines(output)
        angles = torch.atan2(sines, cosines)
        factors = torch.hypot(cosines, sines)
        expected = rotation.frequencies.to(angles)
        # Cosines and sines are for pairs, or for features: the first of all pairs first, or pair by pair.
        if len(angles) != len(expected):
            is_interleaved = len(angles) > 1 and bool(angles[0] == angles[1])
            expected = expected.repeat_interleave(2) if is_interleaved else expected.repeat(2)
        if expected.shape != angles.shape:
            return False
        factor = torch.full_like(factors, rotation.attention_factor)
        is_same = torch.allclose(angles, expected, rtol=ROTATION_TOLERANCE, atol=0)
        return is_same and torch.allclose(factors, factor, rtol=ROTATION_TOLERANCE, atol=0)

    def _with_positions_at(self, arguments: Sequence[Any], length: int) -> list[Any]:
        """Return the arguments of the call with each tensor of positions replaced.

        The new positions are 1 and the last of a text of `length` tokens.
        """
        changed = []
        for value in arguments:
            changed.append(_first_and_last_position(value, length) if _is_integer_tensor(value) else value)
        return changed

    def _named_with_positions_at(self, length: int) -> dict[str, Any]:
        return dict(zip(self.named, self._with_positions_at([*self.named.values()], length), strict=True))


def _is_integer_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point()


def _first_and_last_position(like: Tensor, length: int) -> Tensor:
    """Return position 1 and the last position of a text, in the form of a pass's positions [..., T]."""
    return torch.tensor([1, length - 1]).to(like).expand(*like.shape[:-1], 2)


def _cosines_and_sines(output: Any) -> tuple[Tensor, Tensor]:
    """Return a module's cosines and sines at the first of two positions, [K] or [K / 2], float64."""
    if isinstance(output, Tensor):
        cosines, sines = output.real, output.imag
    else:
        cosines, sines = output
    # The first position is the first row.
    return cosines.flatten(0, -2)[0].double(), sines.flatten(0, -2)[0].double()


@contextmanager
def recording_calls(model: nn.Module, calls: dict[tuple[Any, ...], RotaryCall]) -> Iterator[None]:
    """Within the context, record in `calls` the last call of each rotary module with each layer type."""

    def record_call(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], _: Any) -> None:
        if any(map(_is_integer_tensor, (*arguments, *named.values()))):
            call = RotaryCall(module, arguments, named)
            calls[call.kind] = call

    hooks = [module.register_forward_hook(record_call, with_kwargs=True) for module in rotary_modules(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
