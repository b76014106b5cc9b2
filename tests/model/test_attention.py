"""The reference runs the hooks in their order; every fast path gives what the reference gives."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attending import ALL, D, H, K, OfContent, largest_error, made, output_and_gradients
from support.native import here
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.content import running_sums
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.inspection.check.case import as_type, largest_difference, layer_inputs
from pe_bench.model import attention as paths
from pe_bench.model.attention import (
    MAX_NATIVE_TOKENS,
    attention,
    choose_path,
    chunks,
    fused,
    reference_attention,
)
from pe_bench.model.attention.chunks import fused_chunk_attention
from pe_bench.native.build import Kernel

NO_KERNEL = Kernel(None, "")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks and blocks to a short text, of unequal sizes."""
    monkeypatch.setattr(chunks, "CHUNK_QUERIES", 7)
    monkeypatch.setattr(chunks, "MAX_CHUNK_ELEMENTS", 2 * H * 5 * 30)
    monkeypatch.setattr(fused, "QUERIES_PER_CHUNK", 9)
    monkeypatch.setattr(running_sums, "KEYS_PER_BLOCK", 8)


def sink() -> LayerEncoding:
    return Sink(H, 0.3)


def test_a_window_is_the_sliding_window_of_that_many_tokens() -> None:
    arguments = (*layer_inputs(11), torch.arange(11))
    for name in ("nothing", "a rotation", "a slope", "columns", "a broken stick", "relative values"):
        encoding = made(name)
        unlimited = reference_attention(encoding, *arguments)
        inside = reference_attention(made(name, lambda: SlidingWindow(4)), *arguments)
        for block in (1, 2, 11):  # keys before the window of a block's first query are left out
            assert (
                largest_difference(reference_attention(encoding, *arguments, window=4, block=block), inside)
                < 1e-12
            )
        assert largest_difference(unlimited, inside) > 1e-3
        assert largest_difference(reference_attention(encoding, *arguments, window=11), unlimited) < 1e-12


def test_null_logits_take_their_share_as_one_more_column_of_a_softmax_does() -> None:
    x, q, k, v = layer_inputs(9)
    encoding = made("a sink")
    scores = (q @ k.mT * K**-0.5).masked_fill(~torch.ones(9, 9).tril().bool(), float("-inf"))
    column = encoding.get_parameter("logit")[:, None, None].expand(2, H, 9, 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    assert largest_difference(reference_attention(encoding, x, q, k, v, torch.arange(9)), weights @ v) < 1e-14
    for path in (attention, reference_attention):
        inputs = layer_inputs(40, torch.float32)
        results = output_and_gradients(path, Sink(H, initial=1e4), inputs, torch.arange(40))
        assert not any(result.any() for result in results), "and no gradient is lost to NaN"


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_scoring_has_the_outputs_of_the_reference(name: str, small_chunks: None) -> None:
    plain, with_null = made(name), made(name, sink)
    for tokens in (1, 2, 8, 33):
        counting = torch.arange(tokens)
        jumping = torch.stack([2 * counting, counting + 3])
        for position in (counting, counting + 500, jumping, counting.float() + 0.5):
            if position.is_floating_point() and name == "an absolute table":
                continue
            for encoding, window in ((plain, None), (plain, 1), (with_null, 4), (with_null, None)):
                arguments = (*layer_inputs(tokens), position, window)
                exact = reference_attention(encoding, *arguments)
                # Tables of biases are of float32 distances.
                assert largest_difference(attention(encoding, *arguments), exact) < 1e-6
                needs_reference = encoding.overrides(*paths.REFERENCE_ONLY_HOOKS, "scores")
                if not needs_reference or encoding.overrides("terms"):
                    assert largest_difference(fused_chunk_attention(encoding, *arguments), exact) < 1e-10


@given(
    name=st.sampled_from([*ALL]),
    tokens=st.integers(1, 80),
    queries=st.integers(1, 80),
    window=st.none() | st.integers(1, 90),
    chunk=st.integers(1, 20),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
@settings(max_examples=150, deadline=None)
@torch.no_grad()
def test_outputs_are_those_of_the_reference_at_any_length_window_and_chunk_for_any_last_queries(
    name: str, tokens: int, queries: int, window: int | None, chunk: int, seed: int, dtype: torch.dtype
) -> None:
    encoding = made(name, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(x.shape, generator=generator).to(dtype) for x in layer_inputs(tokens)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunks, "CHUNK_QUERIES", chunk)
        patched.setattr(fused, "QUERIES_PER_CHUNK", chunk)
        found = attention(encoding, *inputs, torch.arange(tokens), window)
        x, q, k, v = inputs
        of_last = attention(encoding, x, q[:, :, -queries:], k, v, torch.arange(tokens), window)
    doubles = (each.double() for each in inputs)
    exact = reference_attention(made(name), *doubles, torch.arange(tokens), window)
    limit = 1e-6 if dtype == torch.float64 else 1e-4
    assert largest_difference(found, exact) < limit
    assert largest_difference(of_last, exact[:, :, -queries:]) < limit


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("native", [pytest.param(True, marks=here), False])
def test_training_has_the_outputs_and_gradients_of_the_reference(
    name: str, native: bool, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(paths, "usable_kernel", lambda dtype: NO_KERNEL)
    position = torch.arange(61)
    for nulls, window in (((), None), ((), 9), ((sink, OfContent), None)):
        encoding, inputs = made(name, *nulls), layer_inputs(61)
        exact = output_and_gradients(reference_attention, encoding, inputs, position, window)
        if not native:
            found = output_and_gradients(attention, encoding, inputs, position, window)
            assert largest_error(found, exact) < 1e-6
        single = made(name, *nulls, dtype=torch.float32)
        found = output_and_gradients(attention, single, as_type(inputs, torch.float32), position, window)
        assert largest_error(found, exact) < 1e-4


class Everything(SlidingWindow):
    def visible(self, queries: Side, keys: Side) -> Tensor:
        return keys.index <= queries.index.unsqueeze(-1)


class Halved(FoX):
    def bias(self, queries: Side, keys: Side) -> Tensor:
        return 0.5 * super().bias(queries, keys)


class Doubled(Shaw):
    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        return 2 * super().scores(queries, keys, scale)


@pytest.mark.parametrize("trains", [False, True])
def test_a_class_that_changes_a_hook_does_not_inherit_the_faster_form_of_the_old_one(trains: bool) -> None:
    x, q, k, v = layer_inputs(300, torch.float32)
    arguments = (x, q.requires_grad_(trains), k.requires_grad_(trains), v, torch.arange(300))
    for encoding in (Everything(2), Halved(D, H), Doubled(K)):
        with torch.set_grad_enabled(trains):
            assert (
                largest_difference(attention(encoding, *arguments), reference_attention(encoding, *arguments))
                < 1e-6
            )


NATIVE, FUSED, CHUNK, FLEX, REFERENCE = "native", "fused", "fused chunk", "fused flex", "reference"
DISTANCE, COLUMN, RELATIVE = "fused distance", "native column", "fused relative"
# With the kernel, when scoring and in training; without it, in the same order; and on a GPU.
TAKEN: dict[str, tuple[str | None, ...]] = {
    "nothing": (NATIVE, NATIVE, FUSED, FUSED, FUSED),
    "a rotation": (NATIVE, NATIVE, FUSED, FUSED, FUSED),
    "an absolute table": (NATIVE, NATIVE, FUSED, FUSED, FUSED),
    "a slope": (NATIVE, NATIVE, DISTANCE, DISTANCE, FLEX),
    # The fused kernels have no gradient for a bias.
    "buckets": (NATIVE, NATIVE, DISTANCE, REFERENCE, FLEX),
    "columns": (COLUMN, COLUMN, CHUNK, REFERENCE, FLEX),
    "columns and a slope": (CHUNK, REFERENCE, CHUNK, REFERENCE, REFERENCE),
    "a bias of positions": (CHUNK, REFERENCE, CHUNK, REFERENCE, REFERENCE),
    "a window": (NATIVE, NATIVE, CHUNK, CHUNK, FLEX),
    "a slope and a window": (NATIVE, NATIVE, CHUNK, CHUNK, FLEX),
    "buckets in chunks": (NATIVE, NATIVE, CHUNK, REFERENCE, FLEX),
    "sinks": (CHUNK, CHUNK, CHUNK, CHUNK, None),
    "relative values": (RELATIVE, REFERENCE, RELATIVE, REFERENCE, REFERENCE),
    "disentangled": (RELATIVE, REFERENCE, RELATIVE, REFERENCE, REFERENCE),
    "relative values and a factor": (REFERENCE,) * 5,
    "positions by content": (REFERENCE,) * 5,
    "a broken stick": (REFERENCE,) * 5,
}


@here
def test_the_path_follows_from_the_hooks_and_from_what_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(name: str, *nulls: Any, window: int | None = None, tokens: int = 5) -> tuple[str, str]:
        """Return the path when scoring and in training."""
        encoding = made(name, *nulls, dtype=torch.float32)
        arguments = (torch.zeros(1, H, tokens, K, requires_grad=True), torch.arange(tokens), window)
        with torch.no_grad():
            scoring = choose_path(encoding, *arguments).name
        return scoring, choose_path(encoding, *arguments).name

    with FakeTensorMode():
        on_gpu = torch.empty(1, H, 5, K, device="cuda", dtype=torch.bfloat16)
    for nulls in ((), (sink,)):  # no path is lost by a null logit, where its log-sum-exp is to be had
        for name, (*_, on_cuda) in TAKEN.items():
            path = choose_path(made(name, *nulls), on_gpu, torch.arange(5)).name if on_cuda else None
            assert path == (FLEX if nulls and on_cuda == FUSED else on_cuda), name
    assert choose_path(Sink(H), on_gpu.double(), torch.arange(5)).name == REFERENCE
    assert choose_path(NoPE(), on_gpu, torch.arange(5), 3).name == FLEX
    for name, (*expected, without, without_in_training, _) in TAKEN.items():
        assert taken(name) == (*expected,), name
        assert expected[0] == RELATIVE or taken(name, sink) == (*expected,), name
        is_native = expected[0] in (NATIVE, COLUMN)
        assert taken(name, window=3)[0] in ([expected[0]] if is_native else [CHUNK, REFERENCE]), name
        hides_keys = made(name).overrides("visible")
        in_long_texts = NATIVE if hides_keys and is_native else without
        assert taken(name, tokens=MAX_NATIVE_TOKENS + 1)[0] == in_long_texts, name
        with monkeypatch.context() as patch:
            patch.setattr(paths, "usable_kernel", lambda dtype: NO_KERNEL)
            assert taken(name) == (without, without_in_training), name


@pytest.mark.parametrize("size", [1.0, 20.0])
@pytest.mark.parametrize("window", [5, 30])
def test_gradient_of_stick_breaking_is_that_of_the_product(window: int, size: float) -> None:
    torch.manual_seed(0)
    scores, direction = size * torch.randn(3, 30, 30).double(), torch.randn(3, 30, 30).double()
    visible = torch.ones(30, 30).tril(-1).triu(1 - window).bool()
    scores.requires_grad_()
    broken = scores.sigmoid()
    left = torch.where(visible, 1 - broken, 1).flip(-1).cumprod(-1).flip(-1)
    product = torch.where(visible, broken * torch.nn.functional.pad(left[..., 1:], (0, 1), value=1), 0)
    weights = made("a broken stick").weights(scores, visible)
    (found,) = torch.autograd.grad(weights, scores, direction)
    (expected,) = torch.autograd.grad(product, scores, direction)
    assert largest_difference(weights, product) < 1e-12 and largest_difference(found, expected) < 1e-12
