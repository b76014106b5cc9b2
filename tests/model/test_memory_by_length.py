"""No tensor grows with the square of the length, whatever the encoding; a long text fits in memory."""

from typing import Any

import pytest
import torch
from support.cases import find_case
from support.encodings import one_of_a_kind
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pe_bench.config.groups import config_dir
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias import fire
from pe_bench.encodings.content import dape
from pe_bench.inspection.check.case import Case, as_type, distinct_layers, layer_inputs
from pe_bench.model import accelerate
from pe_bench.model.attention import attention, chunks, reference

NAMES = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
LENGTH = 512


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is made, a view counting as what it views."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return result


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken at a time is so little that what grows with the length is the largest."""
    monkeypatch.setattr(chunks, "CHUNK_QUERIES", 16)
    monkeypatch.setattr(chunks, "MAX_CHUNK_ELEMENTS", 2**13)
    monkeypatch.setattr(fire, "PAIRS_AT_ONCE", 256)
    monkeypatch.setattr(dape, "PAIRS_AT_ONCE", 256)
    monkeypatch.setattr(reference, "REFERENCE_ELEMENTS", 2**13)
    monkeypatch.setattr(accelerate, "FEEDFORWARD_TOKENS", 64)


@torch.no_grad()
def largest_in_a_layer(layer: LayerEncoding, length: int) -> int:
    with Largest() as largest:
        attention(layer, *as_type(layer_inputs(length, batch=1), torch.float32), torch.arange(length))
    return largest.bytes


def long_case(name: str) -> Case:
    """As many positions as there are tokens; tables take their last row for all that lies beyond."""
    config = find_case(name).spec.values
    modifiers = [key for key, part in config.get("modifiers", {}).items() if "max_position" in part]
    enough = [f"encoding.modifiers.{key}.max_position={LENGTH}" for key in modifiers]
    return find_case(name, (*enough, *["encoding.overflow=clamp"] * (config.get("overflow") == "error")))


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_no_tensor_grows_with_the_square_of_the_length(name: str) -> None:
    for layer in distinct_layers(long_case(name).with_random_parameters()):
        short, long = (largest_in_a_layer(layer, length) for length in (LENGTH // 2, LENGTH))
        assert long <= 2.2 * short and long < 4 * LENGTH**2
