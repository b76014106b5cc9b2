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

from pe_bench.encodings.base import ROTARY_ENCODINGS, Base, Fraction, LayerEncoding, Side, precise
from pe_bench.errors import require
from pe_bench.native.inductor import fused_on_gpu
from pe_bench.native.layers import is_rotated_natively, rotated

Layout = Literal["half", "interleaved"]
Form = Literal["pairs", "complex", "dense"]
FractionOf = Literal["features", "frequencies"]


def require_pairs(width: int, option: str = "model.d_head") -> None:
    """Raise `UserError` if `width`, the value of `option`, is odd."""
    message = f"this encoding acts on pairs of features, and {option}={width} is odd"
    require(width % 2 == 0, message)


def rope_frequencies(width: int, base: float) -> Tensor:
    """Return theta [width / 2] in float64."""
    require_pairs(width)
    even_features = torch.arange(0, width, 2, dtype=torch.float64)
    return base ** (-even_features / width)


def angles_at(position: Tensor, frequencies: Tensor) -> Tensor:
    """Return position [.., n] times frequencies [K/2] or [.., 1, K/2], [.., n, K/2].

    Angles are float64, because a float32 angle at position 65,536 is wrong by 0.004.
    """
    return position.double().unsqueeze(-1) * frequencies.double()


def pairs_within(d_head: int, fraction: float) -> int:
    """Return the number of whole pairs of features in a fraction of the head's width.

    Raises `UserError` for an odd width, and for a fraction above 0 without a whole pair.
    """
    require_pairs(d_head)
    # 0.29 * 100 is 28.999.. in floating point.
    pairs = math.floor(fraction * (d_head // 2) + 1e-9)
    is_enough = pairs > 0 or fraction == 0
    least = f"{2 / d_head:g} of a head of width {d_head}"
    require(is_enough, f"encoding.fraction={fraction} holds no pair: give at least {least}")
    return pairs


def rotate(x: Tensor, position: Tensor, frequencies: Tensor, layout: Layout, form: Form = "pairs") -> Tensor:
    """Turn the pairs of x [B, H, n, K] by position [n] or [B, 1, n] times frequencies [K/2] or [H, 1, K/2].

    With n frequencies, the pairs of the first 2n features are turned, and other features stay as they are.
    Products are float32 or better, for every type of `x`.
    """
    precise_x = x.to(precise(x.dtype))
    cos, sin = _cosines_and_sines(position, frequencies, precise_x.dtype)
    if layout == "half" and form == "pairs" and is_rotated_natively(precise_x, cos):
        return rotated(precise_x, cos, sin).to(x.dtype)
    width = 2 * frequencies.shape[-1]
    if width < x.shape[-1]:
        first, rest = x.tensor_split([width], -1)
        turned = rotate(first, position, frequencies, layout, form)
        return torch.cat([turned, rest], -1)
    if form == "dense":
        matrix = rotation_matrix(cos, sin, layout)
        turned = torch.einsum("...nij,...nj->...ni", matrix, precise_x)
        return turned.to(x.dtype)
    if form == "complex":
        numbers = torch.complex(*split_pairs(precise_x, layout))
        product = numbers * torch.complex(cos, sin)
        return join_pairs(product.real, product.imag, layout).to(x.dtype)
    return turn_in_type(x, cos, sin, layout)


def rotate_both(
    queries: Side, keys: Side, frequencies: Tensor, layout: Layout, form: Form = "pairs"
) -> tuple[Tensor, Tensor]:
    """Return queries and keys turned by their positions."""
    turned_q = rotate(queries.x, queries.position, frequencies, layout, form)
    return turned_q, rotate(keys.x, keys.position, frequencies, layout, form)


def turn_both(queries: Side, keys: Side, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries [.., Q, K] and keys [.., N, K] turned in half layout.

    cos, sin: of the angles of the keys, [.., N, K/2]; queries take the last Q.
    """
    first_query = keys.x.shape[-2] - queries.x.shape[-2]
    query_cos = cos[..., first_query:, :]
    query_sin = sin[..., first_query:, :]
    turned_q = turn_in_type(queries.x, query_cos, query_sin, "half")
    return turned_q, turn_in_type(keys.x, cos, sin, "half")


@fused_on_gpu
def turn_in_type(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return `turn(x, cos, sin, layout)` in the type of x, computed in the type of `cos`."""
    return turn(x.to(cos.dtype), cos, sin, layout).to(x.dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Turn the pairs of x [.., n, K] by the angles with these cosines and sines [.., n, K/2]."""
    # Whole rows at a time, which takes half as long as pair by pair.
    cosines = join_pairs(cos, cos, layout)
    sines = join_pairs(-sin, sin, layout)
    return torch.addcmul(x * cosines, swapped(x, layout), sines)


class _Angles(NamedTuple):
    """Cosines and sines, kept for the next layer and step, and the angles they belong to."""

    position: Tensor  # [.., n]
    frequencies: Tensor  # [K/2] or [.., 1, K/2]
    cosines: Tensor  # [.., n, K/2]
    sines: Tensor  # [.., n, K/2]

    def belong_to(self, position: Tensor, frequencies: Tensor, dtype: torch.dtype) -> bool:
        """Return true if these are the angles of the positions and frequencies, in this type."""
        same_types = (self.position.dtype, self.cosines.dtype) == (position.dtype, dtype)
        if not same_types or self.position.device != position.device:
            return False
        if position.device.type == "cpu":
            same_position = torch.equal(self.position, position)
            return same_position and torch.equal(self.frequencies, frequencies)
        # Comparing numbers on a GPU would wait for it.
        return self.position is position and self.frequencies is frequencies


_made_last: _Angles | None = None


def _cosines_and_sines(position: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [.., n, K/2] of the angles, in `dtype`.

    The angles are `angles_at(position, frequencies)`.
    """
    global _made_last
    has_gradient = frequencies.requires_grad or position.requires_grad
    keeps = position.device == frequencies.device and not has_gradient
    if keeps and _made_last is not None and _made_last.belong_to(position, frequencies, dtype):
        return _made_last.cosines, _made_last.sines
    angle = angles_at(position, frequencies)
    cosines = angle.cos().to(dtype)
    sines = angle.sin().to(dtype)
    if keeps and not torch.is_inference_mode_enabled():  # no training step can save tensors of inference mode
        if position.device.type == "cpu":  # compared by their numbers, which may change in place
            position, frequencies = position.clone(), frequencies.clone()
        _made_last = _Angles(position, frequencies, cosines, sines)
    return cosines, sines


def rotation_matrix(cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return matrices [.., n, K, K] with a block [[cos, -sin], [sin, cos]] for each pair of features."""
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
    if layout == "half":
        first, second = x.chunk(2, -1)
    else:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return first, second


def join_pairs(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    """Return [.., K] from the first and the second features [.., K/2] of its pairs."""
    if layout == "half":
        return torch.cat([a, b], -1)
    return torch.stack([a, b], -1).flatten(-2)


def swapped(x: Tensor, layout: Layout) -> Tensor:
    """Return x [.., K] with the two features of each pair exchanged."""
    if layout == "half":
        half = x.shape[-1] // 2
        return x.roll(half, -1)
    pairs = x.unflatten(-1, (-1, 2))
    return pairs.flip(-1).flatten(-2)


class RoPE(LayerEncoding):
    """The rotation of all pairs; subclasses change its frequencies.

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
    """The base of encodings for weights that were trained with `rope`, `partial_rope` or `p_rope`.

    Fields are options. The fields of a subclass come before the last four, which are keyword arguments.

    Options:

    base: of the geometric frequencies
    layout: which two features form a pair: half (c, c + K/2) or interleaved (2c, 2c + 1)
    fraction: share of the head that is turned; below 1 after partial_rope or p_rope
    fraction_of: unit of the share: features (the first, partial_rope) or frequencies (the highest, p_rope)
    """

    compatible_with = ROTARY_ENCODINGS

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
        # A fraction of the features has its own spread of frequencies, as in partial RoPE; a fraction of the
        # frequencies keeps the highest frequencies of the head, as in p-RoPE.
        self.width = 2 * self.pairs if fraction_of == "features" else self.d_head

    def training_frequencies(self) -> Tensor:
        """Return the frequencies [width / 2] of training, in float64."""
        return self.keep_highest(rope_frequencies(self.width, self.base))

    def keep_highest(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies with 0 in place of all but the `pairs` highest, as in p-RoPE."""
        left_out = len(frequencies) - self.pairs
        return nn.functional.pad(frequencies[: self.pairs], (0, left_out))
