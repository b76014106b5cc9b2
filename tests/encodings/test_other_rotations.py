"""Rotations by Fourier series and by angles read from the tokens: where they are RoPE, and what is fixed."""

import pytest
import torch
from support.encodings import turned_sides

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.encodings.content.selective_rope import ANGLES, SelectiveRoPE
from pe_bench.encodings.rotary.fope import FoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.inspection.check.case import layer_inputs
from pe_bench.inspection.check.result import worst
from pe_bench.inspection.passes import TrainingPass

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

H, K, D, T = 4, 8, 32, 20  # the first three are those of `layer_inputs`


@torch.no_grad()
def test_series_of_one_frequency_each_are_rope() -> None:
    _, q, k, _ = layer_inputs(T)
    position = torch.arange(T) + 3
    encoding = FoPE(H, K, train_length=10**6, gain=0.0).double()
    expected = turned_sides(RoPE(K).double(), q, k, position, position)
    assert all(
        map(lambda a, b: worst(a, b) < 1e-14, turned_sides(encoding, q, k, position, position), expected)
    )


@torch.no_grad()
def test_pairs_that_make_no_full_turn_keep_their_features_or_are_stretched_as_in_the_code() -> None:
    _, q, k, _ = layer_inputs(T)
    position = torch.arange(T)
    kept, stretched = (
        turned_sides(FoPE(H, K, 64, padded_sine=sine).double(), q, k, position, position)[0]
        for sine in (0.0, 1.0)
    )
    assert FoPE(H, K, 64).frequencies.tolist() == pytest.approx([1.0, 0.1])
    first, second = q[..., 2:4], q[..., 6:8]
    assert torch.equal(kept[..., 2:4], first) and torch.equal(kept[..., 6:8], second)
    assert worst(stretched[..., 2:4], first - second) == worst(stretched[..., 6:8], first + second) == 0


@pytest.mark.parametrize(("override", "learns"), [((), False), (("train.encoding_lr=1",), True)])
def test_series_learn_only_at_a_rate_that_is_given(override: tuple[str, ...], learns: bool) -> None:
    sizes = ("model.d_model=32", "model.n_layers=2", "model.n_heads=2", "model.d_ff=48")
    short = ("train.length=32", "train.batch_tokens=256", "train.warmup_steps=2")
    config = parse_config(compose(["encoding=fope", *sizes, *short, *override]))
    training = TrainingPass(config, EncodingSpec(config.encoding), config.train.length, torch.device("cpu"))
    series = dict(training.trainer.model.encoding.named_parameters())
    before = {name: values.clone() for name, values in series.items()}
    training.trainer.step(5, 0.0)
    assert [not torch.equal(series[name], before[name]) for name in series] == [learns] * 4


@torch.no_grad()
def test_equal_steps_of_the_angles_are_rope() -> None:
    _, q, k, _ = layer_inputs(T)
    position = torch.arange(T) + 3
    encoding = SelectiveRoPE(D, H, K, base=10_000.0).double()
    angles = position * encoding.frequencies.unsqueeze(-1).expand(2, H, -1, T)
    expected = turned_sides(RoPE(K).double(), q, k, position, position)
    found = turned_sides(encoding, q, k, position, position, {ANGLES: angles})
    assert all(map(lambda a, b: worst(a, b) < 1e-14, found, expected))
