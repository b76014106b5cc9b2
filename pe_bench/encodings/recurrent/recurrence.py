"""Layers without softmax: every head keeps a matrix, its state, which each token decays, corrects and reads.

With a state S [K, V], and for each token a query q, a key k, a value v, a decay e^g and a strength b:

    S <- e^g S;   S <- S + k (b (v - S^T k))^T;   o = S^T q

The decay comes first, the correction reads the decayed state, and a token reads its own value. Without a
correction, the second step is S <- S + k v^T. `recurrence` does this token by token, and is the truth.
`chunked` does it in chunks of tokens, for whose corrections it solves a triangular system (Yang et al.
2024, arXiv:2406.06484; with decays 2412.06464, section 3.3), and gives the same.

Letters: B batch, H heads, T tokens, n chunks, C tokens of a chunk, K head width of queries and keys, V that
of values, G 1 or K.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, full_precision

CHUNK = 32  # tokens
SEGMENT = 4_096  # tokens that are computed at once where no gradient is wanted, which bounds the memory
LEAST_LOG_DECAY = -40.0  # e^-40 is nothing beside 1, and a chunk of smaller ones would overflow float64
EPSILON = 1e-6


class Tokens(NamedTuple):
    """What each token does to the state."""

    q: Tensor  # [B, H, T, K]
    k: Tensor  # [B, H, T, K]
    v: Tensor  # [B, H, T, V]
    log_decay: Tensor  # [B, H, T, G], at most 0: of the whole state, or of each of its rows
    strength: Tensor | None = None  # [B, H, T] of the correction; None: without a correction


def recurrence(tokens: Tokens) -> Tensor:
    """Return what each token reads [B, H, T, V], token by token."""
    q, k, v, log_decay, strength = tokens
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    outputs = []
    for t in range(q.shape[-2]):
        state = state * log_decay[..., t, :, None].exp()
        key = k[..., t, :, None]
        added = v[..., t, None, :]
        if strength is not None:
            added = strength[..., t, None, None] * (added - key.mT @ state)
        state = state + key * added
        outputs.append(q[..., t, None, :] @ state)
    return torch.cat(outputs, -2)


def chunked(tokens: Tokens) -> Tensor:
    """Return what `recurrence` does, in chunks of tokens, and without gradients in segments too."""
    length = tokens.q.shape[-2]
    state = tokens.q.new_zeros(*tokens.q.shape[:2], tokens.q.shape[-1], tokens.v.shape[-1])
    if torch.is_grad_enabled() or length <= SEGMENT:
        return _segment(tokens, state)[0]
    outputs = []
    for start in range(0, length, SEGMENT):
        part = slice(start, start + SEGMENT)
        of_part = [None if each is None else each[:, :, part] for each in tokens]
        output, state = _segment(Tokens(*of_part), state)  # pyright: ignore[reportArgumentType]
        outputs.append(output)
    return torch.cat(outputs, -2)


def _segment(tokens: Tokens, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the tokens of a segment read, and the state after them."""
    length = tokens.q.shape[-2]
    q, k, v = (_in_chunks(x) for x in tokens[:3])
    passed = _in_chunks(tokens.log_decay.clamp(min=LEAST_LOG_DECAY)).cumsum(-2)  # [B, H, n, C, G]
    whole = passed[..., -1:, :]
    pairs = _pair_products(passed)
    kept_k = k * (whole - passed).exp()  # what is left of a key at the end of its chunk

    if tokens.strength is None:
        corrected_v = v
        removed = None
    else:
        strength = _in_chunks(tokens.strength.unsqueeze(-1))
        # Only earlier tokens of the chunk correct a token.
        system = strength * pairs(k, k).tril(-1)
        sides = torch.cat([strength * v, strength * k * passed.exp()], -1)
        eye = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
        solved = torch.linalg.solve_triangular(system + eye, sides, upper=False, unitriangular=True)
        corrected_v, removed = solved.split([v.shape[-1], k.shape[-1]], -1)

    gained = kept_k.mT @ corrected_v
    lost = None if removed is None else kept_k.mT @ removed
    states = []
    for number in range(q.shape[2]):
        states.append(state)
        after = state * whole[:, :, number].exp().mT + gained[:, :, number]
        state = after if lost is None else after - lost[:, :, number] @ state
    before = torch.stack(states, 2)  # [B, H, n, K, V]

    written = corrected_v if removed is None else corrected_v - removed @ before
    read = (q * passed.exp()) @ before + pairs(q, k).tril() @ written
    return read.flatten(2, 3)[:, :, :length], state


def _in_chunks(x: Tensor) -> Tensor:
    """Return x [B, H, T, *] as [B, H, n, C, *], with zeros at the end, which neither decay nor add."""
    padded = functional.pad(x, (0, 0, 0, -x.shape[-2] % CHUNK))
    return padded.unflatten(2, (-1, CHUNK))


def _pair_products(passed: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of a, b [.., C, K] that gives sum_c a_ic b_jc e^(G_ic - G_jc), [.., C, C].

    passed: G [B, H, n, C, G], the sums of log decays within the chunk. Only j <= i has a meaning.
    """
    if passed.shape[-1] == 1:
        differences = passed - passed.mT
        earlier = torch.ones_like(differences[0, 0, 0], dtype=torch.bool).tril()
        decays = differences.masked_fill(~earlier, -math.inf).exp()
        return lambda a, b: (a @ b.mT) * decays
    # A product of two factors, whose exponents float64 holds when they are counted from the chunk's middle.
    from_middle = passed.double() - passed[..., CHUNK // 2 : CHUNK // 2 + 1, :].double()
    later = from_middle.exp()
    earlier = (-from_middle).exp()

    def product(a: Tensor, b: Tensor) -> Tensor:
        return ((a.double() * later) @ (b.double() * earlier).mT).tril().to(a.dtype)

    return product


class Recurrent(LayerEncoding):
    """A layer that reads a state in place of softmax attention. A subclass says what its tokens do."""

    per_layer = True

    def tokens(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tokens:
        """Return what the tokens do, of the layer's input x [B, T, D] and q, k, v [B, H, T, K]."""
        raise NotImplementedError

    def output(self, x: Tensor, read: Tensor) -> Tensor:
        """Return the layer's output [B, H, T, K] from what the tokens read."""
        return read

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._attend(recurrence, x, q, k, v)

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._attend(chunked, x, q, k, v)

    def _attend(self, read: Callable[[Tokens], Tensor], x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Sums over thousands of tokens: never in half precision, not even where a model is autocast.
        with full_precision(x):
            dtype = torch.promote_types(q.dtype, torch.float32)
            x, precise_q, precise_k, precise_v = (each.to(dtype) for each in (x, q, k, v))
            tokens = self.tokens(x, precise_q, precise_k, precise_v)
            return self.output(x, read(tokens)).to(q.dtype)


# What several of these layers have


def convolved(x: Tensor, taps: Tensor) -> Tensor:
    """Return for each token a sum over it and the tokens before, with a weight for each feature.

    x: [B, H, T, K]. taps: [H, K, taps], of which the last is for the token itself. Before the first token
    there are zeros.
    """
    count = taps.shape[-1]
    before = functional.pad(x, (0, 0, count - 1, 0))
    total = torch.zeros_like(x)
    for tap in range(count):
        total = torch.addcmul(total, before[:, :, tap : tap + x.shape[-2]], taps[:, None, :, tap])
    return total


def unit(x: Tensor) -> Tensor:
    """Return x [.., K] divided by its norm."""
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def rms_normed(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt()


def in_heads(x: Tensor, matrix: Tensor, n_heads: int) -> Tensor:
    """Return the product of x [B, T, D] with a matrix [H n, D] as [B, H, T, n]."""
    return functional.linear(x, matrix).unflatten(-1, (n_heads, -1)).transpose(1, 2)


def random_matrix(rows: int, columns: int) -> nn.Parameter:
    """Return a matrix N(0, 1/columns), as those of all linear layers here."""
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(columns))


def random_taps(n_heads: int, d_head: int, taps: int) -> nn.Parameter:
    """Return weights of a convolution, uniform within 1/sqrt(taps)."""
    return nn.Parameter((2 * torch.rand(n_heads, d_head, taps) - 1) / math.sqrt(taps))


def log_uniform_steps(*shape: int) -> nn.Parameter:
    """Return b with softplus(b) log-uniform from 0.001 to 0.1, as in Mamba 2 (arXiv:2405.21060)."""
    steps = torch.exp(torch.empty(shape).uniform_(math.log(0.001), math.log(0.1)))
    return nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
