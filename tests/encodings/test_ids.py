"""pose, shape, cape, randomized and bipe: which position ids the tokens get."""

import math

import pytest
import torch
from support.reference_inputs import near
from torch import Tensor

from pe_bench.config.compose import compose
from pe_bench.encodings.base import PositionalEncoding
from pe_bench.encodings.ids.bipe import BiPE
from pe_bench.encodings.ids.cape import CAPE
from pe_bench.encodings.ids.pose import PoSE
from pe_bench.encodings.ids.randomized import Randomized
from pe_bench.encodings.ids.shape import SHAPE
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError


def drawn(
    encoding: PositionalEncoding, tokens: int = 16, seed: int = 0, batch: int = 3, train: bool = True
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return encoding.ids(torch.zeros(batch, tokens, dtype=torch.long), train=train, generator=generator)


@pytest.mark.parametrize("encoding", [PoSE(64), SHAPE(40), CAPE()])
def test_ids_are_redefined_in_training_only_and_follow_the_generator(encoding: PositionalEncoding) -> None:
    assert torch.equal(drawn(encoding, train=False), torch.arange(16))
    assert not torch.equal(drawn(encoding, seed=1), drawn(encoding, seed=2))
    assert len(drawn(encoding, batch=200).double().unique(dim=0)) > 30, "each sequence has a draw of its own"


def test_pose_starts_at_zero_rises_and_has_one_gap_at_most() -> None:
    many = drawn(PoSE(64), batch=3_000)
    steps = many.diff(dim=-1)
    assert (many[:, 0] == 0).all() and (steps >= 1).all() and ((steps > 1).sum(-1) <= 1).all()
    assert many.max() == 63, "the largest distance is seen, and none larger"
    # The first chunk has 1 .. 8 of 16 tokens, the gap is 0 .. 48.
    gaps = steps[(steps > 1).any(-1)]
    assert set((gaps > 1).long().argmax(-1).tolist()) == set(range(8))
    assert set((steps.sum(-1) - 15).tolist()) == set(range(49))


def test_cape_augments_within_its_bounds() -> None:
    many = drawn(CAPE(), batch=4_000).double()
    assert drawn(CAPE()).dtype == torch.float32
    assert (many.diff(dim=-1) >= 0).all(), "tokens keep their order"
    assert many[:, 0].abs().max() <= 5.5 * 1.03 + 1e-5
    assert many[:, 0].min() < -4.5 and many[:, 0].max() > 4.5
    shifted = drawn(CAPE(5.0, 0.0, 1.0), batch=4_000).double() - torch.arange(16)
    assert (shifted.amax(-1) - shifted.amin(-1)).max() < 1e-5, "one shift a sequence"
    assert abs(float(shifted[:, 0].std()) - 5 / math.sqrt(3)) < 0.1
    local = drawn(CAPE(0.0, 0.5, 1.0), batch=4_000).double() - torch.arange(16)
    assert (local.std(-1) > 0.05).all(), "each token has a shift of its own"
    assert local.abs().max() <= 0.5 and abs(float(local.std()) - 0.5 / math.sqrt(3)) < 0.01
    scale = drawn(CAPE(0.0, 0.0, 2.0), batch=4_000).double()[:, 15] / 15
    assert scale.min() >= 0.5 - 1e-6 and scale.max() <= 2 + 1e-6
    assert abs(float(scale.log().mean())) < 0.03
    assert abs(float(scale.log().std()) - math.log(2) / math.sqrt(3)) < 0.02


@pytest.mark.parametrize("encoding", [PoSE(16), SHAPE(0), CAPE(0.0, 0.0, 1.0)])
def test_ids_at_the_end_of_their_range_are_those_of_the_inner_encoding(encoding: PositionalEncoding) -> None:
    assert drawn(encoding).tolist() == [[*range(16)]] * 3


def test_randomized_ids_have_the_means_of_order_statistics_and_others_where_told() -> None:
    expected = [(k + 1) * 65 / 9 - 1 for k in range(8)]
    draws = [drawn(Randomized(64), 8, seed, 1) for seed in range(2_000)]
    assert near(torch.stack(draws).double().mean(0).flatten(), expected, 0.8)
    for mode, scored in (("arange", [*range(8)]), ("even", [0, 9, 18, 27, 36, 45, 54, 63])):
        encoding = Randomized(64, mode)
        assert drawn(encoding, 8, train=False).flatten()[:8].tolist() == scored
        assert torch.equal(drawn(encoding, 8), drawn(Randomized(64), 8, train=False))


def test_bipe_separators_are_the_ends_of_tokens_text() -> None:
    encoding = BiPE(6, 4, [".", "END"])
    encoding.read_vocabulary(["a", "a.", ". ", ".a", "\n", "THE END", "."])
    assert encoding.is_separator is not None
    assert encoding.is_separator.nonzero().flatten().tolist() == [1, 5, 6]
    with pytest.raises(UserError, match=r"none of 3 tokens .*separators=\['!'\]"):
        BiPE(6, 4, ["!"]).read_vocabulary(["a", "b", "c"])


def test_bipe_gives_segment_numbers_to_the_encoding_under_it() -> None:
    overrides = ["model.d_model=8", "model.n_heads=2", "train.length=16"]
    config = compose(["encoding=rope", "modifier=[bipe]", *overrides])["encoding"]
    encoding = EncodingSpec(config).build(n_layers=2, vocabulary=[*"abcdefghi", ".", "\n"])
    tokens = torch.tensor([[0, 9, 3, 3]])  # a . d d
    ids = encoding.ids(tokens, train=True, generator=None)
    assert ids.tolist() == [[0, 0, 1, 1]]
    [table] = encoding.parameters()
    assert torch.equal(encoding.embed(torch.zeros(1, 4, 8), ids, tokens)[0], table[[0, 1, 0, 1]])


def test_real_randomized_ids_are_sorted_uniform_draws_and_have_no_longest_text() -> None:
    encoding = Randomized(64, real=True)
    expected = [64 * (k + 1) / 9 for k in range(8)]  # of order statistics
    draws = [drawn(encoding, 8, seed, 1) for seed in range(2_000)]
    assert near(torch.stack(draws).double().mean(0).flatten(), expected, 0.8)
    longest = drawn(encoding, 1_000, train=False).flatten()
    assert longest.dtype == torch.float32 and longest.min() >= 0 and longest.max() <= 64
    assert longest.diff().min() >= 0 and longest.round().unique().numel() == 65
    even = drawn(Randomized(64, "even", real=True), 8, train=False)
    assert near(even.flatten(), [9.0 * k for k in range(8)], 2e-3)
