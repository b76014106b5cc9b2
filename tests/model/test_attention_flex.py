"""FlexAttention gives what the reference gives: its biases, its masks and its gradients, here on a CPU."""

import pytest
import torch
from support.attending import (
    SCORING,
    H,
    K,
    Strided,
    WindowOfEachHead,
    largest_error,
    made,
    output_and_gradients,
)
from torch.nn.attention import flex_attention as library
from torch.nn.attention.flex_attention import create_block_mask

from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.layers.local_global import Chunks
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.inspection.check.case import largest_difference, layer_inputs
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.flex import FLEX_BLOCK, block_mask, can_flex, fused_flex_attention
from pe_bench.model.attention.reference import make_sides

BLOCKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
BLOCKS += ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")
MASKED = ("a window", "strides of heads")
SERVED = [
    name
    for name in (*MASKED, *SCORING)
    if can_flex(made(name), layer_inputs(5, torch.float32)[1], torch.arange(5))
]


def test_flex_attention_is_the_reference() -> None:
    assert {"a slope", "buckets", "columns", *MASKED, "a sink"} <= {*SERVED}
    windowed = ("a slope", "columns", "a window", "a sink")
    for name, window in [*((name, None) for name in SERVED), *((name, 20) for name in windowed)]:
        arguments = (*layer_inputs(130), torch.arange(130), window)
        encoding = made(name)
        with torch.no_grad():
            fast = fused_flex_attention(encoding, *arguments)
            assert largest_difference(fast, reference_attention(encoding, *arguments)) < 1e-6, name


@pytest.mark.full
@pytest.mark.parametrize("name", ["buckets", "columns and a rotation", "a window", "a sink"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which the compiler looks at
def test_gradients_are_those_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a CPU the backward pass is there, and refused for being slow.
    monkeypatch.setattr(library, "_validate_device", lambda *tensors: None)
    encoding, position = made(name), torch.arange(131)
    for window in (None, 20):
        exact = output_and_gradients(reference_attention, encoding, layer_inputs(131), position, window)
        found = output_and_gradients(fused_flex_attention, encoding, layer_inputs(131), position, window)
        assert largest_error(found, exact) < 1e-6


@pytest.mark.parametrize("tokens", [1, 300])
def test_masks_hold_what_is_visible_and_nothing_else(tokens: int) -> None:
    x, q, k, _ = layer_inputs(tokens, batch=1)
    places = (torch.arange(H)[:, None, None], torch.arange(tokens)[:, None], torch.arange(tokens))
    distance = places[1] - places[2]
    for encoding in (
        *(SlidingWindow(200), Chunks(FLEX_BLOCK), Streaming(K, cache=40), StickBreaking(), NoPE(), Strided()),
        *(WindowOfEachHead(), made("a window within chunks")),
    ):
        queries, keys = make_sides(encoding.double(), x, q, k, torch.arange(tokens))
        for window in (None, 60):
            mask = block_mask(encoding, queries, keys, window)
            visible = encoding.visible(queries, keys) & (distance >= 0) & (distance < (window or tokens))
            shown = mask.mask_mod(torch.zeros(()), *places)
            assert torch.equal(shown.expand(H, tokens, tokens), visible.expand(H, tokens, tokens))
            if visible.dim() == 2:  # the blocks are those that PyTorch finds by looking at all pairs
                exact = create_block_mask(mask.mask_mod, None, None, tokens, tokens, device="cpu")
                assert mask.shape == exact.shape
                for name in BLOCKS:
                    ours, theirs = getattr(mask, name), getattr(exact, name)
                    assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype and ours.is_contiguous()
