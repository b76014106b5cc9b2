"""dape: a small network on the biases of all heads."""

import math

import pytest
import torch
from support.biases import with_steps
from support.cases import find_case
from support.reference_inputs import K4, Q4, X4, H, K, T, fill, near, output
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.content.dape import DAPE, Inner
from pe_bench.inspection.check.suite import PROPERTIES, check
from pe_bench.model.attention import logits, project


def final_logits(encoding: LayerEncoding) -> Tensor:
    queries, keys = project(encoding, X4, Q4, K4, torch.arange(T))
    return logits(encoding, queries, keys, 1 / math.sqrt(K))[0].detach()


# dape


@pytest.mark.parametrize("inner", ["alibi", "kerple_log", "fire"])
def test_dape_with_a_network_of_zeros_is_its_inner_encoding(inner: Inner) -> None:
    encoding = DAPE(H, 4096, inner).double()
    assert not near(output(encoding).detach(), output(encoding.inner).detach(), 1e-3)
    for parameter in (*encoding.hidden.parameters(), *encoding.output.parameters()):
        fill(parameter, torch.zeros_like(parameter))
    assert near(output(encoding).detach(), output(encoding.inner).detach(), 1e-12)


def test_dape_mixes_heads_and_reads_content() -> None:
    encoding = with_steps(DAPE(H, train_length=4096, inner="alibi", d_hidden=4))
    q = Q4.clone().requires_grad_()
    queries, keys = project(encoding, X4, q, K4, torch.arange(T))
    found = logits(encoding, queries, keys, 1 / math.sqrt(K))[0]
    (gradient,) = torch.autograd.grad((found + 0.5 * q @ -K4.mT)[0, 0].sum(), q)
    assert gradient[0, 0].any(), "the change of head 0 depends on its own scores"
    assert gradient[0, 1].any(), "and on those of head 1"


@pytest.mark.parametrize("inner", ["alibi", "kerple_log", "fire"])
def test_dape_claims_what_its_inner_encoding_does_but_decay(inner: Inner) -> None:
    encoding = DAPE(H, 4096, inner)
    claimed = encoding.claims
    assert claimed == encoding.inner.claims - {"decaying"}
    assert ("shift_invariant" in claimed) == (inner != "fire")


@pytest.mark.parametrize("inner", ["alibi", "kerple_log", "fire"])
def test_dape_has_a_network_and_an_inner_encoding_of_its_own_in_every_layer(inner: Inner) -> None:
    model, heads, layers = find_case("dape", (f"encoding.inner={inner}",)).as_built(), 4, 4
    of_inner = {"alibi": 0, "kerple_log": 2 * heads, "fire": 2 * 32 + 32 * heads + heads + 2}[inner]
    network = 2 * heads * 32 + 32 + 32 * heads + heads
    assert sum(map(Tensor.numel, model.parameters())) == layers * (network + of_inner)
    assert model.layer(0) is not model.layer(1)


# The contracts hold the default to all properties. At 65,536 tokens ALiBi's bias is -16,384, and float32
# rounds what a network makes of it by 0.001.
@pytest.mark.parametrize("inner", ["alibi", "fire"])
def test_dape_has_the_checked_properties_with_other_inner_encodings(inner: Inner) -> None:
    one = find_case("dape", (f"encoding.inner={inner}",))
    found = {wanted.name: check(one, wanted) for wanted in PROPERTIES if wanted.name != "long_context"}
    assert {name: finding for name, finding in found.items() if finding.state == "fails"} == {}
