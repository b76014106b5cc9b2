"""dape: a small network on the biases of all heads."""

import pytest
import torch
from support.cases import find_case
from support.reference_inputs import H, fill, near, output

from pe_bench.encodings.content.dape import DAPE, Inner
from pe_bench.inspection.check import PROPERTIES, check

# dape


@pytest.mark.parametrize("inner", ["alibi", "kerple_log", "fire"])
def test_dape_with_a_network_of_zeros_is_its_inner_encoding(inner: Inner) -> None:
    encoding = DAPE(H, 4096, inner).double()
    assert not near(output(encoding).detach(), output(encoding.inner).detach(), 1e-3)
    for parameter in (*encoding.hidden.parameters(), *encoding.output.parameters()):
        fill(parameter, torch.zeros_like(parameter))
    assert near(output(encoding).detach(), output(encoding.inner).detach(), 1e-12)


@pytest.mark.parametrize("inner", ["alibi", "kerple_log", "fire"])
def test_dape_claims_what_its_inner_encoding_does_but_decay(inner: Inner) -> None:
    encoding = DAPE(H, 4096, inner)
    claimed = encoding.claims
    assert claimed == encoding.inner.claims - {"decaying"}
    assert ("shift_invariant" in claimed) == (inner != "fire")


# The contracts hold the default to all properties. At 65,536 tokens ALiBi's bias is -16,384, and float32
# rounds what a network makes of it by 0.001.
@pytest.mark.parametrize("inner", ["alibi", "fire"])
def test_dape_has_the_checked_properties_with_other_inner_encodings(inner: Inner) -> None:
    one = find_case("dape", (f"encoding.inner={inner}",))
    found = {wanted.name: check(one, wanted) for wanted in PROPERTIES if wanted.name != "long_context"}
    assert {name: finding for name, finding in found.items() if finding.state == "fails"} == {}
