"""Widespread mistakes, each caught by a property of `pe-bench check` or by numbers of the right formula."""

import inspect
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from support import tutorial_variants as wrong
from support.cases import find_case
from support.encodings import turned_sides
from support.reference_inputs import (
    K4,
    Q4,
    V4,
    X4,
    K,
    T,
    fill,
    near,
    output,
    residual_of_the_best_shift,
    row_of_scores,
    series,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.rotary.rope import RoPE, rope_frequencies, rotate
from pe_bench.inspection.check.suite import PROPERTIES, check
from pe_bench.model.attention import reference_attention

ROOT = Path(__file__).parents[2]
QUICK = [wanted for wanted in PROPERTIES if wanted.name != "long_context"]
case_of = cache(find_case)
Sinusoids = Callable[[Tensor, int], Tensor]


def right_sinusoids(position: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    return sinusoids(position, width, base, "interleaved")


@cache
def failures(name: str) -> set[str]:
    return {wanted.name for wanted in QUICK if check(case_of(name), wanted).state == "fails"}


# What `pe-bench check` finds: the mistake, the properties that fail, and the right encoding, which has none.


@pytest.mark.parametrize(
    ("mistake", "expected", "right"),
    [
        (wrong.HalvesWithInterleavedAngles, {"norm", "shift"}, "rope"),
        (wrong.KeysTurnBackwards, {"shift"}, "rope"),
        (wrong.TurnedAndForgotten, {"effect"}, "rope"),
        (wrong.FrequenciesInAPlainTensor, {"device", "state"}, "rope"),
        (wrong.FrequenciesAreSaved, {"state"}, "rope"),
        (wrong.AlwaysFromZero, {"positions", "device"}, "rope"),
        (wrong.TableThatIsIndexed, {"shift", "half_precision", "extrapolation"}, "learned"),
        (wrong.TableThatIsSliced, {"shift", "half_precision", "extrapolation"}, "learned"),
        (
            wrong.SinusoidsInAPlainTensor,
            {"shift", "half_precision", "extrapolation", "device", "state"},
            "sinusoidal",
        ),
        (wrong.RelativeQueriesToo, {"blocks", "positions", "extrapolation", "window"}, "shaw"),
        (wrong.RelativeBesideTheScale, {"score_scale"}, "shaw"),
        (wrong.RelativeValuesUnused, {"gradients", "slopes"}, "shaw"),
        (wrong.NoRoot, {"score_scale"}, "nope"),
        (
            wrong.NoMask,
            {"causal", "lookahead", "prefix", "blocks", "fused", "half_precision", "device", "window"},
            "nope",
        ),
        (wrong.FiniteMask, {"effect", "masked_weights"}, "nope"),
        (wrong.LowerMask, {"effect", "masked_weights"}, "nope"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_the_mistake_fails_the_check_and_the_right_encoding_does_not(
    mistake: type, expected: set[str], right: str
) -> None:
    assert failures(f"{wrong.__file__}:{mistake.__name__}") == expected
    assert not failures(right)


def test_heads_merged_is_told_as_a_shape_that_does_not_fit() -> None:
    finding = check(case_of(f"{wrong.__file__}:HeadsMerged"), QUICK[0])
    assert finding.state == "fails"
    assert "transform returned the shape [2, 4, 72], must be [B, H, T, *]" in finding.measured


# Sinusoids


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (right_sinusoids, [0.841471, 0.540302, 0.01, 0.99995]),
        (wrong.sinusoids_with_one_exponent_a_column, [0.841471, 0.995004, 0.01, 1.0]),
        (wrong.sinusoids_with_exclusive_or, [1e-4, 1.0, 1e-4, 1.0]),
        (wrong.sinusoids_with_exponents_not_divided, [0.841471, 0.540302, 0.0, 1.0]),
    ],
)
def test_sinusoids_at_position_1_tell_the_formula(table: Sinusoids, row: list[float]) -> None:
    assert near(table(torch.arange(3), 4)[1], row, 1e-6)


def test_only_with_one_frequency_a_pair_a_shift_is_a_linear_map() -> None:
    position = torch.arange(200)
    assert residual_of_the_best_shift(right_sinusoids(position, 8, 100.0)) < 1e-9
    mixed = wrong.sinusoids_with_one_exponent_a_column(position, 8, 100.0)
    assert residual_of_the_best_shift(mixed) > 0.1


def half_turn_of_the_slowest_pair(table: Sinusoids, width: int) -> Tensor:
    """The last two columns at half the period that the formula has."""
    position = math.pi * 10_000 ** ((width - 2) / width)
    return table(torch.tensor([position], dtype=torch.float64), width)[0, -2:]


@pytest.mark.parametrize("width", [4, 12, 64])
def test_the_slowest_pair_turns_as_slowly_as_the_formula_says(width: int) -> None:
    assert near(half_turn_of_the_slowest_pair(right_sinusoids, width), [0.0, -1.0], 1e-9)
    undivided = half_turn_of_the_slowest_pair(wrong.sinusoids_with_exponents_not_divided, width)
    assert not near(undivided, [0.0, -1.0], 1.0)


def test_exponents_that_are_not_divided_leave_constant_columns() -> None:
    table = wrong.sinusoids_with_exponents_not_divided(torch.arange(50), 12)
    assert (table[:, -2] == 0).all() and (table[:, -1] == 1).all()
    assert (right_sinusoids(torch.arange(50), 12).std(0) > 1e-6).all()


# Rotations


def errors_of_rotation(encoding: LayerEncoding, shift: int = 7) -> tuple[float, float]:
    """How much norms change, and how much scores change where all positions move by `shift`."""
    q, k = series(torch.sin, 0.1, 1, 1, 6, 8), series(torch.cos, 0.2, 1, 1, 6, 8)
    here, there = torch.arange(6), torch.arange(6) + shift
    (q_here, k_here), (q_there, k_there) = (turned_sides(encoding, q, k, at, at) for at in (here, there))
    norm = (q_here.norm(dim=-1) - q.norm(dim=-1)).abs().max()
    return float(norm), float((q_here @ k_here.mT - q_there @ k_there.mT).abs().max())


def test_layouts_that_are_mixed_are_no_rotation() -> None:
    assert max(errors_of_rotation(RoPE(8).double())) < 1e-12
    norm, score = errors_of_rotation(wrong.HalvesWithInterleavedAngles(8).double())
    assert abs(norm - 0.272330) < 2e-6 and abs(score - 2.452361) < 2e-6


@pytest.mark.parametrize(("encoding", "sign"), [(RoPE(2), 1), (wrong.BothTurnBackwards(2), -1)])
def test_the_papers_rotation_is_counterclockwise(encoding: LayerEncoding, sign: int) -> None:
    x = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    turned, _ = turned_sides(encoding, x, x, torch.tensor([1]), torch.tensor([1]))
    assert near(turned.flatten(), [math.cos(1), sign * math.sin(1)], 1e-12)


def test_turning_both_backwards_is_a_rotation_that_no_property_can_tell() -> None:
    assert not failures(f"{wrong.__file__}:BothTurnBackwards")


def test_the_slowest_frequency_follows_from_the_heads_width() -> None:
    slowest = 10_000 ** (-6 / 8)
    assert near(rope_frequencies(8, 10_000.0)[-1:], [slowest], 1e-12)
    assert wrong.FrequenciesOfTheModelsWidth(8, 64).frequencies[-1] > 100 * slowest


def score_of_the_last_token(encoding: LayerEncoding) -> Tensor:
    """Its query turned alone, with all the keys."""
    q, k = turned_sides(encoding, Q4[:, :, 3:], K4, torch.tensor([3]), torch.arange(T))
    return q @ k.mT


@pytest.mark.parametrize(("encoding", "is_right"), [(RoPE(K), True), (wrong.AlwaysFromZero(K), False)])
def test_a_query_alone_has_the_position_that_it_is_given(encoding: LayerEncoding, is_right: bool) -> None:
    q, k = turned_sides(encoding, Q4, K4, torch.arange(T), torch.arange(T))
    assert near(score_of_the_last_token(encoding), (q @ k.mT)[:, :, 3:], 1e-12) == is_right


@pytest.mark.parametrize(
    ("distance", "bound"), [(0, 32.5), (1, 31.5382), (16, 15.775), (64, 10.0899), (256, 6.5431)]
)
def test_the_bound_on_ropes_scores_falls_with_distance(distance: int, bound: float) -> None:
    angle = distance * rope_frequencies(128, 10_000.0)
    partial_sums = torch.polar(torch.ones_like(angle), angle).cumsum(0)
    assert abs(float(partial_sums.abs().mean()) - bound) < 5e-5


def test_frequencies_that_fall_are_no_decay_with_distance() -> None:
    theta = rope_frequencies(64, 10_000.0)
    assert (theta.diff() < 0).all()  # along the features, which is what is taken for a decay
    q, k = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = (rotate(q.expand(1, 1, 200, 64), torch.arange(200), theta, "half") * k).sum(-1).flatten()
    assert scores[100:].abs().max() > scores[:10].abs().min()
    assert (scores.diff() > 0).any() and (scores.diff() < 0).any()


# Relative keys and values


def with_reference_tables(encoding: LayerEncoding) -> LayerEncoding:
    fill(encoding.double().keys, series(torch.sin, 0.15, 5, K)[:3])
    fill(encoding.values, series(torch.sin, 0.25, 5, K)[:3])
    return encoding


@pytest.mark.parametrize(
    ("encoding", "row"),
    [
        (Shaw(K, 2), [2.402589, 1.225771, 0.63625, 0.075696]),
        (wrong.RelativeWithPairs(K), [2.402589, 1.225771, 0.63625, 0.075696]),
        (wrong.RelativeBesideTheScale(K), [3.119334, 1.942516, 2.24906, 2.021169]),
    ],
)
def test_relative_scores_have_their_reference_values_where_all_is_scaled(
    encoding: LayerEncoding, row: list[float]
) -> None:
    assert near(row_of_scores(with_reference_tables(encoding)).detach(), row)


@pytest.mark.parametrize("mistake", [wrong.RelativeQueriesToo, wrong.RelativeTheOtherWay])
def test_relative_scores_of_another_formula_have_other_values(mistake: type[LayerEncoding]) -> None:
    scores = row_of_scores(with_reference_tables(mistake(K))).detach()
    assert not near(scores, [2.402589, 1.225771, 0.63625, 0.075696], 0.01)


@pytest.mark.parametrize(("kind", "changes"), [(Shaw, True), (wrong.RelativeValuesUnused, False)])
def test_relative_values_change_the_output(kind: type[LayerEncoding], changes: bool) -> None:
    encoding, changed = with_reference_tables(kind(K, 2)), with_reference_tables(kind(K, 2))
    fill(changed.values, torch.ones(3, K))
    assert near(output(changed).detach(), output(encoding).detach(), 1e-12) != changes


@pytest.mark.parametrize(
    ("kind", "changed"),
    [(Shaw, [True, True, False, False]), (wrong.RelativeTheOtherWay, [False] * 3 + [True])],
)
def test_row_0_serves_the_most_distant_keys(kind: type[LayerEncoding], changed: list[bool]) -> None:
    encoding, other = with_reference_tables(kind(K, 2)), with_reference_tables(kind(K, 2))
    fill(other.keys[0], torch.full((K,), 5.0))
    assert (row_of_scores(other) != row_of_scores(encoding)).tolist() == changed


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest result."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def largest_tensor(kind: type[LayerEncoding], width: int, tokens: int = 64) -> int:
    q = torch.zeros(1, 2, tokens, width)
    with torch.no_grad(), LargestTensor() as seen:
        reference_attention(kind(width, 4), torch.zeros(1, tokens, 8), q, q, q, torch.arange(tokens))
    return seen.elements


def test_relative_scores_take_memory_for_pairs_and_not_for_the_features_of_pairs() -> None:
    assert largest_tensor(Shaw, 16) == largest_tensor(Shaw, 32) == 2 * 64 * 64
    assert largest_tensor(wrong.RelativeWithPairs, 32) == 2 * largest_tensor(wrong.RelativeWithPairs, 16)


# Attention


def test_without_the_root_logits_are_twice_the_papers() -> None:
    papers = (Q4[0, 0, 3] @ K4[0, 0].T) / math.sqrt(K)
    assert near(row_of_scores(NoPE()), papers, 1e-12)
    assert near(row_of_scores(wrong.NoRoot()), 2 * papers, 1e-12)


@pytest.mark.parametrize(("encoding", "leaks"), [(NoPE(), False), (wrong.NoMask(), True)])
def test_the_first_output_has_a_gradient_at_later_values_only_without_a_mask(
    encoding: LayerEncoding, leaks: bool
) -> None:
    v = V4.clone().requires_grad_()
    output_of_first = reference_attention(encoding, X4, Q4, K4, v, torch.arange(T))[:, :, 0]
    (gradient,) = torch.autograd.grad(output_of_first.sum(), v)
    assert bool(gradient[:, :, 1:].any()) == leaks


@pytest.mark.parametrize(
    ("encoding", "weight"), [(NoPE(), 0.0), (wrong.FiniteMask(), 0.0), (wrong.LowerMask(), 1.0)]
)
def test_a_hidden_key_weighs_nothing_beside_low_logits(encoding: LayerEncoding, weight: float) -> None:
    # ALiBi's largest slope reaches such logits at 65,536 tokens.
    weights = encoding.weights(torch.tensor([[-32_768.0, 0.0]]), torch.tensor([[True, False]]))
    assert weights[0, 1] == weight


# What is said of encodings

DOCUMENTS = [
    *sorted((ROOT / "pe_bench" / "encodings").rglob("*.py")),
    *sorted((ROOT / "configs" / "encoding").glob("*.yaml")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
]
CLAIM = re.compile(
    r"(sinus\w*|rope|rotary)\b[^.]{0,80}\b(extrapolates?|generali[sz]es?|perfect\w*|any length)",
    re.IGNORECASE | re.DOTALL,
)


def test_no_page_says_that_sinusoids_or_rope_extrapolate() -> None:
    assert CLAIM.search("Sinusoidal encodings generalise to longer sequences")
    assert CLAIM.search("rotary embeddings have perfect extrapolation")
    assert not [path.name for path in DOCUMENTS if CLAIM.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", ["sinusoidal", "rope"])
def test_sinusoids_and_rope_are_said_to_be_out_of_distribution_past_the_training_length(name: str) -> None:
    (path,) = (ROOT / "pe_bench" / "encodings").rglob(f"{name}.py")
    page = path.read_text(encoding="utf-8")
    assert "Past the training length: defined, out of distribution" in page


def test_alibi_is_cited_as_what_appeared_in_2021() -> None:
    page = inspect.getmodule(ALiBi).__doc__ or ""
    assert "arXiv:2108.12409" in page  # of August 2021; ICLR is of 2022
    assert ALiBi.paper == "arXiv:2108.12409"
    cited = re.search(r"Press, Smith, Lewis (20\d\d), .*?arXiv:2108.12409", page, re.DOTALL)
    assert cited and (cited[1] == "2021" or (cited[1] == "2022" and "ICLR" in cited[0]))
