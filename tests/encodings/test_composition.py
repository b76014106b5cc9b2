"""Several encodings as one: hooks combine as the paper of each says, or are refused."""

import math

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import fill, near, output, series
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.reference import make_sides

HEADS, WIDTH, TOKENS = 2, 4, 7
POSITION = torch.arange(TOKENS)
MODULE = "pe_bench.encodings."
ROPE = {"name": "rope", "class": f"{MODULE}rotary.rope:RoPE", "d_head": WIDTH}
SHAW = {"name": "shaw", "class": f"{MODULE}relative.shaw:Shaw", "d_head": WIDTH}
LEARNED = {"name": "learned", "class": f"{MODULE}inputs.learned:Learned", "d_model": 8, "max_position": 16}
STICK = {"name": "stick_breaking", "class": f"{MODULE}content.stick_breaking:StickBreaking"}
SINK = {"class": f"{MODULE}logits.sink:Sink", "n_heads": HEADS}
LOGN = {"class": f"{MODULE}logits.logn:LogN", "train_length": 3}
WINDOW = {"class": f"{MODULE}masks.sliding_window:SlidingWindow", "window": 3}
RANDOM = {"class": f"{MODULE}ids.randomized:Randomized", "max_position": 40}
NAPE = {
    "name": "alibi",
    "class": f"{MODULE}bias.alibi:ALiBi",
    "n_heads": HEADS,
    "silent": 0.5,
    "slopes": "harmonic",
}
ENTMAX = {"class": f"{MODULE}logits.asentmax:ASEntmax", "d_model": 8, "n_heads": HEADS, "scaled": 0.5}

generator = torch.Generator().manual_seed(0)
X = torch.randn(1, TOKENS, HEADS * WIDTH, generator=generator, dtype=torch.float64)
Q, K, V = torch.randn(3, 1, HEADS, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


class Scaled(LayerEncoding):
    """Scales and moves queries and keys, and adds 1 to the logits."""

    def __init__(self, factor: float, offset: float):
        super().__init__()
        self.factor, self.offset = factor, offset

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return self.factor * queries.x + self.offset, self.factor * keys.x + self.offset

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        return scores + 1


class Uniform(LayerEncoding):
    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        return visible / visible.sum(-1, keepdim=True)


def test_transforms_and_adjustments_chain_in_order_and_the_owner_of_a_hook_is_asked() -> None:
    stack = Stack([Scaled(2, 1), Uniform(), Scaled(3, 0)])
    turned = turned_sides(stack, Q, K, POSITION, POSITION)
    assert torch.equal(turned[0], 3 * (2 * Q + 1)) and torch.equal(turned[1], 3 * (2 * K + 1))
    queries, keys = make_sides(NoPE(), X, Q, K, POSITION)
    zeros, visible = torch.zeros(TOKENS, TOKENS), NoPE().visible(queries, keys)
    assert torch.equal(stack.adjust(zeros, visible, queries, keys), zeros + 2)
    assert stack.weights(zeros, visible)[3].tolist() == [0.25] * 4 + [0] * 3


def test_a_whole_composition_is_its_formula() -> None:
    stack = Stack([RoPE(WIDTH).double(), ALiBi(HEADS).double(), LogN(3), SlidingWindow(4)])
    turned_q, turned_k = turned_sides(RoPE(WIDTH).double(), Q, K, POSITION, POSITION)
    factor = (torch.log(POSITION + 1.0) / math.log(3)).clamp(min=1)[:, None]
    distance = POSITION[:, None] - POSITION
    scores = turned_q @ turned_k.mT / 2 * factor - ALiBi(HEADS).slopes.double()[:, None, None] * distance
    scores = scores.masked_fill((distance < 0) | (distance >= 4), -math.inf)
    result = reference_attention(stack, X, Q, K, V, POSITION)
    assert (result - scores.softmax(-1) @ V).abs().max() < 1e-6


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_an_offset_of_keys_cuts_no_rotated_pair(layout: str) -> None:
    """Scores of the offset keys at their own positions, under the rotation of all pairs."""
    offset = {"class": f"{MODULE}content.key_offset:KeyOffset", "d_head": WIDTH, "fraction": 0.5}
    rope = {**ROPE, "layout": layout}
    encoding = EncodingSpec({**rope, "modifiers": {"key_offset": offset}}).build(1)
    before = torch.cat([K[:, :, :1], K[:, :, :-1]], -2)
    keys = torch.cat([K[..., :2], before[..., 2:]], -1)
    expected = turned_sides(EncodingSpec(rope).build(1).layer(0), Q, keys, POSITION, POSITION)
    found = turned_sides(encoding.layer(0), Q, K, POSITION, POSITION)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_nape_with_entmax_has_the_outputs_of_the_authors_code() -> None:
    """Numbers from deep-spin/asentmax, synthetic/src/models/architectures/sparse_gemma.py, run in float64."""
    encoding = EncodingSpec({**NAPE, "modifiers": {"asentmax": ENTMAX}}).build(n_layers=1).double()
    parameters = dict(encoding.named_parameters())
    fill(parameters["modifiers.asentmax.layers.0.scale"], series(torch.sin, 0.15, 1, 8))
    fill(parameters["modifiers.asentmax.layers.0.power"], series(torch.cos, 0.25, 1, 8))
    last = output(encoding.layer(0))[0, :, -1]
    assert near(last[0], [0.394906, 0.446612, 0.458423, 0.429285])
    assert near(last[1], [0.371419, 0.379842, 0.354335, 0.297176])


@pytest.mark.parametrize(
    ("base", "modifier", "conflict"),
    [
        (SHAW, SHAW, "the encoding and other both replace scores"),
        (STICK, STICK, "the encoding and other both replace weights"),
        (STICK, SHAW, "the encoding and other both replace mix"),
        (RANDOM, RANDOM, "the encoding and other both replace ids"),
        (STICK, SINK, "other and the encoding both change the softmax"),
    ],
)
def test_two_owners_of_one_hook_are_refused_in_a_sentence(base, modifier, conflict: str) -> None:
    with pytest.raises(UserError, match=rf"^{conflict}, and only one can: leave one"):
        EncodingSpec({**base, "modifiers": {"other": modifier}}).build(n_layers=2)


@pytest.mark.parametrize("base", [ROPE, SHAW, LEARNED])
def test_modifiers_change_no_name_in_the_state(base) -> None:
    plain = EncodingSpec(base).build(n_layers=2)
    modifiers = {"logn": LOGN, "sliding_window": WINDOW, "randomized": RANDOM}
    modified = EncodingSpec({**base, "modifiers": modifiers}).build(n_layers=2)
    modified.load_state_dict(plain.state_dict(), strict=True)
    assert list(modified.state_dict()) == list(plain.state_dict())


def test_a_part_that_is_per_layer_has_parameters_of_its_own_in_each() -> None:
    shaw = EncodingSpec({**SHAW, "modifiers": {"logn": LOGN}}).build(n_layers=3)
    assert len(list(shaw.parameters())) == 2 * 3
    t5 = {"name": "t5", "class": f"{MODULE}bias.t5:T5", "d_model": 8, "n_heads": HEADS}
    shared = EncodingSpec(t5).build(n_layers=3)
    assert shared.layer(0) is shared.layer(2)
