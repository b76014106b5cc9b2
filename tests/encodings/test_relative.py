"""transformer_xl and shaw against the authors' formulations, and limits and options of relative encodings.

Inputs are those of `reference_inputs`, unless a test says otherwise.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.reference_inputs import K4, Q4, X4, D, H, K, T, fill, near, output, row_of_scores, series
from support.relative_encodings import (
    CONTENT,
    LAYERS,
    TRAIN,
    E,
    layer_of,
    with_parameters,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pe_bench.config.compose import compose
from pe_bench.encodings.base import LayerEncoding, PositionalEncoding
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.deberta import DeBERTa
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.relative.transformer_xl import TransformerXL
from pe_bench.encodings.relative.tupe import TUPE
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.model.attention import attention, choose, project, reference_attention
from pe_bench.model.attention.fused import fused_attention

# transformer_xl


def xl(layers: int = LAYERS) -> TransformerXL:
    return TransformerXL(d_model=D, n_heads=H, d_head=K, n_layers=layers)


def shifted_rows(scores: Tensor) -> Tensor:
    """The authors' shift: entry (i, j) becomes (i, j + T - 1 - i), and after the diagonal garbage."""
    padded = torch.nn.functional.pad(scores, (1, 0)).flatten(-2)
    return padded[..., scores.shape[-1] :].unflatten(-1, scores.shape[-2:])


def official_xl(encoding: TransformerXL, number: int, q: Tensor, k: Tensor) -> Tensor:
    """Projected distances T-1 .. 0, their products with every query, and the shift."""
    tokens = q.shape[-2]
    distances = sinusoids(torch.arange(tokens).flip(0), D, 10_000.0, "neox")
    projected = torch.einsum("rd,hkd->hrk", distances, encoding.projections[number])
    u, v = encoding.content_bias.unsqueeze(-2), encoding.position_bias.unsqueeze(-2)
    scores = (q + u) @ k.mT + shifted_rows((q + v) @ projected.mT)
    return (scores / math.sqrt(K)).detach().tril()


def test_transformer_xl_is_the_official_formulation_at_any_length_on_the_fused_path() -> None:
    encoding, tokens = with_parameters(xl()), 50
    layer = encoding.layer(1)
    q, k, v = (series(torch.sin, step, 1, H, tokens, K) for step in (0.3, 0.5, 0.7))
    hidden = torch.ones(tokens, tokens).triu(1).bool()
    weights = official_xl(encoding, 1, q, k).masked_fill(hidden, float("-inf")).softmax(-1)
    assert choose(layer, q, torch.arange(tokens)).run is fused_attention
    assert near(attention(layer, q, q, k, v, torch.arange(tokens)).detach(), weights @ v, 1e-12)


# shaw


def shaw(max_distance: int = 2) -> Shaw:
    return with_parameters(Shaw(d_head=K, max_distance=max_distance))


def test_shaw_scales_the_relative_term_as_the_content() -> None:
    encoding = shaw()
    queries, keys = project(encoding, X4, Q4, K4, torch.arange(T))
    assert near(
        encoding.scores(queries, keys, 3.0).detach(), 3 * encoding.scores(queries, keys, 1.0).detach(), 1e-12
    )
    fill(encoding.keys, series(torch.sin, 0.15, 5, K)[:3])
    unscaled = [3.119334, 1.942516, 2.24906, 2.021169]  # of the relative term alone
    assert not near(row_of_scores(encoding).detach(), unscaled, 0.5)
    relative = 2 * (row_of_scores(encoding).detach() - CONTENT[0, 0, 3] / 2)
    assert near(CONTENT[0, 0, 3] / 2 + relative, unscaled)


def test_shaw_adds_the_vectors_of_values_by_weight() -> None:
    encoding = shaw()
    fill(encoding.values, torch.zeros(3, K))
    without = output(encoding).detach()
    vector = torch.tensor([1.0, -2.0, 0.5, 3.0])
    fill(encoding.values, vector.expand(3, K))
    # One vector for every distance arrives whole, for weights sum to one.
    assert near(output(encoding).detach(), without + vector, 1e-12)


# No tensor for each pair


class LargestTensor(TorchDispatchMode):
    """Watches the elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            # A view of a small tensor may have any shape: what counts is the memory behind it.
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
        return result


@pytest.mark.parametrize("make", [lambda: Shaw(32, 16), lambda: DeBERTa(32, 1, 32, 1, 16).layer(0)])
def test_no_tensor_has_a_vector_for_each_pair(make: Callable[[], LayerEncoding]) -> None:
    tokens, width, layer = 64, 32, make()
    q = torch.randn(1, 1, tokens, width)
    with LargestTensor() as watch:
        reference_attention(layer, q, q, q, q, torch.arange(tokens), block=tokens).sum().backward()
    assert tokens * tokens <= watch.elements < 2 * tokens * tokens
    with LargestTensor() as watch:
        (q.unsqueeze(-2) + q.unsqueeze(-3)).sum()
    assert watch.elements == tokens * tokens * width


# Limits and options


def without_parameters(encoding: E) -> E:
    for parameter in encoding.parameters():
        fill(parameter, torch.zeros_like(parameter))
    return encoding


@pytest.mark.parametrize("make", [xl, lambda: Shaw(K, 2)])
def test_without_its_parameters_it_is_nope(make: Callable[[], PositionalEncoding | LayerEncoding]) -> None:
    found = output(layer_of(without_parameters(make()).double())).detach()
    assert near(found, output(NoPE()).detach(), 1e-12)


def composed(name: str, *overrides: str) -> dict[str, Any]:
    shape = [f"model.d_model={D}", f"model.n_heads={H}", f"model.n_layers={LAYERS}", f"train.length={TRAIN}"]
    return compose([f"encoding={name}", *shape, *overrides])["encoding"]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("transformer_xl", "base=100.0"),
        ("deberta", "max_distance=3"),
        ("deberta", "buckets=6"),
        ("deberta", "terms=c2p"),
        ("deberta", "terms=p2c"),
        ("tupe", "positions=sinusoidal"),
    ],
)
def test_option_changes_the_output(name: str, option: str) -> None:
    q, k, v = (series(torch.sin, step, 1, H, TRAIN, K) for step in (0.3, 0.5, 0.7))
    outputs = []
    for overrides in ([], [f"encoding.{option}"]):
        layer = with_parameters(EncodingSpec(composed(name, *overrides)).build(LAYERS)).layer(1)
        outputs.append(attention(layer, q, q, k, v, torch.arange(TRAIN)).detach())
    assert not near(outputs[0], outputs[1], 1e-3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TransformerXL(7, H, K, LAYERS), "model.d_model=7 is odd"),
        (lambda: TransformerXL(D, H, K, LAYERS, base=0.0), "encoding.base must exceed 1, .* not 0.0"),
        (lambda: DeBERTa(D, H, K, LAYERS, 0), "encoding.max_distance must be positive, not 0"),
        (lambda: DeBERTa(D, H, K, LAYERS, 16, buckets=7), "encoding.buckets must be even.*not 7"),
        (lambda: DeBERTa(D, H, K, LAYERS, 16, buckets=2), "encoding.buckets must be.*at least 4.*not 2"),
        (
            lambda: DeBERTa(D, H, K, LAYERS, 16, buckets=32),
            "encoding.max_distance=16 must exceed 17.*encoding.buckets=32",
        ),
        (lambda: TUPE(D, H, K, 4, "clamp", "sinusoidal"), "overflow=clamp .*positions=sinusoidal"),
        (lambda: TUPE(D, H, K, 0), "encoding.max_position must be positive, not 0"),
        (lambda: Shaw(K, 0), "encoding.max_distance must be positive, not 0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()
