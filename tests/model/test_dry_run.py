"""The dry run of a new model: what it lets pass, and what it says about the rest."""

import math

import pytest
import torch
from support.encodings import one_of_a_kind

from pe_bench.cli.completion import complete_word
from pe_bench.config.schema import Config
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings import LayerEncoding
from pe_bench.encodings.base import Layers
from pe_bench.encodings.compose import Composition
from pe_bench.errors import UserError
from pe_bench.inspection.resolve import resolve
from pe_bench.inspection.speed import with_examples
from pe_bench.model.checks import dry_run_training
from pe_bench.model.decoder import Decoder, build_decoder

NAMES = [argument.removeprefix("encoding=") for argument in complete_word("encoding=")]
SIZES = ("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24", "train.length=32")


class LogarithmOfZero(LayerEncoding):
    def distance_bias(self, distance):
        return -distance.log().expand(2, -1)


class Overflowing(LayerEncoding):
    """An encoding that returns finite queries and keys, whose products are not."""

    def transform(self, queries, keys):
        return 1e30 * queries.x, 1e30 * keys.x


def config_of(name: str, *arguments: str) -> Config:
    (subject,) = resolve([name, *SIZES, *arguments])
    return with_examples(subject).config


def decoder(encoding: LayerEncoding) -> Decoder:
    generator = torch.Generator().manual_seed(0)
    return Decoder(config_of("nope").model, 7, Composition(Layers([encoding]), {}, 2), generator)


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_every_encoding_passes_with_modifiers_and_without(name):
    for modifier in ("", "logn,sliding_window,temperature"):
        model = build_decoder(config_of(name, f"modifier=[{modifier}]"), ByteTokenizer().vocabulary)
        dry_run_training(model, 32, name)


def test_values_that_are_not_finite_are_the_encodings():
    message = (
        "the encoding gives values that are not finite in a window of 32 tokens: try `pe-bench check mine`"
    )
    for encoding in (LogarithmOfZero(), Overflowing()):
        with pytest.raises(UserError, match=f"^{message}"):
            dry_run_training(decoder(encoding), 32, "mine")


def test_weights_that_are_not_finite_are_not_the_encodings():
    model = decoder(LayerEncoding())
    with torch.no_grad():
        model.blocks[0].attention.query.weight[0, 0] = math.nan
    dry_run_training(model, 32)


def test_a_fault_of_pe_benchs_own_is_no_users_mistake(monkeypatch):
    def fault(*_):
        raise RuntimeError("a fault")

    model = decoder(LayerEncoding())
    monkeypatch.setattr(model, "layers", fault)
    with pytest.raises(RuntimeError, match="a fault"):
        dry_run_training(model, 32)
