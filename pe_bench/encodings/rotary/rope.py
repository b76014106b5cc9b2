r"""RoPE: each pair of features of queries and keys is turned by its position, p theta_c.

theta_c = base^(-2c/K), c = 0..K/2-1, so that the score depends on content and i - j. A pair is
(x_c, x_{c+K/2}) in the `half` layout and (x_2c, x_{2c+1}) in the `interleaved` one; the two are
the same up to a permutation of features, but weights of one do not fit the other.

Of one rotation there are three forms, for either layout: `pairs` multiplies the two features by sines and
cosines, `complex` takes them for one complex number times e^(i p theta_c), and `dense` multiplies the whole
vector by a matrix of blocks [[cos, -sin], [sin, cos]], which takes K^2 numbers for each position.

$x_c \mapsto x_c\, e^{\mathrm{i} p \theta_c}, \quad \theta_c = \text{base}^{-2c / K}, \quad c = 0, \dots, K /
2 - 1$

Past the training length: defined, out of distribution: the slow frequencies have not yet made
a full turn in training.

Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.2.2 (interleaved and dense there; `half` is the
layout of GPT-NeoX and Llama, and the default here).
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import ROTARY, Base, Fraction, LayerEncoding, Side
from pe_bench.errors import require
from pe_bench.native.inductor import fused_on_gpu
from pe_bench.native.layers import is_rotated_natively, rotated

Layout = Literal["half", "interleaved"]
Form = Literal["pairs", "complex", "dense"]
FractionOf = Literal["features", "frequencies"]


def require_pairs(width: int, option: str = "model.d_head") -> None:
    require(width % 2 == 0, f"this encoding acts on pairs of features, and {option}={width} is odd")


def rope_frequencies(width: int, base: float) -> Tensor:
    """Return theta [width / 2] in float64."""
    require_pairs(width)
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def pairs_within(d_head: int, fraction: float) -> int:
    """Return how many of the K/2 pairs a fraction of the head's width holds, rounded down."""
    require_pairs(d_head)
    # 0.29 * 100 is 28.999.. in floating point.
    pairs = math.floor(fraction * (d_head // 2) + 1e-9)
    least = f"{2 / d_head:g} of a head of width {d_head}"
    require(pairs > 0 or fraction == 0, f"encoding.fraction={fraction} holds no pair: give at least {least}")
    return pairs


def rotate(x: Tensor, position: Tensor, frequencies: Tensor, layout: Layout, form: Form = "pairs") -> Tensor:
    """Turn the pairs of x [B, H, n, K] by position [n] or [B, 1, n] times frequencies [K/2] or [H, 1, K/2].

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
    return turn_in_type(x, cos, sin, layout)


def rotate_both(
    queries: Side, keys: Side, frequencies: Tensor, layout: Layout, form: Form = "pairs"
) -> tuple[Tensor, Tensor]:
    """Return queries and keys turned by their positions."""
    turned = [rotate(side.x, side.position, frequencies, layout, form) for side in (queries, keys)]
    return turned[0], turned[1]


def turn_both(queries: Side, keys: Side, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys turned in half layout by cosines and sines [.., N, K/2] of the keys."""
    last = slice(keys.x.shape[-2] - queries.x.shape[-2], None)
    turned_q = turn_in_type(queries.x, cos[..., last, :], sin[..., last, :], "half")
    return turned_q, turn_in_type(keys.x, cos, sin, "half")


@fused_on_gpu
def turn_in_type(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return what `turn` does in the type of the cosines, in the type of x."""
    return turn(x.to(cos.dtype), cos, sin, layout).to(x.dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return x [.., n, K] with its pairs turned, by cosines and sines [.., n, K/2]."""
    # Whole rows at a time, which takes half as long as pair by pair.
    cosines = join_pairs(cos, cos, layout)
    sines = join_pairs(-sin, sin, layout)
    return torch.addcmul(x * cosines, swapped(x, layout), sines)


class _Angles(NamedTuple):
    """Cosines and sines, kept for the next layer and the next step, and what they were made of."""

    position: Tensor
    frequencies: Tensor
    cosines: Tensor
    sines: Tensor

    def are_of(self, position: Tensor, frequencies: Tensor, dtype: torch.dtype) -> bool:
        same_types = (self.position.dtype, self.cosines.dtype) == (position.dtype, dtype)
        if not same_types or self.position.device != position.device:
            return False
        if position.device.type == "cpu":
            same_position = torch.equal(self.position, position)
            return same_position and torch.equal(self.frequencies, frequencies)
        # To compare numbers on a GPU is to wait for it.
        return self.position is position and self.frequencies is frequencies


_made_last: _Angles | None = None


def _cosines_and_sines(position: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [.., n, K/2] of all angles."""
    global _made_last
    keeps = position.device == frequencies.device and not (
        frequencies.requires_grad or position.requires_grad
    )
    if keeps and _made_last is not None and _made_last.are_of(position, frequencies, dtype):
        return _made_last.cosines, _made_last.sines
    angle = position.double().unsqueeze(-1) * frequencies.double()
    cosines, sines = angle.cos().to(dtype), angle.sin().to(dtype)
    if keeps and not torch.is_inference_mode_enabled():  # whose tensors no training step can save
        made_of = (position, frequencies)
        if position.device.type == "cpu":  # whose numbers are compared, and may change in place
            made_of = (position.clone(), frequencies.clone())
        _made_last = _Angles(*made_of, cosines, sines)
    return cosines, sines


def rotation_matrix(cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return [.., n, K, K] from [.., n, K/2]: a block [[cos, -sin], [sin, cos]] at each pair's features."""
    width = 2 * cos.shape[-1]
    first, second = split_pairs(torch.arange(width, device=cos.device), layout)
    matrix = cos.new_zeros(*cos.shape[:-1], width, width)
    matrix[..., first, first] = cos
    matrix[..., first, second] = -sin
    matrix[..., second, first] = sin
    matrix[..., second, second] = cos
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
    layout: which two features form a pair: half (c, c + K/2) or interleaved (2c, 2c + 1)
    form: how they are turned, to the same result: pairs, complex or dense (a matrix)
    """

    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    def __init__(self, d_head: int, base: Base = 10_000.0, layout: Layout = "half", form: Form = "pairs"):
        super().__init__()
        self.layout: Layout = layout
        self.form: Form = form
        self.frequencies = nn.Buffer(rope_frequencies(d_head, base), persistent=False)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return rotate_both(queries, keys, self.frequencies, self.layout, self.form)


@dataclass(eq=False)
class Rotary(LayerEncoding):
    """What changes `rope`, `partial_rope` or `p_rope`, and so works on weights trained with them.

    Its fields are options. Those of a class that derives from it come before the last four, which have names.

    Options:

    base: of the geometric frequencies
    layout: which two features form a pair: half (c, c + K/2) or interleaved (2c, 2c + 1)
    fraction: of the head, which is turned: less after partial_rope or p_rope
    fraction_of: features, the first (partial_rope), or frequencies, the highest (p_rope)
    """

    compatible_with = ROTARY

    d_head: int
    _: KW_ONLY
    base: Base = 10_000.0
    layout: Layout = "half"
    fraction: Fraction = 1.0
    fraction_of: FractionOf = "features"

    def __post_init__(self) -> None:
        super().__init__()
        fraction, fraction_of = self.fraction, self.fraction_of
        is_read = fraction < 1 or fraction_of == "features"
        require(is_read, f"encoding.fraction_of={fraction_of} is for a fraction below 1: leave it out")
        self.pairs = pairs_within(self.d_head, fraction)
        # Over a fraction of the features the frequencies are spread, as in partial RoPE; of the frequencies
        # the highest are kept, as in p-RoPE.
        self.width = 2 * self.pairs if fraction_of == "features" else self.d_head

    def usual_frequencies(self) -> Tensor:
        """Return the frequencies of training [width / 2] in float64."""
        return self.kept(rope_frequencies(self.width, self.base))

    def kept(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies, with 0 for those that p-RoPE leaves out."""
        return nn.functional.pad(frequencies[: self.pairs], (0, len(frequencies) - self.pairs))
