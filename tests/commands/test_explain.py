"""`explain`: what changes of a trained model restore, and what the sentence says of it."""

import csv
import io
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Command, files_in, only_run

import pe_bench
from pe_bench.commands.evaluate import Evaluation
from pe_bench.commands.explain.bench import Bench
from pe_bench.commands.explain.changes import (
    ClampedDistances,
    CutInputPositions,
    NoInputPositions,
    changed_model,
    layer_changes,
    reach,
)
from pe_bench.commands.explain.effects import (
    Effect,
    Loss,
    Place,
    cause_sentence,
    effect_of,
    loss_of,
    restored_share,
)
from pe_bench.commands.explain.explain import load_bench, quarters
from pe_bench.commands.explain.explanation import Explanation, csv_text, read_csv_text
from pe_bench.config.groups import config_dir
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.compose import leaves_of
from pe_bench.encodings.content.gape import GAPE
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.logits.asentmax import ASEntmax
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.attention import attention
from pe_bench.model.decoder import Decoder, LanguageModel
from pe_bench.report.statistics import Interval, paired_interval
from pe_bench.scoring.protocols import batches as batches_of
from pe_bench.scoring.protocols import scores_of

HALF_SCORED = "data.validation_fraction=0.5"  # so that there are documents to fit on


def bench_of(folder: Path, targets: int = 6) -> Bench:
    return load_bench(only_run(folder), Evaluation(results_dir=folder / "results", targets=targets))


def explained(command: Command, folder: Path, *arguments: str):
    return command("explain", *arguments, "--results-dir", str(folder / "results"), "--targets", "6")


def test_changing_nothing_restores_nothing_and_a_window_in_all_layers_is_the_control(
    begin: Command, folder: Path
) -> None:
    begin("encoding=rope")
    bench = bench_of(folder)
    plain = bench.unchanged_levels(64)
    assert isinstance(plain, np.ndarray)
    unchanged = bench.job.model.changed({}, {})
    assert np.array_equal(bench.levels(unchanged, 64), plain)
    window = next(change for change in layer_changes(16) if change.name == "window")
    model = changed_model(bench.subject(64), window, range(2), is_all=True)
    assert not isinstance(model, str)
    control = replace(bench.plans[64], limit=16)
    nll = bench.score(bench.job.model, control).nll
    assert np.array_equal(bench.score(model, bench.plans[64]).nll, nll)
    assert not np.array_equal(bench.levels(model, 64), plain), "the window hides something"


def test_changes_for_longer_texts_change_nothing_at_the_training_length(begin: Command, folder: Path) -> None:
    begin("encoding=t5")
    bench = bench_of(folder)
    plain = bench.unchanged_levels(16)
    for change in layer_changes(16):
        model = changed_model(bench.subject(64), change, range(2), is_all=True)
        if change.acts_within or isinstance(model, str):
            continue
        assert np.allclose(bench.levels(model, 16), plain, atol=2e-6) or change.name == "cut", change.name


def test_the_model_that_is_changed_stays_what_it_is(begin: Command, folder: Path) -> None:
    begin("encoding=rope")
    bench = bench_of(folder)
    plain = bench.unchanged_levels(32)
    for change in layer_changes(16):
        model = changed_model(bench.subject(32), change, [1])
        if not isinstance(model, str):
            bench.levels(model, 32)
    assert np.array_equal(bench.levels(bench.job.model, 32), plain)


@pytest.mark.parametrize("encoding", ["rope", "t5", "randomized", "kimi_linear", "fox"])
def test_layers_below_a_change_are_computed_once_with_the_same_levels(
    encoding: str, begin: Command, folder: Path
) -> None:
    begin(f"encoding={encoding}", "model.n_layers=4")
    bench = bench_of(folder)
    passes: list[int] = []
    model = bench.job.model
    assert isinstance(model, Decoder)
    model.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    levels: list[tuple[LanguageModel, int, np.ndarray]] = []
    lengths = (64, 16, 64)
    for length, layer in product(lengths, (1, 3, 2)):
        for change in layer_changes(16):
            changed = changed_model(bench.subject(64), change, [layer])
            if not isinstance(changed, str):
                levels.append((changed, length, bench.levels(changed, length)))
    batches = len([*batches_of(bench.plans[64].windows, 4_096)]) + len(
        [*batches_of(bench.plans[16].windows, 4_096)]
    )
    assert levels and len(passes) <= 4 * batches, (
        "layer 0 runs again only for another length or a lower layer"
    )
    for changed, length, level in levels:
        plan = bench.plans[length]
        scored = bench.score(changed, plan)
        whole = scores_of(plan, bench.job.data.validation, scored.nll).by_cluster()[1]
        assert np.array_equal(level, whole)


def test_a_change_of_the_input_leaves_no_layer_to_share(begin: Command, folder: Path) -> None:
    begin("encoding=sinusoidal")
    model = bench_of(folder).job.model
    assert model.first_difference(model.changed({}, {})) == 2
    assert model.first_difference(model.changed({}, {1: 16})) == 1
    assert model.first_difference(model.changed({1: NoPE()}, {})) == 1
    assert model.first_difference(model.changed({}, {}, [NoInputPositions()])) == 0


def test_cut_distances_are_those_of_rerope() -> None:
    generator = torch.Generator().manual_seed(0)
    x, q, k, v = (torch.randn(1, 4, 40, 8, generator=generator, dtype=torch.float64) for _ in range(4))
    ids = torch.arange(40)
    with torch.no_grad():
        cut = attention(ClampedDistances([RoPE(8)], 5), x[:, 0], q, k, v, ids)
        rerope = attention(ReRoPE(8, train_length=9, window=5, log_n=False), x[:, 0], q, k, v, ids)
        assert torch.allclose(cut, rerope)
        beyond = attention(ClampedDistances([ALiBi(4)], 99), x[:, 0], q, k, v, ids)
        assert torch.allclose(beyond, attention(ALiBi(4), x[:, 0], q, k, v, ids))
        biased = attention(ClampedDistances([ALiBi(4)], 5), x[:, 0], q, k, v, ids)

        class Clipped(ALiBi):
            def distance_bias(self, distance: torch.Tensor) -> torch.Tensor:
                return super().distance_bias(distance.clamp(max=5))

        assert torch.allclose(biased, attention(Clipped(4), x[:, 0], q, k, v, ids))


def test_what_has_no_meaning_has_a_reason(begin: Command, folder: Path) -> None:
    begin("encoding=kimi_linear", "model.n_layers=4", HALF_SCORED)
    bench = bench_of(folder, targets=3)
    for change in layer_changes(16):
        model = changed_model(bench.subject(64), change, [0])
        is_off = change.name == "off"
        assert isinstance(model, str) is not is_off, change.name
        assert is_off or model == "no softmax"
    nope = {change.name: changed_model(bench.subject(64), change, [3]) for change in layer_changes(16)}
    assert nope["cut"] == nope["no positions"] == "no positions in its attention"
    assert nope["freeze slow"] == "no rotation of pairs"
    assert not isinstance(nope["window"], str) and not isinstance(nope["fitted"], str)


def test_freezing_pairs_keeps_the_penalty_of_a_rotary_layer(begin: Command, folder: Path) -> None:
    begin("encoding=gape")
    subject = bench_of(folder, targets=3).subject(64)
    freeze = next(change for change in layer_changes(16) if change.name == "freeze slow")
    model = changed_model(subject, freeze, [0])
    assert not isinstance(model, str)
    layer, frozen = subject.model.layer(0), model.layer(0)
    assert isinstance(layer, GAPE) and isinstance(frozen, GAPE) and frozen.gamma is layer.gamma
    is_slow = 2 * math.pi / layer.frequencies > 16
    assert is_slow.any() and torch.equal(frozen.frequencies, layer.frequencies.masked_fill(is_slow, 0))


def test_a_layer_without_positions_keeps_what_replaces_its_softmax(begin: Command, folder: Path) -> None:
    begin("encoding=asentmax")
    change = next(change for change in layer_changes(16) if change.name == "no positions")
    model = changed_model(bench_of(folder, targets=3).subject(64), change, [0])
    assert not isinstance(model, str)
    assert [type(leaf) for leaf in leaves_of(model.layer(0))] == [ASEntmax]


def test_how_far_a_layer_sees() -> None:
    assert reach(NoPE(), 64) == 64
    assert reach(SlidingWindow(5), 64) == 5


def test_positions_of_the_input_are_changed_for_all_layers_together(begin: Command, folder: Path) -> None:
    begin("encoding=sinusoidal")
    bench = bench_of(folder)
    changes = {change.name: change for change in layer_changes(16)}
    assert changed_model(bench.subject(64), changes["cut"], [0]) == "no positions in its attention"
    cut = changed_model(bench.subject(64), changes["cut"], range(2), is_all=True)
    without = changed_model(bench.subject(64), changes["no positions"], range(2), is_all=True)
    assert not isinstance(cut, str) and not isinstance(without, str)
    assert np.array_equal(bench.levels(cut, 16), bench.unchanged_levels(16)), "no position is new"
    assert not np.array_equal(bench.levels(cut, 64), bench.unchanged_levels(64))
    assert not np.array_equal(bench.levels(without, 16), bench.unchanged_levels(16))


def test_each_sequence_of_a_batch_has_its_own_cut_positions() -> None:
    learned = Learned(8, max_position=4)
    cut = CutInputPositions(learned, train_length=4)
    x = torch.zeros(3, 6, 8)
    text = torch.zeros(3, 6, dtype=torch.long)
    ids = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 4], [0, 0, 1, 1, 2, 2]])  # as of segments
    rows = torch.tensor([[0, 0, 0, 1, 2, 3], [0, 0, 0, 0, 1, 3], [0, 0, 1, 1, 2, 2]])
    assert torch.equal(cut.embed(x, ids, text), learned.table[rows])


def test_what_is_fitted_is_fitted_on_other_documents_than_are_scored(begin: Command, folder: Path) -> None:
    begin("encoding=nope", HALF_SCORED)
    bench = bench_of(folder, targets=3)
    scored = {window.document for plan in bench.plans.values() for window in plan.windows}
    fitted = {window.document for plan in bench.fitted_on.values() for window in plan.windows}
    assert scored and fitted and not scored & fitted


def test_a_fitted_factor_gives_each_head_the_entropy_of_training(begin: Command, folder: Path) -> None:
    from pe_bench.commands.explain.fit import EntropyObserver
    from pe_bench.commands.explain.observe import observed_model, target_queries

    begin("encoding=rope", HALF_SCORED)
    bench = bench_of(folder, targets=3)
    fitted = next(change for change in layer_changes(16) if change.name == "fitted")

    def entropies(model, length: int) -> np.ndarray:
        plan = bench.fitted_on[length]
        measured = EntropyObserver(target_queries(plan), np.ones(1))
        bench.score(observed_model(model, measured), plan)
        return measured.mean(0)[0]

    model = changed_model(bench.subject(64), fitted, [0])
    assert not isinstance(model, str)
    trained, plain = entropies(bench.job.model, 16), entropies(bench.job.model, 64)
    assert (plain > trained + 0.5).all()
    assert np.allclose(entropies(model, 64), trained, atol=0.02)


def test_a_share_is_that_of_the_means_and_its_interval_holds_what_documents_share() -> None:
    lost = np.array([[1.0, 2.0, 3.0, 4.0]])
    exact = restored_share(0.64 * lost, lost)
    assert exact.mean == pytest.approx(0.64) and exact.low == exact.high == pytest.approx(0.64)
    seeds = np.random.default_rng(0).normal(1, 0.1, (3, 30))
    share = restored_share(0.5 * seeds + np.random.default_rng(1).normal(0, 0.1, (3, 30)), seeds)
    assert share.low < 0.5 < share.high and share.high - share.low < 0.2
    assert (share.seeds, share.documents) == (3, 30)
    assert share.at(0.99)[0] < share.low


def effect(change: str, place: Place, share: float, half: float = 0.02, length: int = 64) -> Effect:
    spread = paired_interval(share + half * np.random.default_rng(0).normal(size=(1, 30))).spread
    found = Interval(share, share - half, share + half, 1, 30, spread)
    return Effect(change, f"the change {change}", place, length, found, found)


ALL = Place((0, 1), is_all=True)
LOST = [Loss(32, Interval(0.5, 0.4, 0.6, 1, 30)), Loss(64, Interval(0.9, 0.8, 1.0, 1, 30))]


def test_the_sentence_names_the_layer_that_restores_more_than_half() -> None:
    effects = [
        effect("window", ALL, 0.99),
        effect("window", Place((0,)), 0.1),
        effect("window", Place((1,)), 0.64, 0.03),
        effect("cut", Place((1,)), 0.55),
        effect("cut", ALL, 0.8),
        effect("sharpen", ALL, 0.07),
        effect("window", Place((0,)), 0.9, length=32),
    ]
    sentence = cause_sentence("rope", 16, LOST, effects)
    assert sentence == (
        "The change window in layer 1 alone restores 64 % (61 to 67 %) of what is lost at 64 tokens; "
        "in all layers, the change sharpen restores 7 % and the change cut restores 80 %"
    )


def test_the_sentence_blames_no_layer_that_may_restore_less_than_half() -> None:
    effects = [effect("window", ALL, 0.9), effect("window", Place((1,)), 0.55, 0.1)]
    sentence = cause_sentence("rope", 16, LOST, effects)
    assert sentence.startswith("No single layer is to blame: the change window in all layers restores 90 %")
    little = [effect("window", ALL, 0.01, 0.1), effect("window", Place((1,)), 0.08, 0.05)]
    nothing = cause_sentence("nope", 16, LOST, little)
    assert nothing == "No change of all layers surely restores anything of what is lost at 64 tokens"


def test_a_change_whose_scores_are_not_finite_has_a_reason_and_no_share() -> None:
    within = np.random.default_rng(0).normal(2, 0.1, (2, 30))
    loss = loss_of(64, within, within + 1)
    changes = {change.name: change for change in layer_changes(16)}

    def effect_with(change: str, place: Place, changed: np.ndarray) -> Effect:
        return effect_of(changes[change], place, 64, (within, within + 1, changed), loss)

    broken = [effect_with("cut", Place((1,)), np.where(within > 2, bad, within)) for bad in (np.inf, np.nan)]
    for each in broken:
        assert (each.restored, each.share, each.reason) == (None, None, "scores are not finite")
    effects = [effect_with("window", ALL, within), effect_with("window", Place((0,)), within), *broken]
    sentence = cause_sentence("rope", 16, [loss], effects)
    assert sentence.startswith("A window of 16 in layer 0 alone restores 100 %")


def test_the_sentence_says_where_there_is_nothing_to_explain() -> None:
    within = np.random.default_rng(0).normal(2, 0.1, (1, 30))
    infinite = loss_of(64, within, np.where(within > within.mean(), np.nan, within))
    assert (infinite.is_sure, infinite.reason) == (False, "scores are not finite")
    held = loss_of(64, within, within + 0.001)
    nothing_sure = "No loss of alibi is sure up to 64 tokens: there is nothing to explain"
    assert cause_sentence("alibi", 16, [held], []) == nothing_sure
    unclear = loss_of(64, within, within + np.random.default_rng(1).normal(0.1, 1, (1, 30)))
    assert cause_sentence("alibi", 16, [unclear], []) == nothing_sure
    failed = Loss(64, reason="position 16 is past the table of 16")
    assert cause_sentence("learned", 16, [failed], []) == (
        "learned cannot be scored past 16 tokens: position 16 is past the table of 16"
    )


def test_quarters_of_the_depth_hold_each_layer_once() -> None:
    for layers in (9, 12, 30, 31):
        parts = quarters(layers)
        assert [number for part in parts for number in part.layers] == list(range(layers))
        assert len(parts) == 4


def test_a_run_is_explained_and_nothing_is_written_to_it(
    begin: Command, command: Command, folder: Path
) -> None:
    begin("encoding=rope", "train.steps=60", "train.lr=0.02")
    before = files_in(folder / "results")
    outcome = explained(command, folder, "rope", "--lengths", "32,64", "--by", "head")
    assert outcome.code == 0, outcome.err
    assert files_in(folder / "results") == before
    assert max(map(len, outcome.out.splitlines())) <= 100
    table = outcome.out
    printed = explained(command, folder, "rope", "--lengths", "32,64", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    lost = [row for row in rows if row["change"] == "lost"]
    assert [row["length"] for row in lost] == ["32", "64"]
    found = pe_bench.explain("rope", [32, 64], targets=6, results_dir=folder / "results")
    assert found.sentence in " ".join(str(found).split()) and found.sentence in " ".join(table.split())
    assert [float(row["restored"]) for row in lost] == [loss.lost.mean for loss in found.losses if loss.lost]


def test_heads_are_whole_numbers_in_the_csv_and_are_read_back() -> None:
    effects = (
        effect("window", ALL, 0.9),
        effect("window", Place((1,), 0), 0.5),
        effect("cut", Place((1,), 12), 0),
    )
    found = Explanation("rope", (Path("run"),), 16, (64,), 6, 5, True, (*LOST,), effects, "why")
    text = csv_text(found)
    assert [row["head"] for row in csv.DictReader(io.StringIO(text))] == ["", "", "", "0", "12"]
    assert [each.place.head for each in read_csv_text(text, seeds=1).effects] == [None, 0, 12]


def test_all_layers_and_the_only_layer_are_told_apart_when_read_back() -> None:
    everything, layer = Place((0,), is_all=True), Place((0,))
    changed = Effect("cut", "", layer, 64, reason="no positions in its attention")
    effects = (
        effect("window", everything, 0.9),
        effect("window", layer, 0.8),
        effect("cut", everything, 0.5),
    )
    effects = (*effects, changed, effect("off", layer, 0.9))
    found = Explanation("learned", (Path("run"),), 16, (64,), 6, 5, True, (*LOST,), effects, "why")
    read = read_csv_text(csv_text(found), seeds=1).effects
    assert [each.place for each in read] == [everything, layer, everything, layer, layer]


def test_a_change_without_a_meaning_at_one_length_is_shown_at_the_others() -> None:
    def made(change: str, *lengths: int) -> list[Effect]:
        """Return effects, without a meaning at all but the given lengths."""
        reason = "no pair with such a wavelength"
        others = {32, 64} - {*lengths}
        missing = [Effect(change, "", ALL, length, reason=reason) for length in others]
        return [*missing, *(effect(change, ALL, 0.4, length=length) for length in lengths)]

    effects = (*made("freeze 1-4", 64), *made("freeze 4-16", 32), *made("freeze >16"))
    found = Explanation("rope", (Path("run"),), 16, (32, 64), 6, 5, True, (*LOST,), effects, "why")
    rows = {line.partition("  ")[0]: line.split("all")[-1].split() for line in str(found).splitlines()}
    assert rows["freeze 1-4"] == ["-", "40", "±", "2", "%"]
    assert rows["freeze 4-16"] == ["40", "±", "2", "%", "-"]
    assert "freeze >16" not in rows
    note = "n/a freeze 1-4, freeze 4-16, freeze >16: no pair with such a wavelength (layer all)"
    assert note in " ".join(str(found).split())


def test_a_tiny_loss_is_a_plain_number_without_a_sign() -> None:
    losses = (Loss(32, Interval(-2e-6, -1.5e-5, 1.1e-5, 1, 30)),)
    gain = Effect("off", "switching attention off", Place((0,)), 16, Interval(1e-5, 0, 1e-4, 1, 30))
    found = Explanation("rope", (Path("run"),), 16, (32,), 6, 5, True, losses, (gain,), "why")
    text = str(found)
    assert "0.000 ± 0.000?" in text and "-0.000" not in text and "e-" not in text


def test_shares_of_thousands_of_percent_have_separators_here_and_in_stored_tables() -> None:
    effects = (effect("off", ALL, -43.88, 17.56),)
    found = Explanation("t5", (Path("run"),), 16, (64,), 6, 5, True, (*LOST[1:],), effects, "why")
    assert "-4,388 ± 1,756 %" in str(found)
    stored = [*(config_dir() / "study" / "rows" / "explain" / "explained").glob("*.txt")]
    assert stored and not any(re.search(r"\d{4} (±|%)", path.read_text()) for path in stored)


def test_seeds_of_one_encoding_are_explained_together_and_others_are_refused(
    begin: Command, command: Command, folder: Path
) -> None:
    for seed in (0, 1):
        begin("encoding=rope", "train.steps=60", "train.lr=0.02", f"seed={seed}")
    outcome = explained(command, folder, "rope", "--lengths", "64")
    assert outcome.code == 0 and "2 seeds" in outcome.out, outcome.err
    begin("encoding=nope")
    refused = explained(command, folder, "rope", "nope")
    assert refused.code == 2 and "is not another seed of" in refused.line
