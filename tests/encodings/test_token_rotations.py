"""Wall attention, PaTH, FoPE and selective RoPE against their formulas, and what is fixed in them."""

import pytest
import torch

from pe_bench.config.compose import compose_config
from pe_bench.encodings.content.path_attention import CHUNK, DIRECTION, STRENGTH, Path
from pe_bench.encodings.content.wall import FORGOTTEN, Wall
from pe_bench.inspection.check.case import layer_inputs, worst
from pe_bench.inspection.speed import random_data
from pe_bench.model.attention.reference import project
from pe_bench.model.decoder import build_decoder
from pe_bench.training.trainer import Trainer

H, K, D, T = 4, 8, 32, 20  # those of `layer_inputs`


@torch.no_grad()
@pytest.mark.parametrize("strength", [0.1, 300.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 43])
def test_halves_of_blocks_are_the_formula_pair_by_pair(tokens: int, strength: float) -> None:
    torch.manual_seed(0)
    wall = Wall(D, H, K).double()
    wall.weight.mul_(strength)
    wall.intercept.zero_()
    x, q, k, _ = layer_inputs(tokens)
    queries, keys = project(wall, x, q, k, torch.arange(tokens))
    passed = keys.values[FORGOTTEN].mT
    between = (passed.unsqueeze(-2) - passed.unsqueeze(-3)).clamp(max=0)
    expected = torch.einsum("bhik,bhjk,bhijk->bhij", q, k, between.exp())
    assert worst(wall.scores(queries, keys, 1.0).tril(), expected.tril()) < 1e-13


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, CHUNK, 2 * CHUNK + 3])
def test_chunks_of_keys_are_the_recursion_token_by_token(tokens: int) -> None:
    torch.manual_seed(0)
    path = Path(D, H, K, rank=5).double()
    x, q, k, _ = layer_inputs(tokens)
    queries, keys = project(path, x, q, k, torch.arange(tokens))
    w, beta = keys.values[DIRECTION].mT, keys.values[STRENGTH].unsqueeze(-1)
    reflected, rows = torch.empty(*k.shape[:2], 0, K, dtype=torch.float64), []
    for t in range(tokens):
        along = (reflected * w[:, :, t : t + 1]).sum(-1, keepdim=True)
        reflected = reflected - beta[:, :, t : t + 1] * along * w[:, :, t : t + 1]
        reflected = torch.cat([reflected, k[:, :, t : t + 1]], -2)
        rows.append((q[:, :, t : t + 1] @ reflected.mT * K**-0.5).squeeze(-2))
    scores = path.scores(queries, keys, K**-0.5)
    assert max(worst(scores[:, :, t, : t + 1], row) for t, row in enumerate(rows)) < 1e-11


@pytest.mark.parametrize(("override", "learns"), [((), False), (("train.encoding_lr=1",), True)])
def test_series_learn_only_at_a_rate_that_is_given(override: tuple[str, ...], learns: bool) -> None:
    sizes = ("model.d_model=32", "model.n_layers=2", "model.n_heads=2", "model.d_ff=48")
    short = ("train.length=32", "train.batch_tokens=256", "train.warmup_steps=2")
    config = compose_config(["encoding=fope", *sizes, *short, *override])
    data = random_data(1_000)
    model = build_decoder(config, data.vocabulary)
    series = dict(model.encoding.named_parameters())
    before = {name: values.clone() for name, values in series.items()}
    Trainer(config, model, data, torch.device("cpu"), torch.float32).step(5, 0.0)
    assert [not torch.equal(series[name], before[name]) for name in series] == [learns] * 4
