"""What `explain --by layer` measures, against closed forms."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Command, only_run
from support.hf_models import ARCHITECTURES, write_hf_model
from torch import Tensor

import pe_bench
from pe_bench.commands.evaluate import Evaluation
from pe_bench.commands.explain import observe
from pe_bench.commands.explain.effects import Effect, Place
from pe_bench.commands.explain.explain import load_bench
from pe_bench.commands.explain.measures import BAND_TEXTS, LayerMeasure, MeasureCollector
from pe_bench.commands.explain.observe import ObservedLayer, Observer, QueryBlock, observed_model
from pe_bench.commands.explain.picture import draw_layers
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.compose import leaves_of, stack
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.recurrent.retention import Retention
from pe_bench.encodings.rotary.partial_rope import PartialRoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.model.attention import attention
from pe_bench.report.statistics import Interval

TOKENS, HEADS, WIDTH, TRAINED = 40, 2, 8, 16


class Previous(LayerEncoding):
    """Every head reads the token before."""

    def distance_bias(self, distance: Tensor) -> Tensor:
        return 1e4 * (distance == 1).float().expand(HEADS, -1)


def random_heads() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, TOKENS, WIDTH, generator=generator) for _ in range(3)]


def measures(
    layer: LayerEncoding, *, equal: bool = False, length: int = TOKENS, queries: range | None = None
) -> dict[str, np.ndarray]:
    """Return the numbers of the last query, or of `queries`, for random or for equal contents."""
    q, k, v = (torch.ones_like(x) if equal else x for x in random_heads())
    queries = queries or range(length - 1, length)
    measuring = MeasureCollector(TRAINED, length, queries)
    with torch.no_grad():
        x = torch.zeros(1, length, 1)
        q, k, v = (each[:, :, :length] for each in (q, k, v))
        attention(ObservedLayer(leaves_of(layer), 0, measuring), x, q, k, v, torch.arange(length))
    return {name: values for (_, name), values in measuring.target_values(len(queries)).items()}


def test_equal_logits_have_the_entropy_of_all_keys_and_the_mean_distance() -> None:
    found = measures(NoPE(), equal=True)
    assert found["entropy"] == pytest.approx(1)
    assert found["distance"] == pytest.approx((TOKENS - 1) / 2)
    assert found["distance without first"] == pytest.approx((TOKENS - 5) / 2)
    assert found["first token"] == pytest.approx(1 / TOKENS)
    assert found["first four"] == pytest.approx(4 / TOKENS)
    assert found["far mass"] == pytest.approx((TOKENS - TRAINED) / TOKENS)
    assert found["logit range"] == pytest.approx(0)


def test_a_penalty_on_the_distance_has_its_closed_form() -> None:
    alibi = ALiBi(HEADS)
    found = measures(alibi, equal=True)
    slopes = -alibi.distance_bias(torch.ones(1)).flatten().double()
    distance = torch.arange(TOKENS, dtype=torch.float64)
    ratios = (-slopes).exp()
    sums = (1 - ratios**TOKENS) / (1 - ratios)
    weights = ratios[:, None] ** distance / sums[:, None]
    mean = (weights * distance).sum(-1)
    assert found["distance"] == pytest.approx(float(mean.mean()))
    # The entropy of geometric weights is ln(sum) + slope times the mean distance.
    assert found["entropy"] == pytest.approx(float((sums.log() + slopes * mean).mean()) / math.log(TOKENS))
    assert found["far mass"] == pytest.approx(float(weights[:, TRAINED:].sum(-1).mean()))
    assert found["largest far"] == 0
    assert found["logit range"] == pytest.approx(float(slopes.mean()) * (TOKENS // 2))


def test_a_head_that_reads_the_token_before_has_no_entropy_and_distance_1() -> None:
    found = measures(Previous(), queries=range(20, 30))
    assert found["entropy"] == pytest.approx(0) and found["distance"] == pytest.approx(1)
    assert not found["far mass"].any() and not found["largest far"].any()


def test_a_null_logit_counts_as_one_more_key() -> None:
    sink = Sink(HEADS)
    with torch.no_grad():
        found = measures(stack([NoPE(), sink]), equal=True)
        null = sink.null_logit(None)  # pyright: ignore[reportArgumentType]
    assert null is not None and bool((null == 0).all()), "an untrained sink has the logit 0"
    score = WIDTH / math.sqrt(WIDTH)
    share = TOKENS * math.exp(score) / (TOKENS * math.exp(score) + 1)
    entropy = -share * math.log(share / TOKENS) - (1 - share) * math.log(1 - share)
    assert found["entropy"] == pytest.approx(entropy / math.log(TOKENS))
    assert found["distance"] == pytest.approx((TOKENS - 1) / 2)


class Kept(Observer):
    """Keeps the logits that each query reads in the mean, and where the largest is."""

    def see_softmax(self, number: int, blocks) -> None:
        blocks = list(blocks)
        self.read = torch.cat([(block.weights * block.logits).sum(-1) for block in blocks], -1).mean(1)
        self.blocks: list[QueryBlock] = blocks


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_bands_add_up_to_the_logit_and_their_energies_to_1(layout) -> None:
    rope = RoPE(WIDTH, base=100, layout=layout)
    found = measures(rope, queries=range(30, TOKENS))
    kept = Kept(range(30, TOKENS))
    q, k, v = random_heads()
    with torch.no_grad():
        attention(ObservedLayer([rope], 0, kept), torch.zeros(1, TOKENS, 1), q, k, v, torch.arange(TOKENS))
    whole = sum(found[f"logit {band}"] for band in BAND_TEXTS)
    assert np.allclose(whole, kept.read[0].numpy(), atol=1e-5)
    assert np.ptp(found[f"logit {BAND_TEXTS[0]}"]) > 0.01
    energy = sum(found[f"energy {band}"] for band in BAND_TEXTS)
    assert np.allclose(energy, 1)
    partial = measures(PartialRoPE(WIDTH, fraction=0.5))
    energy = sum(float(partial[f"energy {band}"][0]) for band in BAND_TEXTS)
    assert 0.2 < energy < 0.8, "features that are not rotated have the rest"


def test_order_is_kept_where_positions_add_the_same_to_all_keys() -> None:
    assert measures(ALiBi(HEADS))["order kept"] == 1
    moved = measures(RoPE(WIDTH), queries=range(20, TOKENS))["order kept"]
    assert 0.5 < moved.mean() < 0.95
    within = measures(RoPE(WIDTH), length=TRAINED)["order kept"]
    assert within == 1, "no query is moved at the training length"
    assert "order kept" not in measures(NoPE())


def test_a_layer_without_softmax_has_half_lives_and_the_norm_of_its_state() -> None:
    found = measures(Retention(), equal=True)
    decays = [1 - 2.0 ** (-5 - head) for head in range(HEADS)]
    half_lives = [math.log(2) / -math.log(decay) for decay in decays]
    assert found["half-life"] == pytest.approx(min(half_lives)), "the lower of two medians"
    # Each token adds a matrix of ones.
    norms = [WIDTH * (1 - decay**TOKENS) / (1 - decay) for decay in decays]
    assert found["state norm"] == pytest.approx(sum(norms) / HEADS)
    assert set(found) == {"half-life", "state norm"}


def test_small_blocks_measure_the_same_in_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # The window of the scaling is the whole text: a pair is in another band with the factor of a part.
    layers = (RoPE(WIDTH), RopePI(WIDTH, TRAINED, base=75))
    wholes = [measures(layer, queries=range(20, TOKENS)) for layer in layers]
    monkeypatch.setattr(observe, "REFERENCE_ELEMENTS", 3 * HEADS * TOKENS)
    for layer, whole in zip(layers, wholes, strict=True):
        parts = measures(layer, queries=range(20, TOKENS))
        for name in whole:
            assert np.allclose(parts[name], whole[name], atol=1e-6), name
    kept = Kept(range(20, TOKENS))
    q, k, v = random_heads()
    attention(ObservedLayer([RoPE(WIDTH)], 0, kept), torch.zeros(1, TOKENS, 1), q, k, v, torch.arange(TOKENS))
    assert [len(block.queries.index) for block in kept.blocks] == [3] * 6 + [2]


@pytest.mark.parametrize("encoding", ["rope", "t5", "kimi_linear", "path_attention"])
def test_a_watched_model_has_the_same_scores(encoding: str, begin: Command, folder: Path) -> None:
    begin(f"encoding={encoding}", "model.n_layers=4")
    bench = load_bench(only_run(folder), Evaluation(results_dir=folder / "results", targets=6))
    model = bench.job.model
    watching = observed_model(model, MeasureCollector(16, 64, range(55, 63)))
    plan = bench.plans[64]
    plain, seen = (bench.score(each, plan).nll for each in (model, watching))
    assert np.allclose(plain, seen, atol=1e-5)


def test_a_hugging_face_layer_shows_which_keys_its_mask_hides(folder: Path) -> None:
    write_hf_model(folder / "mistral", "mistral")
    keys = ("data=files", f"data.path={folder / 'corpus'}")
    request = Evaluation(lengths=[64], targets=6, overrides=keys, results_dir=folder / "results")
    bench = load_bench(f"hf:{folder / 'mistral'}", request)
    window = ARCHITECTURES["mistral"]["sliding_window"]
    visible: list[int] = []

    class Hidden(Observer):
        def see_softmax(self, number: int, blocks) -> None:
            visible.extend(int(block.visible.sum(-1).max()) for block in blocks)

    plan = bench.plans[64]
    bench.score(observed_model(bench.job.model, Hidden(observe.target_queries(plan))), plan)
    assert visible and max(visible) == window < 64


def test_measures_are_in_the_table_and_in_all_data(begin: Command, command: Command, folder: Path) -> None:
    begin("encoding=kimi_linear", "model.n_layers=4")
    arguments = ("explain", "kimi", "--lengths", "64", "--targets", "6", "--by", "layer")
    there = ("--results-dir", str(folder / "results"))
    outcome = command(*arguments, *there)
    assert outcome.code == 0, outcome.err
    assert "what each layer reads" in outcome.out and "half-life" in outcome.out
    assert outcome.out.count("no softmax (layer 0, 1, 2)") >= 1
    assert max(map(len, outcome.out.splitlines())) <= 100
    printed = command(*arguments, *there, "--csv", "-")
    rows = [row for row in csv.DictReader(io.StringIO(printed.out)) if row["measure"]]
    found = pe_bench.explain("kimi", 64, by="layer", targets=6, results_dir=folder / "results")
    of_layer = [row for row in rows if (row["measure"], row["layers"]) == ("far mass", "3")]
    assert [row["length"] for row in of_layer] == ["16", "64"]
    assert float(of_layer[0]["mean"]) == 0 and float(of_layer[1]["mean"]) > 0.1
    measured = [measure for measure in found.measures if measure.mean is not None]
    assert [float(row["mean"]) for row in rows if row["mean"]] == [measure.mean for measure in measured]
    assert all(measure.change is not None for measure in measured if measure.length == 64)
    drawn = folder / "layers.svg"
    assert command(*arguments[:-2], *there, "--plot", str(drawn)).code == 0
    assert "layer 3" in drawn.read_text() and "no softmax" in drawn.read_text()


def test_measures_at_the_training_length_alone_are_drawn_without_a_warning(tmp_path: Path) -> None:
    measures = [LayerMeasure("entropy", 0, 16, 0.5), LayerMeasure("entropy", 1, 16, reason="no softmax")]
    draw_layers(tmp_path / "one.svg", "learned", [], [], measures)
    assert "layer 1" in (tmp_path / "one.svg").read_text()


def test_the_quarters_of_a_deep_model_are_drawn_above_its_layers(tmp_path: Path) -> None:
    share = Interval(0.5, 0.4, 0.6, seeds=1, documents=2)
    whole = Place(tuple(range(30)), is_all=True)
    quarters = [Place(tuple(range(8))), Place(tuple(range(8, 15)))]
    places = (whole, *quarters, Place((8,)), Place((9,)))
    effects = [Effect("cut", "", place, 64, share, share) for place in places]
    draw_layers(tmp_path / "deep.svg", "deep", [], effects, [])
    drawn = (tmp_path / "deep.svg").read_text()
    titles = ["all layers", "layers 0-7", "layers 8-14", "layer 8", "layer 9"]
    assert [title for title in titles if f">{title}<" in drawn or f"<!-- {title} -->" in drawn] == titles
    assert "need not be a cause" not in drawn


def test_a_model_that_has_not_learned_is_explained_with_a_warning(
    begin: Command, command: Command, folder: Path
) -> None:
    begin("encoding=rope", "train.lr=1e-7")
    there = ("--targets", "6", "--lengths", "64", "--results-dir", str(folder / "results"))
    outcome = command("explain", "rope", *there)
    said = "warning: rope has learned nothing: at the training length it is no better than token frequencies"
    assert said in " ".join(outcome.out.split())
    document = json.loads(command("explain", "rope", *there, "--json").out)
    assert f"warning: {document['explanation']['warning']}".startswith(said)
    begin("encoding=nope", "train.steps=60", "train.lr=0.02")
    assert "warning" not in command("explain", "nope", *there).out
