"""The decoder: its size, its arithmetic, and a start that no encoding changes."""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support.encodings import ONE_OF_A_KIND, one_of_a_kind
from torch import Tensor

from pe_bench.config.compose import compose_config
from pe_bench.config.groups import config_dir
from pe_bench.config.schema import Config, ModelConfig
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.model.decoder import Decoder, build_decoder, derive_seed

ENCODINGS = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
VOCABULARY = ByteTokenizer().vocabulary
BYTES = len(VOCABULARY)
# No two sizes are equal, so that none can stand for another.
SMALL = ModelConfig(d_model=24, n_layers=3, n_heads=4, n_kv_heads=4, d_head=10, d_ff=36)


@cache
def composed(*overrides: str) -> Config:
    return compose_config(overrides)


def decoder(size: ModelConfig, name: str) -> Decoder:
    """In float64, so that what should not matter does not."""
    keys = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")
    config = composed(f"encoding={name}", *[f"model.{key}={getattr(size, key)}" for key in keys]).encoding
    torch.manual_seed(0)
    encoding = EncodingSpec(config).with_examples().build(size.n_layers, VOCABULARY)
    return Decoder(size, 11, encoding, torch.Generator().manual_seed(1)).double().requires_grad_(False)


def tokens_of(length: int, batch: int = 2, vocab_size: int = 11) -> Tensor:
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(2))


def hidden(model: Decoder, tokens_BT: Tensor) -> Tensor:
    ids = model.encoding.ids(tokens_BT, train=False, generator=torch.Generator().manual_seed(3))
    return model.hidden(tokens_BT, ids)


def rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


def same(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=0, atol=1e-12)


def by_hand(model: Decoder, size: ModelConfig, tokens_BT: Tensor) -> Tensor:
    """A decoder without positions, written from its equations."""
    weights = model.state_dict()

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]

    def heads(x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, size.d_head).transpose(1, 2)

    x = weights["embedding.weight"][tokens_BT] * math.sqrt(size.d_model)
    for number in range(size.n_layers):
        layer = f"blocks.{number}"
        matrix = {name: weights[f"{layer}.{name}.weight"] for name in MATRICES}
        normed = norm(x, f"{layer}.attention_norm")
        q, k, v = (heads(normed @ matrix[f"attention.{one}"].T) for one in ("query", "key", "value"))
        if size.qk_norm:
            q, k = norm(q, f"{layer}.attention.query_norm"), norm(k, f"{layer}.attention.key_norm")
        scores = q @ k.transpose(-1, -2) / math.sqrt(size.d_head)
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        x = x + mixed.transpose(1, 2).reshape(*x.shape[:2], -1) @ matrix["attention.output"].T
        normed = norm(x, f"{layer}.feedforward_norm")
        gate, up = normed @ matrix["feedforward.gate"].T, normed @ matrix["feedforward.up"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ matrix["feedforward.down"].T
    return norm(x, "norm")


MATRICES = (
    *(f"attention.{name}" for name in ("query", "key", "value", "output")),
    *(f"feedforward.{name}" for name in ("gate", "up", "down")),
)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_the_decoder_computes_its_equations(qk_norm: bool) -> None:
    size = replace(SMALL, qk_norm=qk_norm)
    model = decoder(size, "nope")
    assert model.output_weight is model.embedding.weight
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # ones would hide a norm that is left out
            parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    tokens_BT = tokens_of(9)
    assert same(hidden(model, tokens_BT), by_hand(model, size, tokens_BT))


@pytest.mark.parametrize("name", ["rope", "shaw"])
def test_grouped_query_attention_is_full_attention_with_repeated_weights(name: str) -> None:
    grouped, full = decoder(replace(SMALL, n_kv_heads=2), name), decoder(SMALL, name)
    weights = grouped.state_dict()
    for key in weights:
        if key.endswith(("attention.key.weight", "attention.value.weight")):
            heads = weights[key].unflatten(0, (2, SMALL.d_head))
            weights[key] = heads.repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(weights)
    tokens_BT = tokens_of(9)
    assert same(hidden(grouped, tokens_BT), hidden(full, tokens_BT))


@pytest.mark.parametrize("name", one_of_a_kind(ENCODINGS, (*ONE_OF_A_KIND, "bipe")))
@torch.no_grad()
def test_the_last_tokens_alone_get_what_they_get_among_all(name: str) -> None:
    """So do windows that differ in their ends alone."""
    more = ["encoding.long_factors=[1,1,1,1,1,1,1,1,2,2,2,2,2,2,2,2]"] if name == "longrope" else []
    modifier = f"modifier=[{'logn' if name == 'rope' else ''}]"
    config = composed(f"encoding={name}", modifier, "model.n_layers=2", "model.n_kv_heads=2", *more)
    model = build_decoder(config, VOCABULARY).double().eval()

    def ids_of(tokens_BT: Tensor) -> Tensor:
        return model.encoding.ids(tokens_BT, train=False, generator=torch.Generator().manual_seed(1))

    for tokens, first, window in ((77, 60, None), (97, 96, None), (110, 93, 48)):
        tokens_BT = tokens_of(tokens, vocab_size=BYTES)
        ids = ids_of(tokens_BT)
        last_BTD = model.hidden(tokens_BT, ids, window, first)
        assert last_BTD.shape[1] == tokens - first
        assert (model.hidden(tokens_BT, ids, window)[:, first:] - last_BTD).abs().max() < 1e-10
    tokens_BCT = tokens_of(77, vocab_size=BYTES)[:, None].repeat(1, 3, 1)
    tokens_BCT[..., 61:] = tokens_of(16, batch=6, vocab_size=BYTES).view(2, 3, 16)
    flat = tokens_BCT.flatten(0, 1)
    ids = ids_of(flat)
    assert (model.hidden_of_ends(tokens_BCT, ids, 60) - model.hidden(flat, ids, None, 60)).abs().max() < 1e-10


@torch.no_grad()
def test_windows_with_positions_of_their_own_keep_them_at_their_ends() -> None:
    config = composed("encoding=rope", "model.n_layers=2")
    model = build_decoder(config, VOCABULARY).double().eval()
    tokens_BCT = tokens_of(30, batch=6, vocab_size=BYTES).view(2, 3, 30)
    ids = torch.randint(0, 200, (6, 30), generator=torch.Generator().manual_seed(1)).sort(-1).values
    whole = model.hidden(tokens_BCT.flatten(0, 1), ids, None, 20)
    assert (model.hidden_of_ends(tokens_BCT, ids, 20) - whole).abs().max() < 1e-10


@cache
def started(name: str) -> Decoder:
    config = composed(f"encoding={name}", "train.length=64", "model.n_layers=2")
    return build_decoder(config, VOCABULARY, EncodingSpec(config.encoding).with_examples())


def own_weights(model: Decoder) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("encoding.")}


@pytest.mark.parametrize("name", one_of_a_kind(ENCODINGS, (*ONE_OF_A_KIND, "sinusoidal", "pose")))
def test_no_encoding_changes_the_start_of_the_decoder_nor_the_size_of_its_tokens(name: str) -> None:
    """Added positions may not drown the tokens: then the input's scale is compared, not encodings."""
    torch.testing.assert_close(own_weights(started(name)), own_weights(started("nope")), rtol=0, atol=0)
    model, inputs = started(name), []
    hook = model.blocks[0].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    last_BTD = hidden(model, tokens_of(64, batch=8, vocab_size=BYTES))
    hook.remove()
    # Sinusoids are sines and cosines: they add 1/2 to a mean square of 1.
    assert 0.95 < rms(inputs[0]) < 1.27 and 0.9 < rms(last_BTD) < 1.1


def test_every_weight_starts_at_the_scale_of_what_it_sums() -> None:
    """What is added to the residual stream is also divided by sqrt(2 layers)."""
    size = replace(SMALL, d_model=160, d_head=60, d_ff=400, n_kv_heads=2, tie_embeddings=False)
    encoding = EncodingSpec(composed("encoding=nope").encoding).build(size.n_layers)
    model = Decoder(size, BYTES, encoding, torch.Generator().manual_seed(1))
    into_residual = math.sqrt(2 * size.n_layers)
    deviations = dict.fromkeys(("query", "key", "value", "gate", "up", "embedding", "head"), 160**-0.5)
    deviations |= {"output": 240**-0.5 / into_residual, "down": 400**-0.5 / into_residual}
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            assert bool((weight == 1).all()), name
            continue
        deviation, count = deviations[name.split(".")[-2]], weight.numel()
        assert rms(weight) == pytest.approx(deviation, rel=4 / math.sqrt(2 * count)), name
        assert abs(float(weight.detach().mean())) < 4 * deviation / math.sqrt(count), name
        share = float((weight.abs() > 2 * deviation).float().mean())
        assert share == pytest.approx(0.0455, abs=0.005), f"{name} is not normal"


def test_an_untied_head_has_weights_of_its_own_and_changes_no_other() -> None:
    tied, untied = decoder(SMALL, "nope"), decoder(replace(SMALL, tie_embeddings=False), "nope")
    assert not torch.equal(untied.output_weight, untied.embedding.weight)
    assert untied.parameter_count == tied.parameter_count + 11 * SMALL.d_model
    weights = untied.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in tied.state_dict().items())


def test_a_seed_decides_the_weights_and_moves_no_stream_but_its_own() -> None:
    config = composed("encoding=learned", "train.length=64")
    before = torch.random.get_rng_state()
    model = build_decoder(config, VOCABULARY)
    assert torch.equal(torch.random.get_rng_state(), before), "PyTorch's own stream is left as it was"
    torch.rand(7)
    again, other = (build_decoder(replace(config, seed=seed), VOCABULARY) for seed in (config.seed, 1))
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    [table] = model.encoding.parameters()
    [other_table] = other.encoding.parameters()
    assert not torch.equal(table, other_table)
    assert not torch.equal(model.embedding.weight, other.embedding.weight)
    tokens = model.embedding.weight[: len(table)]
    correlation = torch.corrcoef(torch.stack([table, tokens]).detach().flatten(1))[0, 1]
    assert abs(float(correlation)) < 0.05, "positions are not the embeddings of tokens again"


@pytest.mark.parametrize("file", sorted((config_dir() / "model").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_model_has_the_parameters_that_its_file_says(file: Path) -> None:
    [said] = re.findall(r"([\d.]+) million parameters", file.read_text(encoding="utf-8"))
    config = composed(f"model={file.stem}", "encoding=nope")
    vocab_size = 50_257 if file.stem == "gpt2" else BYTES
    with torch.device("meta"):  # counts, and draws nothing
        encoding = EncodingSpec(config.encoding).build(config.model.n_layers)
        model = Decoder(config.model, vocab_size, encoding)
    decimals = len(said.partition(".")[2])
    assert round(model.parameter_count / 1e6, decimals) == float(said)


def test_streams_are_the_ones_that_runs_were_trained_with_and_all_differ() -> None:
    golden = "a stream has moved: every run that was trained would come out differently"
    assert derive_seed(0, "decoder") == 767_919_262_695_163_672, golden
    assert derive_seed(7, "ids", 250) == 3_840_997_423_740_020_940, golden
    seeds = {derive_seed(seed, name, step) for seed in range(20) for name in ("a", "b") for step in range(20)}
    assert len(seeds) == 20 * 2 * 20 and 2**62 < max(seeds) < 2**63, "63 bits without a sign"


def test_windows_of_a_changed_model_add_up_and_the_later_one_of_a_layer_counts() -> None:
    model, tokens_BT = decoder(SMALL, "rope"), tokens_of(24)
    together = hidden(model.changed({}, {0: 4, 1: 8}), tokens_BT)
    one_by_one = model.changed({}, {0: 4}).changed({}, {1: 8})
    assert same(hidden(one_by_one, tokens_BT), together)
    for alone in ({}, {0: 4}, {1: 8}):
        assert not same(hidden(model.changed({}, alone), tokens_BT), together), alone
    replaced = model.changed({}, {0: 2, 1: 8}).changed({}, {0: 4})
    assert same(hidden(replaced, tokens_BT), together)
