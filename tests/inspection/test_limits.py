"""What limits a machine is positive and finite; operations are counted as the hardware does them."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pe_bench.config.schema import ModelConfig
from pe_bench.encodings.base import Layers
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.nope import NoPE
from pe_bench.inspection.speed.limits import (
    matmul_rate,
    matrix_parameters,
    memory_bandwidth,
    scoring_flops,
    training_flops,
)
from pe_bench.model.attention import reference_attention
from pe_bench.model.decoder import Decoder
from pe_bench.native.build import Kernel

CPU = torch.device("cpu")
VOCABULARY = 11


def decoder(**options: object) -> Decoder:
    config = ModelConfig(d_model=16, n_layers=3, n_heads=2, n_kv_heads=2, d_head=8, d_ff=24, **options)
    return Decoder(config, VOCABULARY, Composition(Layers([NoPE()]), {}, config.n_layers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_of_products_is_a_positive_number(dtype: torch.dtype) -> None:
    rate = matmul_rate(CPU, dtype, sides=(16, 64))
    assert 0 < rate < math.inf


def test_the_bandwidth_is_a_positive_number() -> None:
    assert 0 < memory_bandwidth(CPU, size=2**20) < math.inf


def test_the_best_size_counts(monkeypatch) -> None:
    seconds = iter([0.01, 0.04])
    monkeypatch.setattr("pe_bench.inspection.speed.limits._median_seconds", lambda run, device: next(seconds))
    assert matmul_rate(CPU, torch.float32, sides=(2, 4)) == 2 * 4**3 / 0.04
    monkeypatch.setattr("pe_bench.inspection.speed.limits._median_seconds", lambda run, device: 0.5)
    assert memory_bandwidth(CPU, size=100) == 400


def test_matrices_that_would_take_long_are_left_out(monkeypatch) -> None:
    monkeypatch.setattr("pe_bench.inspection.speed.limits._median_seconds", lambda run, device: 1.0)
    assert matmul_rate(CPU, torch.float32, sides=(2, 4)) == 2 * 2**3


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_are_the_linear_layers_and_the_output(tied: bool) -> None:
    model = decoder(tie_embeddings=tied)
    layer = 4 * 16 * 16 + 3 * 16 * 24
    assert matrix_parameters(model, model.output_weight) == 3 * layer + VOCABULARY * 16


def test_operations_of_one_layer_by_hand() -> None:
    # Two tokens that see one and two keys: three pairs, each 2 * (8 + 8) operations in two products.
    assert 2 * scoring_flops(0, layers=1, attention_width=8, length=2) == 3 * 2 * (8 + 8)
    assert scoring_flops(100, layers=1, attention_width=0, length=2) == 200
    # The field's 6 N, and 12 L H K T for attention to every key, of which causal attention has half.
    assert training_flops(100, 5, 8, 1_023) == 6 * 100 + 12 * 5 * 8 * 512


@pytest.mark.parametrize("train", [False, True])
def test_operations_are_those_that_pytorch_counts(train: bool, monkeypatch) -> None:
    # Masked pairs are computed by the reference, and not counted here: (T + 1) / 2 keys of T.
    monkeypatch.setattr("pe_bench.model.decoder.attention", reference_of_all_keys)
    # Compiled layers add some products in place, and those PyTorch does not count.
    monkeypatch.setattr("pe_bench.native.layers.usable_layers", lambda: Kernel(None, "switched off"))
    model = decoder()
    tokens = torch.zeros(2, 9, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        hidden = model.hidden(tokens, torch.arange(9))
        # In training inputs have gradients too: the first layer's, which the embedding wants.
        logits = hidden @ model.output_weight.mT
        if train:
            logits.sum().backward()
    flops = training_flops if train else scoring_flops
    counted = flops(matrix_parameters(model, model.output_weight), 3, 16, 2 * 9 - 1)
    assert counter.get_total_flops() == 2 * 9 * counted


def reference_of_all_keys(*arguments: object) -> Tensor:
    """In one block of queries, so that all pairs are multiplied."""
    return reference_attention(*arguments, block=9)
