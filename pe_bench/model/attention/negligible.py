"""Keys that may be left out, because their weight is provably below what rounding keeps.

The keys before some block may be left out when, for every query i of the chunk, with scores
s_ij = scale * q_i . k_j + b(i - j) and |v| the root mean square of the chunk's own values,

    sum_j exp(s_ij) max(1, |v_j| / |v|) <= exp(s_ii) epsilon / 3        (e^-17 in float32)

over those keys j. The row's sum of exponentials is at least exp(s_ii), so the output moves by no more than
epsilon / 3 times the sum of |v| and its own size: what float32 rounds away in such a sum anyway.

The left side is bounded a block at a time. The keys of a block lie in a ball around their mean c of radius
r, so q_i . k_j <= q_i . c + |q_i| r by Cauchy-Schwarz; and there is a largest bias at the least distance from
the chunk to the block or beyond. All of it is read from the tensors themselves, and nothing is left out up
to where a bias rises again, a key or a value is huge, or something is no number.

Letters: B batch, H query heads, T tokens, Q queries of a chunk, M blocks of keys, K head width.
"""

import math

import torch
from torch import Tensor

from pe_bench.model.attention.reference import precise

BLOCK = 256  # keys
SHORT = 1_024  # tokens


class NegligibleKeys:
    """The keys that chunks of queries do not need; q, k and v [B, H, T, *] are after every transform."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float):
        dtype = precise(q.dtype)
        self._q, self._k, self._scale = q, k, scale
        table = table.to(dtype)
        # [H, T]: the largest bias at a distance or beyond it, over the query's own.
        self._bias = table.flip(-1).cummax(-1).values.flip(-1) - table[:, :1]
        blocks = _blocks(k.to(dtype), 2)  # [B, H, M, BLOCK, *]
        self._centres = blocks.mean(-2)
        self._radii = (blocks - self._centres.unsqueeze(-2)).norm(dim=-1).amax(-1)
        self._sizes = v.to(dtype).norm(dim=-1)  # [B, H, T]
        self._largest = _blocks(self._sizes, 2).amax(-1)

    def first_keys(self, start: int, stop: int) -> list[int]:
        """Return for each head the first key that one of the queries `start` to `stop` - 1 needs."""
        blocks = start // BLOCK
        if blocks == 0:
            return [0] * self._bias.shape[0]
        nearest = start + 1 - BLOCK * torch.arange(1, blocks + 1, device=self._bias.device)
        sizes = self._largest[:, :, :blocks] / _rms(self._sizes[:, :, start:stop])
        lse = self._content(start, stop) + self._bias[:, nearest] + (BLOCK * sizes.clamp(min=1)).log()
        # [B, H, M]: of each block and all before it, which grows. A NaN is not less than any number.
        idle = lse.logcumsumexp(-1) < log_epsilon(lse.dtype)
        return (idle.all(0).sum(-1) * BLOCK).tolist()

    def _content(self, start: int, stop: int) -> Tensor:
        """Return [B, H, M]: how far products with a block before `start` can exceed a query's own."""
        blocks = start // BLOCK
        q = self._q[:, :, start:stop].to(self._radii.dtype)
        own = (q * self._k[:, :, start:stop]).sum(-1, keepdim=True)
        # Autocast would make half precision of the product, and rounding would break the bound.
        with torch.autocast(q.device.type, enabled=False):
            at_centre = q @ self._centres[:, :, :blocks].mT
        around = q.norm(dim=-1, keepdim=True) * self._radii[:, :, None, :blocks]
        return self._scale * (at_centre + around - own).amax(-2)


def is_worthwhile(table: Tensor) -> bool:
    """Return whether a bias [H, T] makes anything negligible by itself, in a text that is not short."""
    fallen = table.amin(-1) - table[:, 0] < log_epsilon(precise(table.dtype))
    return table.shape[-1] > SHORT and bool(fallen.any())


def log_epsilon(dtype: torch.dtype) -> float:
    """Return the logarithm of the largest weight that rounding does not keep."""
    return math.log(torch.finfo(dtype).eps / 3)


def _blocks(x: Tensor, dim: int) -> Tensor:
    """Return the axis of tokens as [M, BLOCK], without what fills no block."""
    whole = x.shape[dim] // BLOCK
    return x.narrow(dim, 0, whole * BLOCK).unflatten(dim, (whole, BLOCK))


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True).sqrt()
