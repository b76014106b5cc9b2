"""RoPE: each pair of features of queries and keys is turned by its position, p theta_c.

theta_c = base^(-2c/K), c = 0..K/2-1, so that the score depends on content and i - j. A pair is
(x_c, x_{c+K/2}) in the `half` layout and (x_2c, x_{2c+1}) in the `interleaved` one; the two are
the same up to a permutation of features, but weights of one do not fit the other.

Of one rotation there are three forms, for either layout: `pairs` multiplies the two features by sines and
cosines, `complex` takes them for one complex number times e^(i p theta_c), and `dense` multiplies the whole
vector by a matrix of blocks [[cos, -sin], [sin, cos]], which takes K^2 numbers for each position.

Past the training length: defined, out of distribution: the slow frequencies have not yet made
a full turn in training.

Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.2.2 (interleaved and dense there; `half` is the
layout of GPT-NeoX and Llama, and the default here).
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.errors import require
from pe_bench.native.layers import is_rotated_natively, rotated

# which two features form a pair: half (c, c + K/2) or interleaved (2c, 2c + 1)
Layout = Literal["half", "interleaved"]
Form = Literal["pairs", "complex", "dense"]
# features, the first (partial_rope), or frequencies, the highest (p_rope)
FractionOf = Literal["features", "frequencies"]


def require_pairs(width: int, option: str = "model.d_head") -> None:
    require(width % 2 == 0, f"this encoding acts on pairs of features, and {option}={width} is odd")


def require_base(base: float) -> None:
    require(base > 1, f"encoding.base must exceed 1, for frequencies to fall, not {base}")


def rope_frequencies(width: int, base: float) -> Tensor:
    """Return theta [width / 2] in float64."""
    require_pairs(width)
    require_base(base)
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def pairs_within(d_head: int, fraction: float) -> int:
    """Return how many of the K/2 pairs a fraction of the head's width holds, rounded down."""
    require_pairs(d_head)
    require(0 <= fraction <= 1, f"encoding.fraction must lie between 0 and 1, not be {fraction}")
    # 0.29 * 100 is 28.999.. in floating point.
    pairs = math.floor(fraction * (d_head // 2) + 1e-9)
    require(
        pairs > 0 or fraction == 0,
        f"encoding.fraction={fraction} of the {d_head // 2} pairs of a head of width {d_head} holds none: "
        f"give at least {2 / d_head:g}",
    )
    return pairs


def turned_frequencies(
    d_head: int, base: float, fraction: float = 1.0, fraction_of: FractionOf = "features"
) -> Tensor:
    """Return theta in float64 of a head of which a fraction is turned.

    A fraction of the features means the first ones, with frequencies [pairs] spread over them as in
    partial RoPE; one of the frequencies means the highest, the others of all [K/2] being 0, as in p-RoPE.
    """
    pairs = turned_pairs(d_head, fraction, fraction_of)
    if fraction_of == "features":
        return rope_frequencies(2 * pairs, base)
    return slow_ones_zeroed(rope_frequencies(d_head, base), pairs)


def turned_pairs(d_head: int, fraction: float, fraction_of: FractionOf) -> int:
    require(
        fraction < 1 or fraction_of == "features",
        f"encoding.fraction_of={fraction_of} is for an encoding.fraction below 1, not {fraction}: "
        "leave it out",
    )
    require(fraction > 0, f"encoding.fraction={fraction} leaves nothing to turn: say encoding=nope")
    return pairs_within(d_head, fraction)


def slow_ones_zeroed(frequencies: Tensor, kept: int) -> Tensor:
    return functional.pad(frequencies[:kept], (0, len(frequencies) - kept))


def rotate(x: Tensor, position: Tensor, frequencies: Tensor, layout: Layout, form: Form = "pairs") -> Tensor:
    """Turn the pairs of x [B, H, n, K] by position [n] or [B, 1, n] times frequencies [K/2].

    With fewer frequencies as many pairs are turned, within the first features, and the rest is left alone.
    Angles are float64, because a float32 one at position 65,536 is wrong by 0.004; the products are float32
    or better whatever the type of `x`.
    """
    precise = x.to(torch.promote_types(x.dtype, torch.float32))
    cos, sin = _cosines_and_sines(position, frequencies, precise.dtype)
    if layout == "half" and form == "pairs" and is_rotated_natively(precise, cos):
        return rotated(precise, cos, sin).to(x.dtype)
    width = 2 * frequencies.shape[-1]
    if width < x.shape[-1]:
        first, rest = x.tensor_split([width], -1)
        return torch.cat([rotate(first, position, frequencies, layout, form), rest], -1)
    if form == "dense":
        turned = torch.einsum("...nij,...nj->...ni", rotation_matrix(cos, sin, layout), precise)
        return turned.to(x.dtype)
    if form == "complex":
        product = torch.complex(*split_pairs(precise, layout)) * torch.complex(cos, sin)
        return join_pairs(product.real, product.imag, layout).to(x.dtype)
    return turn(precise, cos, sin, layout).to(x.dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return x [.., n, K] with its pairs turned, by cosines and sines [.., n, K/2]."""
    # Whole rows at a time, which takes half as long as pair by pair.
    cosines, sines = join_pairs(cos, cos, layout), join_pairs(-sin, sin, layout)
    return torch.addcmul(x * cosines, swapped(x, layout), sines)


class _Tables(NamedTuple):
    """Cosines and sines [.., n, K/2] of all angles, and what they were made from."""

    position: Tensor
    frequencies: Tensor
    cosines: Tensor
    sines: Tensor

    def serves(self, position: Tensor, frequencies: Tensor, dtype: torch.dtype) -> bool:
        types = (self.position.dtype, self.cosines.dtype) == (position.dtype, dtype)
        return types and torch.equal(self.position, position) and torch.equal(self.frequencies, frequencies)


_made_last: _Tables | None = None  # on the CPU, for the next layer and the next step


def _cosines_and_sines(position: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    global _made_last
    on_cpu = position.device.type == frequencies.device.type == "cpu"
    keeps = on_cpu and not (frequencies.requires_grad or position.requires_grad)
    if keeps and _made_last is not None and _made_last.serves(position, frequencies, dtype):
        return _made_last.cosines, _made_last.sines
    angle = position.double().unsqueeze(-1) * frequencies.double()
    cosines, sines = angle.cos().to(dtype), angle.sin().to(dtype)
    if keeps and not torch.is_inference_mode_enabled():  # whose tensors no training step can save
        _made_last = _Tables(position.clone(), frequencies.clone(), cosines, sines)
    return cosines, sines


def rotation_matrix(cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return [.., n, K, K] from [.., n, K/2]: a block [[cos, -sin], [sin, cos]] at each pair's features."""
    width = 2 * cos.shape[-1]
    first, second = split_pairs(torch.arange(width, device=cos.device), layout)
    matrix = cos.new_zeros(*cos.shape[:-1], width, width)
    matrix[..., first, first], matrix[..., first, second] = cos, -sin
    matrix[..., second, first], matrix[..., second, second] = sin, cos
    return matrix


def split_pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the first and the second features [.., K/2] of the pairs of x [.., K]."""
    a, b = x.chunk(2, -1) if layout == "half" else x.unflatten(-1, (-1, 2)).unbind(-1)
    return a, b


def join_pairs(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    """Return [.., K] from the first and the second features [.., K/2] of its pairs."""
    return torch.cat([a, b], -1) if layout == "half" else torch.stack([a, b], -1).flatten(-2)


def swapped(x: Tensor, layout: Layout) -> Tensor:
    """Return x [.., K] with the two features of each pair exchanged."""
    if layout == "half":
        return x.roll(x.shape[-1] // 2, -1)
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


class RoPE(LayerEncoding):
    """Encodings that turn pairs at other frequencies derive from it and change them.

    Options:

    base: of the geometric frequencies
    form: how they are turned, to the same result: pairs, complex or dense (a matrix)
    """

    family = "rotary"
    paper = "arXiv:2104.09864"
    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    frequencies: Tensor

    def __init__(self, d_head: int, base: float = 10_000.0, layout: Layout = "half", form: Form = "pairs"):
        super().__init__()
        self.layout: Layout = layout
        self.form: Form = form
        self.register_buffer("frequencies", rope_frequencies(d_head, base), persistent=False)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return (
            rotate(queries.x, queries.position, self.frequencies, self.layout, self.form),
            rotate(keys.x, keys.position, self.frequencies, self.layout, self.form),
        )
