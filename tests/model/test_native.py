"""Our own kernels give what float64 gives, as far as their type goes, and nobody needs them."""

import ctypes
import functools
import itertools
import math
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.attending import D, largest_error, output_and_gradients
from support.native import here
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.errors import UserError
from pe_bench.inspection.check.case import largest_difference, layer_inputs
from pe_bench.model import attention as model_attention
from pe_bench.model.attention import (
    MAX_NATIVE_TOKENS,
    NATIVE,
    attention,
    choose_path,
    native,
    native_bfloat16_is_faster,
    reference_attention,
)
from pe_bench.model.attention.native import causal_attention, native_column_attention
from pe_bench.native import build, layers
from pe_bench.system.machine import processor_features
from pe_bench.training import optimizer

B, H, K = 2, 3, 20
SCALE = 0.2
ROUNDING = 2.0**-8  # of one number to bfloat16, relative to it
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="tiles are of x86")


def drawn(
    tokens: int, width: int = K, value_width: int = K, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return queries, keys, values and a gradient of the output, exact in a type, and a table of biases."""
    generator = torch.Generator().manual_seed(tokens)
    q, k = torch.randn(2, B, H, tokens, width, generator=generator).to(dtype).unbind()
    v, slope = torch.randn(2, B, H, tokens, value_width, generator=generator).to(dtype).unbind()
    return [q, k, v, slope, 2 * torch.randn(H, tokens, generator=generator)]


def exactly(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float = SCALE) -> Tensor:
    distance = torch.arange(q.shape[-2]).unsqueeze(-1) - torch.arange(q.shape[-2])
    logits = scale * q @ k.mT
    logits = logits if table is None else logits + table[:, distance.clamp(min=0)]
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1) @ v


def results(attend: Callable[..., Tensor], tensors: list[Tensor], *, biased: bool = True) -> list[Tensor]:
    """Return the output, and the gradients of queries, keys, values and biases."""
    q, k, v, slope, table = tensors
    leaves = [leaf.detach().clone().requires_grad_() for leaf in ((q, k, v, table) if biased else (q, k, v))]
    output = attend(*leaves[:3], leaves[3] if biased else None, SCALE)
    return [output.detach(), *torch.autograd.grad((output * slope).sum(), leaves)]


def in_doubles(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.double() for tensor in tensors]


@here
def test_output_and_gradients_are_those_of_float64() -> None:
    for tokens, width, value_width in (
        *((1, 4, 4), (2, 1, 1), (47, 7, 5), (48, 8, 8), (49, 32, 32)),
        *((128, 20, 33), (129, 64, 64), (300, 96, 16)),
    ):
        tensors = drawn(tokens, width, value_width)
        tensors[0] *= 1_000 if tokens == 128 else 1  # large logits
        for biased in (True, False):
            exact = results(exactly, in_doubles(tensors), biased=biased)
            ours, theirs = (results(one, tensors, biased=biased) for one in (causal_attention, exactly))
            for one, other, truth in zip(ours, theirs, exact, strict=True):
                # No worse than float32 by the textbook; that may be exact where there is little to add.
                assert largest_difference(one, truth) <= 4 * largest_difference(other, truth) + 1e-6


@here
def test_strides_and_threads_change_no_bit_and_the_output_lies_as_the_decoder_wants_it() -> None:
    q, k, v, slope, table = drawn(150)
    strided = [x.mT.contiguous().mT for x in (q, k)]
    strided += [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (v, slope)]
    for first_keys in (None, (torch.arange(150) - 39).clamp(min=0)):
        attend = functools.partial(causal_attention, first_keys=first_keys)
        expected = results(attend, [q, k, v, slope, table])
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            for tensors in ([q, k, v, slope, table], [*strided, table]):
                assert all(map(torch.equal, results(attend, tensors), expected))
        torch.set_num_threads(1)
    assert causal_attention(q, k, v, table, SCALE).transpose(1, 2).is_contiguous()


class OneSlopeForAllHeads(LayerEncoding):
    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.full((1,), 0.3))

    def distance_bias(self, distance: Tensor) -> Tensor:
        return -self.slope * distance


class OneKeyForAllHeads(LayerEncoding):
    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return queries.x, keys.x.mean(1, keepdim=True)


@here
def test_what_heads_share_is_read_as_the_reference_reads_it() -> None:
    inputs, position = layer_inputs(50, torch.float32), torch.arange(50)
    for encoding in (OneSlopeForAllHeads(), OneKeyForAllHeads()):
        assert choose_path(encoding, inputs[1].requires_grad_(), position) == NATIVE
        exact = output_and_gradients(reference_attention, encoding, inputs, position)
        assert largest_error(output_and_gradients(attention, encoding, inputs, position), exact) < 1e-4
        with torch.no_grad():
            assert largest_difference(attention(encoding, *inputs, position), exact[0]) < 1e-5


@here
def test_the_sums_of_fox_lose_no_digits_however_long_the_text() -> None:
    torch.manual_seed(1)
    encoding, position = FoX(D, 4), torch.arange(1_024)
    for parameter in encoding.parameters():
        parameter.detach().add_(0.1 * torch.randn(parameter.shape))
    x, q, k, v = layer_inputs(1_024, torch.float32, batch=1)
    found = native_column_attention(encoding, x, q.requires_grad_(), k, v, position, None)
    doubles = (one.detach().double() for one in (x, q, k, v))
    assert largest_difference(found, reference_attention(encoding.double(), *doubles, position)) < 2e-6


@pytest.fixture(params=["emulated tiles", "dot products", "of this processor"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled code for bfloat16 uses these instructions."""
    if request.param == "of this processor":
        if native.usable_kernel(torch.bfloat16).library is None:
            pytest.skip(native.usable_kernel(torch.bfloat16).description)
        return
    flags = {"emulated tiles": ["-DEMULATED_TILES"], "dot products": build.DOT_FLAGS}[request.param]
    if request.param == "dot products" and not processor_features() >= build.DOT_FEATURES:
        pytest.skip("this processor has no dot products of bfloat16")
    compiler, target = build.find_compiler(), tmp_path / build.LIBRARY_FILE
    assert compiler is not None
    build.compile_library(compiler, build.BFLOAT16_SOURCE, ["-march=native", *flags], target)
    kernel = build.Kernel(ctypes.CDLL(str(target)), request.param)
    monkeypatch.setattr(native, "usable_kernel", lambda *_: kernel)
    monkeypatch.setattr(layers, "bfloat16_kernel", lambda: kernel)


@here
@on_x86
def test_half_precision_is_as_exact_as_its_type(products: None) -> None:
    for tokens, width, value_width in (
        *((64, 33, 32), (128, 32, 32), (129, 64, 64), (129, 20, 33), (300, 96, 96), (300, 32, 20)),
        *((47, 7, 7), (2, 1, 1), (31, 3, 40), (33, 40, 2), (97, 65, 31)),
    ):
        tensors = drawn(tokens, width, value_width, torch.bfloat16)
        for biased in (True, False):
            exact = results(exactly, in_doubles(tensors), biased=biased)
            for number, (one, truth) in enumerate(
                zip(results(causal_attention, tensors, biased=biased), exact, strict=True)
            ):
                assert one.dtype == (torch.float32 if number == 4 else torch.bfloat16)
                assert largest_difference(one, truth) <= 4 * ROUNDING * max(1.0, float(truth.abs().max()))
                error = (one.double() - truth).square().mean().sqrt()
                assert tokens < 64 or error <= ROUNDING * truth.square().mean().sqrt()


def hiding(first_keys: Tensor) -> Callable[..., Tensor]:
    """Return `exactly` with the keys hidden before the first key [T] of each query."""

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float) -> Tensor:
        index = torch.arange(q.shape[-2])
        hidden = index < first_keys.unsqueeze(-1)
        distance = (index.unsqueeze(-1) - index).clamp(min=0)
        bias = 0 if table is None else table[:, distance]
        logits = (scale * q @ k.mT + bias).masked_fill(hidden | (index > index.unsqueeze(-1)), -math.inf)
        return logits.softmax(-1) @ v

    return attend


def require_hidden_keys_are_exact(dtype: torch.dtype, limit: float) -> None:
    """Compare windows and chunks of keys with float64; `limit` is relative to numbers above 1."""
    for tokens, size in ((1, 1), (31, 1), (48, 3), (129, 32), (129, 64), (300, 100), (300, 400)):
        index = torch.arange(tokens)
        for first_keys in ((index + 1 - size).clamp(min=0), index - index % size):
            attend = functools.partial(causal_attention, first_keys=first_keys)
            tensors = drawn(tokens, dtype=dtype)
            exact = results(hiding(first_keys), in_doubles(tensors))
            for one, truth in zip(results(attend, tensors), exact, strict=True):
                assert largest_difference(one, truth) <= limit * max(1.0, float(truth.abs().max()))


@here
def test_windows_and_chunks_of_keys_are_those_of_float64() -> None:
    require_hidden_keys_are_exact(torch.float32, 1e-5)


@here
def test_keys_before_the_window_of_all_queries_of_a_block_are_not_read() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        if native.usable_kernel(dtype).library is None:
            continue
        q, k, v, _, table = drawn(600, dtype=dtype)
        v[:, :, :128] = math.nan
        first_keys = (torch.arange(600) - 15).clamp(min=0)
        output = causal_attention(q, k, v, table, SCALE, first_keys=first_keys)
        # Blocks have up to 128 queries and keys.
        assert output[:, :, 256:].isfinite().all() and not output[:, :, :128].isfinite().any()


@here
@pytest.mark.parametrize(
    "first_keys", [torch.arange(40) - 9, torch.arange(40).flip(0), torch.zeros(1), torch.arange(1, 41)]
)
def test_first_keys_outside_the_text_are_refused_before_the_kernel_reads_them(first_keys: Tensor) -> None:
    class Wrong(SlidingWindow):
        def first_keys(self, tokens: int) -> Tensor:
            return first_keys

    x, q, k, v = layer_inputs(40, torch.float32)
    with pytest.raises(UserError, match="first_keys of Wrong"):
        attention(Wrong(10), x, q, k, v, torch.arange(40))


@here
def test_columns_of_two_widths_are_refused_before_the_kernel_reads_them() -> None:
    q, k, v, _, _ = drawn(9)
    columns = (torch.ones(B, H, 9, 3), torch.ones(B, H, 9, 2))
    with pytest.raises(UserError, match=r"columns of queries and keys differ in width: \[2, 3\]"):
        causal_attention(q, k, v, None, SCALE, None, columns)


@here
@on_x86
def test_windows_and_chunks_in_half_precision_are_as_exact_as_its_type(products: None) -> None:
    require_hidden_keys_are_exact(torch.bfloat16, 4 * ROUNDING)


@here
def test_splitting_heads_over_threads_changes_no_bit(products: None) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v, _, table = (x[:, :2] if x.dim() == 4 else x[:2] for x in drawn(1_100, dtype=dtype))
        library = native.usable_kernel(dtype).library
        if dtype == torch.float32:
            library = build.kernel().library
        assert library is not None
        found = []
        first_keys = (torch.arange(1_100) - 400).clamp(min=0)
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            found.append(native._forward(library, q, k, v, table, SCALE, first_keys=first_keys))
        torch.set_num_threads(1)
        for output, normalizers in found[1:]:
            assert torch.equal(output, found[0][0]) and torch.equal(normalizers, found[0][1])


@here
@on_x86
def test_muon_in_half_precision_is_as_exact_as_pytorch_whatever_the_threads(products: None) -> None:
    for shape in ((3, 40, 50), (2, 128, 344), (2, 100, 65), (1, 1, 97), (1, 97, 1), (4, 33, 33)):
        wide = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        rank = min(3, *shape[1:])
        low_rank = wide[..., :rank] @ wide[..., :rank, :]
        for matrices in (wide, low_rank, 1e-30 * wide, torch.zeros(shape)):
            exact = optimizer.orthogonalise(matrices.double())
            found = []
            for threads in (1, 3):
                torch.set_num_threads(threads)
                constants = optimizer.MIN_NORM, optimizer.MUON_COEFFICIENTS, optimizer.MUON_ITERATIONS
                found.append(layers.iterate_muon_in_bfloat16(matrices, *constants))
            torch.set_num_threads(1)
            assert torch.equal(*found)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(optimizer, "native_bfloat16_is_faster", lambda _: False)
                theirs = optimizer.orthogonalise_in_bfloat16(matrices)
            assert (found[0] - exact).norm() <= 1.1 * (theirs - exact).norm()


@here
def test_a_matrix_with_no_number_has_no_update_of_muon_in_bfloat16(products: None) -> None:
    for value in (math.nan, math.inf):
        matrices = torch.ones(2, 40, 33)
        matrices[0, 7, 5] = value
        constants = optimizer.MIN_NORM, optimizer.MUON_COEFFICIENTS, optimizer.MUON_ITERATIONS
        moved = layers.iterate_muon_in_bfloat16(matrices, *constants)
        assert moved[0].isnan().any() and moved[1].isfinite().all()


@here
def test_muon_in_bfloat16_uses_our_code_without_amx_whatever_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if native.usable_kernel(torch.bfloat16).library is None:
        pytest.skip("no compiled code for bfloat16 is here")
    features: set[str] = set()
    calls = []
    monkeypatch.setattr(model_attention, "processor_features", lambda: features)
    monkeypatch.setattr(optimizer, "iterate_muon_in_bfloat16", lambda matrices, *_: calls.append(matrices))
    for threads in (1, 8):
        torch.set_num_threads(threads)
        optimizer.orthogonalise_in_bfloat16(torch.ones(2, 6, 4))
    torch.set_num_threads(1)
    features.update(build.AMX_FEATURES)
    optimizer.orthogonalise_in_bfloat16(torch.ones(2, 6, 4))
    assert len(calls) == 2


class NullKey(LayerEncoding):
    def null_logit(self, queries: Side) -> Tensor:
        return queries.x.new_full((1, 1, 1, 1), 0.5, dtype=torch.float32)


@here
def test_scoring_in_bfloat16_matches_the_reference() -> None:
    if not native_bfloat16_is_faster(torch.device("cpu")):
        pytest.skip("PyTorch's kernel scores bfloat16 here")
    torch.manual_seed(0)
    inputs, position = layer_inputs(300, torch.bfloat16), torch.arange(300)
    encodings = LayerEncoding(), OneSlopeForAllHeads(), OneKeyForAllHeads(), NullKey(), FoX(D, 4)
    for encoding, window in itertools.product((*encodings, SlidingWindow(70)), (None, 90)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert choose_path(encoding, inputs[1], position, window).name.startswith("native")
            found = attention(encoding, *inputs, position, window)
        doubles = [one.double() for one in inputs]
        exact = reference_attention(encoding.double(), *doubles, position, window).detach()
        assert found.dtype == torch.bfloat16
        assert largest_difference(found, exact) <= 4 * ROUNDING * max(1.0, float(exact.abs().max()))


@here
def test_scoring_in_bfloat16_uses_our_kernel_only_without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = native.usable_kernel(torch.float32)
    features: set[str] = set()
    monkeypatch.setattr(model_attention, "usable_kernel", lambda *_: kernel)
    monkeypatch.setattr(model_attention, "processor_features", lambda: features)

    def path(encoding: LayerEncoding, tokens: int) -> str:
        q = torch.empty(1, 4, tokens, K, dtype=torch.bfloat16)
        with torch.inference_mode():
            return choose_path(encoding, q, torch.arange(tokens)).name

    plain, biased, longest = LayerEncoding(), OneSlopeForAllHeads(), MAX_NATIVE_TOKENS
    assert path(plain, longest) == path(plain, longest + 1) == path(biased, longest) == "native"
    assert path(biased, longest + 1) == "fused distance"
    assert path(FoX(D, 4), 64) == "native column"
    features.update(build.AMX_FEATURES)
    assert path(plain, 64) == "fused" and path(biased, 64) == "fused distance"
    features.clear()
    kernel = build.Kernel(None, "none")
    assert path(plain, 64) == "fused"


@here
def test_a_kernel_whose_first_trial_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = build.kernel()
    assert native.usable_kernel.__wrapped__(torch.float32) is right
    forward = native._forward

    def off(*inputs: object, **options: object) -> object:
        return forward(*inputs[:-1], 1.01 * inputs[-1], **options)

    monkeypatch.setattr(native, "_forward", off)
    tried = native.usable_kernel.__wrapped__(torch.float32)
    assert tried.library is None and "its results are off by" in tried.description


@here
def test_the_first_use_of_the_kernel_may_be_in_inference_mode() -> None:
    native.usable_kernel.cache_clear()
    with torch.inference_mode():
        kernel = native.usable_kernel(torch.float32)
    assert kernel.library is not None, kernel.description
    q, k, v, _, table = drawn(9)
    native.usable_kernel.cache_clear()
    with torch.inference_mode():
        output = causal_attention(q, k, v, table, SCALE)
    assert torch.allclose(output, exactly(q, k, v, table), atol=1e-5)
