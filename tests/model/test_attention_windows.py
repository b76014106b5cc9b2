"""Attention in chunks of queries touches the keys that they may see, and gives what the reference gives."""

from functools import cache

import pytest
import torch
from support.cases import find_case
from torch import Tensor

from pe_bench.config.groups import config_dir
from pe_bench.encodings.base import LayerEncoding, LengthError, Side
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.distance.self_extend import SelfExtend
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.layers.local_global import Chunks
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.masks.ranges import first_and_latest, intersection, latest
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.inspection.check import layers
from pe_bench.inspection.check.case import Case, as_type, layer_inputs, layers_of
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import attention, choose, chunks, reference, reference_attention
from pe_bench.model.attention.chunks import fused_chunk_attention

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
H, K, D = 4, 8, 32  # those of `layer_inputs`

case_of = cache(find_case)


class WindowOfEachHead(LayerEncoding):
    """Head h sees the last 2h + 1 tokens; the ranges are those of the widest."""

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance <= 2 * torch.arange(H)[:, None, None])

    def ranges(self, start: int, stop: int) -> list[range]:
        return latest(2 * H - 1, start, stop)


HIDING = {
    "a window of one": lambda: SlidingWindow(1),
    "a window": lambda: SlidingWindow(6),
    "a window of each head": WindowOfEachHead,
    "windows of heads in chunks": lambda: stack(WindowOfEachHead(), Chunks(4)),
    "a window longer than the text": lambda: SlidingWindow(99),
    "chunks": lambda: Chunks(5),
    "chunks of one": lambda: Chunks(1),
    "sinks": lambda: Streaming(K, cache=9, sinks=3),
    "one token beside the sinks": lambda: Streaming(K, cache=4, sinks=3),
    "no sinks": lambda: Streaming(K, cache=7, sinks=0),
    "global tokens": lambda: LMInfinite(K, window=5, global_tokens=2),
    "no global tokens": lambda: LMInfinite(K, window=5, global_tokens=0),
    "a window within chunks": lambda: stack(Chunks(7), SlidingWindow(4)),
    "sinks and a window": lambda: stack(Streaming(K, cache=9, sinks=3), SlidingWindow(20)),
    "sinks and a shorter window": lambda: stack(Streaming(K, cache=9, sinks=3), SlidingWindow(4)),
}
SCORING = {
    "a bias and a window": lambda: stack(ALiBi(H), SlidingWindow(6)),
    "a bias and a window of each head": lambda: stack(ALiBi(H), WindowOfEachHead()),
    "two distances and a window of each head": lambda: stack(
        ReRoPE(K, train_length=8, window=5), WindowOfEachHead()
    ),
    "a bias in chunks": lambda: stack(T5(D, H), Chunks(7), LogN(3)),
    "two biases": lambda: stack(FIRE(H, 4), ALiBi(H)),
    "a bias of the content": lambda: stack(FoX(D, H), SlidingWindow(6)),
    "two distances": lambda: ReRoPE(K, train_length=8, window=5),
    "two distances of groups": lambda: SelfExtend(K, train_length=8, window=6, group_size=3),
    "two distances and a bias": lambda: stack(ReRoPE(K, train_length=8, window=5), ALiBi(H)),
    "two distances as in training": lambda: ReRoPE(K, train_length=99, window=5),
}
ALL = {**HIDING, **SCORING}


def stack(*parts: LayerEncoding) -> Stack:
    """In float64: a stack's parts are registered where they belong, and not in it."""
    return Stack([part.double() for part in parts])


def made(name: str) -> LayerEncoding:
    torch.manual_seed(0)
    return ALL[name]().double()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several to a short text, of unequal sizes."""
    monkeypatch.setattr(chunks, "CHUNK_QUERIES", 7)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 2 * H * 5 * 30)


def jumping(tokens: int) -> Tensor:
    """Positions that do not count tokens, and differ between the sequences."""
    return torch.stack([2 * torch.arange(tokens), torch.arange(tokens) + 3])


@pytest.mark.parametrize("name", HIDING)
def test_ranges_hold_all_keys_that_are_seen(name: str) -> None:
    assert layers.keys_outside_of_ranges(made(name), tokens=40) == 0


@pytest.mark.parametrize("name", HIDING)
def test_the_first_key_of_every_range_and_the_last_one_are_seen(name: str) -> None:
    if name in ("sinks and a shorter window", "windows of heads in chunks"):
        pytest.skip("of an intersection more may be taken than is seen")
    encoding, index = made(name), torch.arange(40)
    empty = torch.empty(1, H, 40, 0)
    visible = encoding.visible(*2 * [Side(empty, empty, index, index, {})]).view(-1, 40, 40).any(0)
    for start in range(33):
        seen = visible[start : start + 7].any(0)
        for one in encoding.ranges(start, start + 7):
            assert seen[one[0]] and seen[one[-1]]


def test_ranges_meet_in_what_both_hold() -> None:
    assert latest(4, 10, 12) == [range(7, 12)]
    assert first_and_latest(2, 4, 10, 12) == [range(2), range(7, 12)]
    assert first_and_latest(7, 4, 10, 12) == [range(12)]
    assert intersection([range(2), range(7, 12)], [range(12)]) == [range(2), range(7, 12)]
    assert intersection([range(2), range(7, 12)], [range(1, 9)]) == [range(1, 2), range(7, 9)]
    assert intersection([range(2)], [range(2, 5)]) == []


@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("learning", [True, False])
def test_chunks_are_the_reference(name: str, window: int | None, learning: bool) -> None:
    encoding = made(name)
    for tokens in (1, 6, 7, 8, 33):
        for position in (torch.arange(tokens), jumping(tokens), torch.arange(tokens).float() + 0.5):
            arguments = (*layer_inputs(tokens), position, window)
            exact = reference_attention(encoding, *arguments)
            # A log-sum-exp has no gradient: where one is wanted, terms are joined in another way.
            with torch.set_grad_enabled(learning):
                assert worst(fused_chunk_attention(encoding, *arguments), exact) < 1e-10


@pytest.mark.parametrize("name", ALL)
def test_gradients_of_chunks_are_those_of_the_reference(name: str) -> None:
    encoding, tokens = made(name), 23
    parameters = [one for part in getattr(encoding, "parts", [encoding]) for one in part.parameters()]

    def gradients(path) -> list[Tensor | None]:
        inputs = [one.requires_grad_() for one in layer_inputs(tokens)]
        output = path(encoding, *inputs, torch.arange(tokens))
        return list(torch.autograd.grad(output.square().sum(), [*inputs, *parameters], allow_unused=True))

    for fast, exact in zip(gradients(fused_chunk_attention), gradients(reference_attention), strict=True):
        assert (fast is None) == (exact is None)
        if fast is not None and exact is not None:
            assert worst(fast, exact) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_keeps_its_scores_in_chunks_on_the_path_that_is_chosen(name: str) -> None:
    one: Case = case_of(name)
    for layer in layers_of(one.encoding):
        for window in (None, 4):
            arguments = (*layer_inputs(32), torch.arange(32), window)
            try:
                exact = reference_attention(layer, *arguments)
            except LengthError:
                continue
            with torch.no_grad():
                assert worst(attention(layer, *arguments), exact) < 1e-10


@pytest.mark.parametrize(
    ("make", "scoring", "training"),
    [
        (lambda: SlidingWindow(3), "fused chunk", "fused chunk"),
        (lambda: stack(RoPE(K), SlidingWindow(3)), "fused chunk", "fused chunk"),
        (lambda: stack(ALiBi(H), SlidingWindow(3)), "fused chunk", "fused chunk"),
        # The fused kernels have no gradient for a bias.
        (lambda: stack(T5(D, H), SlidingWindow(3)), "fused chunk", "reference"),
        (lambda: FIRE(H, 4), "fused chunk", "reference"),
        (lambda: Streaming(K, cache=5), "fused chunk", "fused chunk"),
        (lambda: stack(ReRoPE(K, 8, 4), LogN(3)), "fused chunk", "fused chunk"),
        # Columns are sums over the whole text: exact enough for gradients, and not for scores.
        (lambda: FoX(D, H), "fused chunk", "fused column"),
        (lambda: stack(Shaw(K), SlidingWindow(3)), "reference", "reference"),
    ],
)
def test_the_path_follows_from_the_hooks_and_from_what_is_learned(make, scoring: str, training: str) -> None:
    encoding, q = make(), layer_inputs(5)[1].requires_grad_()
    assert choose(encoding, q, torch.arange(5)).name == training
    with torch.no_grad():
        assert choose(encoding, q, torch.arange(5)).name == scoring


@torch.no_grad()
def test_forgetting_is_exact_at_32768_tokens() -> None:
    tokens, rows = 32_768, range(32_768 - 8, 32_768)
    torch.manual_seed(0)
    rounded, exact = FoX(D, H), FoX(D, H).double()
    exact.load_state_dict({name: value.double() for name, value in rounded.state_dict().items()})
    inputs = layer_inputs(tokens, torch.float32, batch=1)
    truth = reference_attention(exact, *as_type(inputs, torch.float64), torch.arange(tokens), rows=rows)
    ours = last_chunk(rounded, inputs, len(rows))
    assert worst(ours, truth) < 1e-5


def last_chunk(encoding: LayerEncoding, inputs: tuple[Tensor, ...], count: int) -> Tensor:
    """What the chunk path gives the last queries, without those before them."""
    x, q, k, v = inputs
    queries, keys = reference.project(encoding, x, q, k, torch.arange(q.shape[-2]))
    last = reference.slice_tokens(queries, q.shape[-2] - count, q.shape[-2])
    return chunks._attend(encoding, last, keys, v, None)
