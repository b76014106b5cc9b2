"""FlexAttention gives what the reference gives: its biases, its masks and its gradients, here on a CPU."""

import pytest
import torch
from support.cases import find_case
from support.encodings import one_of_a_kind
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention as library
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from pe_bench.config.groups import config_dir
from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.bam import BAM
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.sandwich import Sandwich
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.layers.local_global import Chunks
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.masks.ranges import first_and_latest
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.inspection.check.case import layer_inputs, layers_of
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import choose, flex, project, reference_attention
from pe_bench.model.attention.flex import (
    BLOCK,
    add_columns,
    block_mask,
    can_flex,
    fused_flex_attention,
)

NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

H, K = 3, 4
D = H * K
MASKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
MASKS_OF_KEYS = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")


class Sinks(LayerEncoding):
    """The first tokens, and the latest ones: a mask alone."""

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return ((distance < 37) | (keys.index < 3)) & (distance >= 0)

    def ranges(self, start: int, stop: int) -> list[range]:
        return first_and_latest(3, 37, start, stop)


class StridedByHead(LayerEncoding):
    """Head h sees every key at a multiple of h + 1."""

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance % torch.arange(1, H + 1)[:, None, None] == 0)


class Strided(LayerEncoding):
    """Every third key, and the query's own; nothing is said of ranges."""

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance % 3 == 0)


def inputs(
    tokens: int, batch: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The input of a layer, queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, tokens, D, generator=generator, dtype=dtype)
    q, k, v = torch.randn(3, batch, H, tokens, K, generator=generator, dtype=dtype)
    return x, q, k, v


def stack(*parts: LayerEncoding) -> Stack:
    """In float64: a stack's parts are registered where they belong, and not in it."""
    return Stack([part.double() for part in parts])


def indices(tokens: int, batch: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of all batches, heads, queries and keys, as what FlexAttention calls its functions with."""
    return (
        torch.arange(batch)[:, None, None, None],
        torch.arange(H)[:, None, None],
        torch.arange(tokens)[:, None],
        torch.arange(tokens),
    )


def mask_of(encoding: LayerEncoding, tokens: int, window: int | None = None) -> BlockMask:
    x, q, k, _ = inputs(tokens, batch=1)
    return block_mask(encoding, *project(encoding.double(), x, q, k, torch.arange(tokens)), window)


def visible_to(encoding: LayerEncoding, tokens: int, window: int | None = None) -> Tensor:
    """What the reference shows, [T, T]."""
    x, q, k, _ = inputs(tokens, batch=1)
    queries, keys = project(encoding.double(), x, q, k, torch.arange(tokens))
    distance = queries.index.unsqueeze(-1) - keys.index
    visible = encoding.visible(queries, keys) & (distance >= 0)
    return visible if window is None else visible & (distance < window)


BIASED = [
    lambda: ALiBi(H),
    lambda: T5(D, H),
    lambda: KerpleLog(H),
    lambda: Sandwich(H),
    lambda: BAM(H),
    lambda: FoX(D, H),
    lambda: stack(ALiBi(H), RoPE(K), LogN(5)),
    lambda: stack(FoX(D, H), RoPE(K), LogN(5)),
    lambda: stack(ALiBi(H), Sink(H, initial=0.7)),
]
MASKED = [
    lambda: SlidingWindow(37),
    lambda: Chunks(50),
    Sinks,
    Strided,
    StridedByHead,
    lambda: stack(StridedByHead(), SlidingWindow(150)),
    lambda: stack(RoPE(K), SlidingWindow(150), LogN(5)),
    lambda: stack(T5(D, H), Sinks()),
]


@pytest.mark.parametrize(("tokens", "batch", "window"), [(130, 2, None), (256, 1, 20)])
@pytest.mark.parametrize("make", [*BIASED, *MASKED, NoPE])
def test_flex_attention_is_the_reference(make, tokens: int, batch: int, window: int | None) -> None:
    encoding, arguments = make().double(), (*inputs(tokens, batch), torch.arange(tokens))
    with torch.no_grad():
        fast = fused_flex_attention(encoding, *arguments, window=window)
        assert worst(fast, reference_attention(encoding, *arguments, window=window)) < 1e-9


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_every_encoding_that_adds_or_hides_has_the_references_output(name: str) -> None:
    for layer in layers_of(find_case(name).encoding):
        arguments = (*layer_inputs(24), torch.arange(24))
        acts = layer.overrides("visible", "bias", "distance_bias")
        if acts and can_flex(layer, arguments[1].float(), arguments[-1]):
            with torch.no_grad():
                fast = fused_flex_attention(layer, *arguments, window=9)
                assert worst(fast, reference_attention(layer, *arguments, window=9)) < 1e-6


@pytest.mark.parametrize(
    ("make", "window"),
    [
        (lambda: ALiBi(H), None),
        (lambda: T5(D, H), None),
        (lambda: stack(KerpleLog(H), LogN(5)), 20),
        (lambda: stack(FoX(D, H), Sinks()), None),
        (lambda: stack(RoPE(K), SlidingWindow(37), Sink(H)), None),
        (Strided, None),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which the compiler looks at
def test_gradients_are_those_of_the_reference(make, window: int | None, monkeypatch) -> None:
    # On a CPU the backward pass is there, and refused for being slow.
    monkeypatch.setattr(library, "_validate_device", lambda *tensors: None)
    encoding, position = make().double(), torch.arange(131)
    leaves = [tensor.requires_grad_() for tensor in inputs(131)]
    parts = getattr(encoding, "parts", [encoding])
    wanted = [*leaves, *(parameter for part in parts for parameter in part.parameters())]
    weight = torch.randn(leaves[1].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def gradients(path) -> list[Tensor | None]:
        output = path(encoding, *leaves, position, window=window)
        return list(torch.autograd.grad((output * weight).sum(), wanted, allow_unused=True))

    for fast, exact in zip(gradients(fused_flex_attention), gradients(reference_attention), strict=True):
        assert (fast is None) == (exact is None)
        if fast is not None and exact is not None:
            assert worst(fast, exact) < 1e-9


def same_blocks(mask: BlockMask, tokens: int) -> None:
    """The blocks are those that PyTorch finds by looking at all pairs."""
    exact = create_block_mask(mask.mask_mod, None, None, tokens, tokens, device="cpu")
    assert mask.shape == exact.shape
    for name in MASKS + MASKS_OF_KEYS:
        found, expected = getattr(mask, name), getattr(exact, name)
        assert torch.equal(found, expected) and found.dtype == expected.dtype and found.is_contiguous(), name


@pytest.mark.parametrize("tokens", [1, 130, 300])
@pytest.mark.parametrize("window", [None, 60])
@pytest.mark.parametrize(
    "encoding",
    [
        SlidingWindow(37),
        SlidingWindow(200),
        Chunks(50),
        Chunks(BLOCK),
        Streaming(K, cache=40),
        LMInfinite(K, window=35),
        StickBreaking(),
        Sinks(),
        Strided(),
        Stack([Chunks(100), SlidingWindow(70), NoPE()]),
    ],
)
def test_masks_hold_what_is_visible_and_nothing_else(
    encoding: LayerEncoding, window: int | None, tokens: int
) -> None:
    mask = mask_of(encoding, tokens, window)
    visible = visible_to(encoding, tokens, window)
    assert torch.equal(mask.mask_mod(*indices(tokens)).expand(1, 1, -1, -1)[0, 0], visible)
    same_blocks(mask, tokens)


@pytest.mark.parametrize("encoding", [Sinks(), Strided(), SlidingWindow(37)])
def test_masks_are_the_same_in_any_chunks_and_ask_for_few_pairs_at_a_time(
    encoding: LayerEncoding, monkeypatch
) -> None:
    whole, asked = mask_of(encoding, 700), []
    visible = type(encoding).visible

    def watched(self, queries: Side, keys: Side) -> Tensor:
        asked.append(len(queries.index) * len(keys.index))
        return visible(self, queries, keys)

    monkeypatch.setattr(type(encoding), "visible", watched)
    monkeypatch.setattr(flex, "CHUNK_ELEMENTS", 2 * BLOCK * 700)
    chunked = mask_of(encoding, 700)
    assert max(asked) <= 2 * BLOCK * 700
    assert torch.equal(chunked.mask_mod(*indices(700)), whole.mask_mod(*indices(700)))
    for name in MASKS + MASKS_OF_KEYS:
        assert torch.equal(getattr(chunked, name), getattr(whole, name))


def test_columns_keep_differences_of_sums_that_are_too_long_for_float32() -> None:
    tokens = 2_000
    generator = torch.Generator().manual_seed(0)
    sums = -45_000 - torch.rand(2, H, tokens, generator=generator, dtype=torch.float64).cumsum(-1)
    ones = torch.ones_like(sums)
    like = torch.empty(2, H, tokens, K, dtype=torch.bfloat16)
    added = add_columns(torch.stack([sums, ones], -1), torch.stack([ones, -sums], -1), like)
    batch, head = torch.tensor(1), torch.tensor(2)
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)
    found = added(torch.zeros(()), batch, head, query, key)
    exact = sums[1, 2, :, None] - sums[1, 2]
    assert found.dtype == torch.float32
    assert float((found - exact).abs().max()) < 1e-4  # a rounding of differences up to 1,000
    near = (query - key).abs() < 10
    assert float((found - exact).abs()[near].max()) < 1e-6
    plain = sums.float()[1, 2, :, None] - sums.float()[1, 2]
    assert float((plain - exact).abs()[near].max()) > 1e-3


@pytest.mark.parametrize("make", [lambda: ALiBi(H), lambda: FoX(D, H), Sinks])
def test_half_precision_goes_in_and_out_and_biases_stay_precise(make) -> None:
    encoding, position = make(), torch.arange(200)
    arguments = [tensor.bfloat16() for tensor in inputs(200)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        fast = fused_flex_attention(encoding, *arguments, position)
    exact = reference_attention(
        make_equal(encoding, make).double(), *(tensor.double() for tensor in arguments), position
    )
    assert fast.dtype == torch.bfloat16
    assert worst(fast.double(), exact) < 0.02  # two roundings of values up to 3


def make_equal(encoding: LayerEncoding, make) -> LayerEncoding:
    copy = make()
    copy.load_state_dict(encoding.state_dict())
    return copy


def on_cuda(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Queries of 5 tokens on a GPU that need not be here."""
    with FakeTensorMode():
        return torch.empty(1, H, 5, K, device="cuda", dtype=dtype)


FLEX, REFERENCE = "fused flex", "reference"


@pytest.mark.parametrize(
    ("encoding", "window", "path"),
    [
        (NoPE(), None, "fused"),
        (Stack([RoPE(d_head=K), LogN(2)]), None, "fused"),
        (RoPE(d_head=K), 3, FLEX),
        (ALiBi(H), None, FLEX),
        (T5(D, H), None, FLEX),
        (Stack([T5(D, H), LogN(2)]), 3, FLEX),
        (FoX(D, H), None, FLEX),
        (SlidingWindow(3), None, FLEX),
        (Stack([RoPE(d_head=K), Chunks(3)]), 2, FLEX),
        (FIRE(H, 8), None, REFERENCE),
        (Stack([FoX(D, H), ALiBi(H)]), None, REFERENCE),
        (Shaw(K), None, REFERENCE),
        (CoPE(K), None, REFERENCE),
        (StickBreaking(), None, REFERENCE),
    ],
)
def test_the_path_on_a_gpu_follows_from_the_hooks_that_are_overridden(
    encoding: LayerEncoding, window: int | None, path: str
) -> None:
    assert choose(encoding, on_cuda(), torch.arange(5), window).name == path


@pytest.mark.full
@pytest.mark.filterwarnings("default")  # the generator of code warns of its own parts
@pytest.mark.parametrize("make", [lambda: ALiBi(H), lambda: FoX(D, H), Sinks])
def test_the_code_that_is_generated_for_a_cpu_is_the_reference_too(make, monkeypatch) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(library.flex_attention, dynamic=False, fullgraph=True)
    monkeypatch.setattr(flex, "_compiled", lambda device: compiled)
    encoding = make()
    arguments = (*inputs(200, dtype=torch.float32), torch.arange(200))
    with torch.no_grad():
        fast = fused_flex_attention(encoding, *arguments, window=150)
        assert worst(fast, reference_attention(encoding, *arguments, window=150)) < 1e-5
