"""Layers without softmax: every head keeps a matrix, its state, which each token decays, corrects and reads.

With a state S [K, V], and for each token a query q, a key k, a value v, a log decay g and a strength b:

    S <- e^g S;   S <- S + k (b (v - S^T k))^T;   o = S^T q

The decay comes first, the correction reads the decayed state, and a token reads its own value. Without a
correction, the second step is S <- S + k v^T. `recurrence` computes this token by token, and is the
reference. `chunked_recurrence` gives the same result in chunks of tokens, and solves a triangular system for
the corrections of a chunk (Yang et al. 2024, arXiv:2406.06484; with decays 2412.06464, section 3.3).
`fast_recurrence` runs compiled code for float32 on a CPU, and chunks otherwise: on a GPU, in other types,
without a compiler, and under `torch.compile`.

Letters: B batch, H heads, T tokens, n chunks, C tokens of a chunk, K head width of queries and keys, V head
width of values, G 1 or K: the number of decays of a token.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, full_precision, precise
from pe_bench.native.recurrence import has_native_recurrence, native_recurrence

TOKENS_PER_CHUNK = 32  # tokens
TOKENS_PER_SEGMENT = 4_096  # tokens computed at once without gradients, which bounds the memory
LEAST_LOG_DECAY = -40.0  # e^-40 is lost in a sum with 1; a chunk of smaller decays would overflow float64
NORM_EPSILON = 1e-6


class RecurrenceInputs(NamedTuple):
    """The inputs of a recurrence: how each token reads, decays and changes the state."""

    q: Tensor  # [B, H, T, K]
    k: Tensor  # [B, H, T, K]
    v: Tensor  # [B, H, T, V]
    log_decay: Tensor  # [B, H, T, G], at most 0: of the whole state, or of each of its rows
    strength: Tensor | None = None  # [B, H, T] of the correction; None: without a correction


class State(NamedTuple):
    """The log decays of all tokens, and the state after the last token."""

    log_decay: Tensor  # [B, H, T, G]
    last: Tensor  # [B, H, K, V]


def recurrence(inputs: RecurrenceInputs) -> Tensor:
    """Compute S^T q of each token [B, H, T, V], token by token."""
    q, k, v, log_decay, strength = inputs
    state = _zero_state(q, v)
    outputs = []
    for t in range(q.shape[-2]):
        state = state * log_decay[..., t, :, None].exp()
        key = k[..., t, :, None]
        added = v[..., t, None, :]
        if strength is not None:
            error = added - key.mT @ state
            added = strength[..., t, None, None] * error
        state = state + key * added
        outputs.append(q[..., t, None, :] @ state)
    return torch.cat(outputs, -2)


def fast_recurrence(inputs: RecurrenceInputs) -> Tensor:
    """Return the result of `recurrence`: by compiled code if it can handle the inputs, or else in chunks."""
    if has_native_recurrence(*inputs):
        return native_recurrence(*inputs)
    return chunked_recurrence(inputs)


def chunked_recurrence(inputs: RecurrenceInputs) -> Tensor:
    """Return the result of `recurrence`, computed in chunks, and in segments if without gradients."""
    return chunked_recurrence_with_state(inputs)[0]


def chunked_recurrence_with_state(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Return S^T q of each token [B, H, T, V], and the state after the last token [B, H, K, V]."""
    length = inputs.q.shape[-2]
    state = _zero_state(inputs.q, inputs.v)
    if torch.is_grad_enabled() or length <= TOKENS_PER_SEGMENT:
        return _read_segment(inputs, state)
    outputs = []
    for start in range(0, length, TOKENS_PER_SEGMENT):
        part = slice(start, start + TOKENS_PER_SEGMENT)
        segment = [None if each is None else each[:, :, part] for each in inputs]
        output, state = _read_segment(RecurrenceInputs(*segment), state)  # pyright: ignore[reportArgumentType]
        outputs.append(output)
    return torch.cat(outputs, -2), state


def _zero_state(q: Tensor, v: Tensor) -> Tensor:
    """Return the state [B, H, K, V] before the first token."""
    return q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])


def _read_segment(inputs: RecurrenceInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return S^T q of a segment's tokens, and the state after the segment, from the state before it."""
    length = inputs.q.shape[-2]
    q, k, v = (_in_chunks(x) for x in inputs[:3])
    passed = _in_chunks(inputs.log_decay.clamp(min=LEAST_LOG_DECAY)).cumsum(-2)  # [B, H, n, C, G]
    whole = passed[..., -1:, :]
    pairs = _pair_products(passed)
    kept_k = k * (whole - passed).exp()  # keys, decayed to the end of their chunk

    if inputs.strength is None:
        corrected_v = v
        removed = None
    else:
        strength = _in_chunks(inputs.strength.unsqueeze(-1))
        # Only earlier tokens of the chunk correct a token.
        system = strength * pairs(k, k).tril(-1)
        decayed_k = strength * k * passed.exp()
        right_sides = torch.cat([strength * v, decayed_k], -1)
        eye = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
        solved = torch.linalg.solve_triangular(system + eye, right_sides, upper=False, unitriangular=True)
        corrected_v, removed = solved.tensor_split([v.shape[-1]], -1)

    gained = kept_k.mT @ corrected_v
    lost = None if removed is None else kept_k.mT @ removed
    states = []
    for number in range(q.shape[2]):
        states.append(state)
        decay = whole[:, :, number].exp().mT
        after = state * decay + gained[:, :, number]
        if lost is not None:
            after = after - lost[:, :, number] @ state
        state = after
    before = torch.stack(states, 2)  # [B, H, n, K, V]

    written = corrected_v if removed is None else corrected_v - removed @ before
    read_before = (q * passed.exp()) @ before
    read = read_before + pairs(q, k).tril() @ written
    return read.flatten(2, 3)[:, :, :length], state


def _in_chunks(x: Tensor) -> Tensor:
    """Return x [B, H, T, *] as [B, H, n, C, *], filled up with zeros, which leave the state unchanged."""
    missing = -x.shape[-2] % TOKENS_PER_CHUNK
    padded = functional.pad(x, (0, 0, 0, missing))
    return padded.unflatten(2, (-1, TOKENS_PER_CHUNK))


def _pair_products(passed: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that multiplies each pair of tokens of a chunk, with the decay between the two.

    passed: sums P of log decays from the chunk's start, [B, H, n, C, G]. The function takes a and b
    [.., C, K] and returns sum_c a_ic b_jc e^(P_ic - P_jc), [.., C, C]; entries with j > i have no meaning.
    """
    if passed.shape[-1] == 1:
        differences = passed - passed.mT
        is_earlier = torch.ones_like(differences[0, 0, 0], dtype=torch.bool).tril()
        decays = differences.masked_fill(~is_earlier, -math.inf).exp()
        return lambda a, b: (a @ b.mT) * decays
    # A product of two factors: exponents relative to the chunk's middle do not overflow float64.
    half = TOKENS_PER_CHUNK // 2
    middle = passed[..., half : half + 1, :].double()
    from_middle = passed.double() - middle
    later = from_middle.exp()
    earlier = (-from_middle).exp()

    def decayed_product(a: Tensor, b: Tensor) -> Tensor:
        decayed_a = a.double() * later
        decayed_b = b.double() * earlier
        return (decayed_a @ decayed_b.mT).tril().to(a.dtype)

    return decayed_product


class Recurrent(LayerEncoding, ABC):
    """A layer that reads a state in place of softmax attention; a subclass defines `recurrence_inputs`."""

    per_layer = True

    @abstractmethod
    def recurrence_inputs(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> RecurrenceInputs:
        """Return the inputs of the recurrence, from the layer's x [B, T, D] and q, k, v [B, H, T, K]."""

    def output(self, x: Tensor, read: Tensor) -> Tensor:
        """Return the layer's output [B, H, T, K] from S^T q of each token, `read`."""
        return read

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._attend_precisely(recurrence, x, q, k, v)

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._attend_precisely(fast_recurrence, x, q, k, v)

    def state_after(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> State:
        """Return the log decays and the last state of a text, given the arguments of `attend`."""
        with full_precision(x):
            inputs = self._precise_inputs(x, q, k, v)
            return State(inputs.log_decay, chunked_recurrence_with_state(inputs)[1])

    def _attend_precisely(
        self, read: Callable[[RecurrenceInputs], Tensor], x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """Compute the layer's output in float32 or better; `read` computes S^T q of each token."""
        # Sums over thousands of tokens: never in half precision, not even where a model is autocast.
        with full_precision(x):
            inputs = self._precise_inputs(x, q, k, v)
            output = self.output(x.to(inputs.q.dtype), read(inputs))
            return output.to(q.dtype)

    def _precise_inputs(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> RecurrenceInputs:
        """Return `recurrence_inputs` in float32 or float64."""
        dtype = precise(q.dtype)
        return self.recurrence_inputs(x.to(dtype), q.to(dtype), k.to(dtype), v.to(dtype))


# Functions that several recurrent layers use


def convolved(x: Tensor, taps: Tensor) -> Tensor:
    """Convolve x [B, H, T, K] causally, feature by feature, with zeros before the first token.

    taps: weights [H, K, taps] of the last tokens; the last weight is for the token itself.
    """
    length = x.shape[-2]
    count = taps.shape[-1]
    before = functional.pad(x, (0, 0, count - 1, 0))
    total = torch.zeros_like(x)
    for tap in range(count):
        shifted = before[:, :, tap : tap + length]
        total = torch.addcmul(total, shifted, taps[:, None, :, tap])
    return total


def unit_norm(x: Tensor) -> Tensor:
    """Return x [.., K] divided by its norm."""
    square = x.square().sum(-1, keepdim=True)
    return x * (square + NORM_EPSILON).rsqrt()


def rms_normed(x: Tensor) -> Tensor:
    mean_square = x.square().mean(-1, keepdim=True)
    return x * (mean_square + NORM_EPSILON).rsqrt()


def in_heads(x: Tensor, matrix: Tensor, n_heads: int) -> Tensor:
    """Return the product of x [B, T, D] with a matrix [H n, D] as [B, H, T, n]."""
    product = functional.linear(x, matrix)
    return product.unflatten(-1, (n_heads, -1)).transpose(1, 2)
