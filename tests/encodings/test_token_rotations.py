"""Rotations that read the tokens, and wall attention, against their formulas, and what is fixed in them."""

import pytest
import torch

from pe_bench.config.compose import compose_config
from pe_bench.encodings.content.darope import DaRoPE
from pe_bench.encodings.content.path_attention import DIRECTION, KEYS_PER_CHUNK, STRENGTH, Path
from pe_bench.encodings.content.repo import POSITION, RePo
from pe_bench.encodings.content.wall import LOG_FORGET_KEY, Wall
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.errors import UserError
from pe_bench.inspection.check.case import largest_difference, layer_inputs
from pe_bench.inspection.speed import random_data
from pe_bench.model.attention.reference import make_sides
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
    queries, keys = make_sides(wall, x, q, k, torch.arange(tokens))
    passed = keys.values[LOG_FORGET_KEY].mT
    between = (passed.unsqueeze(-2) - passed.unsqueeze(-3)).clamp(max=0)
    expected = torch.einsum("bhik,bhjk,bhijk->bhij", q, k, between.exp())
    assert largest_difference(wall.scores(queries, keys, 1.0).tril(), expected.tril()) < 1e-13


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, KEYS_PER_CHUNK, 2 * KEYS_PER_CHUNK + 3])
def test_chunks_of_keys_are_the_recursion_token_by_token(tokens: int) -> None:
    torch.manual_seed(0)
    path = Path(D, H, K, rank=5).double()
    x, q, k, _ = layer_inputs(tokens)
    queries, keys = make_sides(path, x, q, k, torch.arange(tokens))
    w, beta = keys.values[DIRECTION].mT, keys.values[STRENGTH].unsqueeze(-1)
    reflected, rows = torch.empty(*k.shape[:2], 0, K, dtype=torch.float64), []
    for t in range(tokens):
        along = (reflected * w[:, :, t : t + 1]).sum(-1, keepdim=True)
        reflected = reflected - beta[:, :, t : t + 1] * along * w[:, :, t : t + 1]
        reflected = torch.cat([reflected, k[:, :, t : t + 1]], -2)
        rows.append((q[:, :, t : t + 1] @ reflected.mT * K**-0.5).squeeze(-2))
    scores = path.scores(queries, keys, K**-0.5)
    assert max(largest_difference(scores[:, :, t, : t + 1], row) for t, row in enumerate(rows)) < 1e-11


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


@torch.no_grad()
def test_darope_without_content_is_rope_within_its_training_length() -> None:
    darope, rope = DaRoPE(D, H, K, train_length=T).double(), RoPE(K).double()
    darope.weight.zero_()
    darope.alpha.fill_(1.0)
    x, q, k, _ = layer_inputs(T)
    sides = [make_sides(encoding, x, q, k, torch.arange(T)) for encoding in (darope, rope)]
    scores = [queries.x @ keys.x.mT for queries, keys in sides]
    assert largest_difference(*scores) < 1e-9


@torch.no_grad()
def test_coordinates_of_darope_stay_within_the_training_length_wherever_tokens_are() -> None:
    torch.manual_seed(0)
    darope = DaRoPE(D, H, K, train_length=T)
    x, q, k, _ = layer_inputs(3)
    _, keys = make_sides(darope, x, q, k, torch.tensor([-5, 1_000, 10**6]))
    coordinates = darope.coordinate(keys)
    assert coordinates.isfinite().all() and coordinates.min() >= 0 and coordinates.max() <= T
    assert (coordinates[..., 0] < coordinates[..., 1]).all(), "before all tokens and after them"


def test_darope_without_a_slow_pair_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="train_length=100 tokens, so this is rope: give an .*base above 10"):
        DaRoPE(D, H, 4, train_length=100, base=10.0)
    with pytest.raises(UserError, match="so this is rope: give a larger model.d_head"):
        DaRoPE(D, H, 2, train_length=100)


@torch.no_grad()
def test_repo_with_one_position_for_all_tokens_is_nope_and_its_first_layers_are_rope() -> None:
    repo = RePo(D, H, K, n_layers=16, base=10_000.0).double()
    x, q, k, _ = layer_inputs(T)
    learned = [*map(repo.layer, range(5, 16))]
    assert len({id(layer) for layer in learned}) == 11, "each layer has positions of its own"
    for parameter in repo.parameters():
        parameter.zero_()
    queries, keys = make_sides(learned[0], x, q, k, torch.arange(T))
    assert largest_difference(queries.x @ keys.x.mT, q @ k.mT) < 1e-12
    of_first, of_rope = (
        make_sides(layer, x, q, k, torch.arange(T)) for layer in (repo.layer(4), RoPE(K).double())
    )
    assert (
        largest_difference(of_first[0].x, of_rope[0].x) < 1e-12
        and largest_difference(of_first[1].x, of_rope[1].x) < 1e-12
    )


def test_positions_of_repo_are_near_zero_before_training_and_are_trained() -> None:
    torch.manual_seed(0)
    repo = RePo(D, H, K, n_layers=1)
    x = torch.randn(2, T, D)
    position = repo.layer(0).prepare(x)[POSITION]
    assert position.shape == (2, H, T) and 0 < position.abs().max() < 0.1
    _, q, k, _ = layer_inputs(T)
    queries, keys = make_sides(repo.layer(0), x, q.float(), k.float(), torch.arange(T))
    (queries.x @ keys.x.mT).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in repo.parameters())


def test_repo_without_a_layer_of_its_own_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="from_layer=4 leaves plain rope in all 4 layers .*at most 3"):
        RePo(D, H, K, n_layers=4, from_layer=4)
