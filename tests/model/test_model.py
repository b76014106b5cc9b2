"""The decoder: its size, its arithmetic, and a start that no encoding changes."""

import math
from dataclasses import replace
from functools import cache

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
    assert (model.ends(tokens_BCT, ids, 60) - model.hidden(flat, ids, None, 60)).abs().max() < 1e-10


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


def test_streams_are_the_ones_that_runs_were_trained_with_and_all_differ() -> None:
    golden = "a stream has moved: every run that was trained would come out differently"
    assert derive_seed(0, "decoder") == 767_919_262_695_163_672, golden
    assert derive_seed(7, "ids", 250) == 3_840_997_423_740_020_940, golden
    seeds = {derive_seed(seed, name, step) for seed in range(20) for name in ("a", "b") for step in range(20)}
    assert len(seeds) == 20 * 2 * 20 and 2**62 < max(seeds) < 2**63, "63 bits without a sign"
