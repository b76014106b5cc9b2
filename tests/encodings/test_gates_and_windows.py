"""fox, cope, stick-breaking, sliding windows and log-n, against numbers and their own double loops."""

import math

import pytest
import torch
from support.reference_inputs import (
    K4,
    Q4,
    V4,
    X4,
    B,
    D,
    H,
    K,
    T,
    fill,
    near,
    output,
    series,
)
from torch import Tensor

from pe_bench.encodings.content.cope import CoPE, contextual_position
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.logits.logn import LogN
from pe_bench.model.attention import attention, project, reference_attention, slice_tokens

# fox


def fox_with_gates() -> FoX:
    """FoX whose gate of head h reads feature h of the layer's input."""
    encoding = FoX(d_model=D, n_heads=H).double()
    fill(encoding.weight, torch.eye(H, D))
    return encoding


def gate_input(logits: Tensor) -> Tensor:
    """A layer's input [1, T, D] that holds the gates' logits [T, H]."""
    return torch.nn.functional.pad(logits, (0, D - H)).unsqueeze(0)


def test_fox_columns_are_its_bias() -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    queries, keys = project(encoding, X4, Q4, K4, torch.arange(T))
    queries = slice_tokens(queries, 1, 3)
    of_queries, of_keys = encoding.columns(queries, keys)
    assert near((of_queries @ of_keys.mT).detach(), encoding.bias(queries, keys).detach(), 1e-12)


def test_fox_forgets_more_between_distant_tokens_and_every_gate_counts_once() -> None:
    logits = series(torch.cos, 0.4, T, H)
    encoding = fox_with_gates()
    queries, keys = project(encoding, gate_input(logits), Q4, K4, torch.arange(T))
    log_forget = torch.nn.functional.logsigmoid(logits)
    bias = encoding.bias(queries, keys)[0]
    assert abs(bias[0, 3, 1].item() - (log_forget[2, 0] + log_forget[3, 0]).item()) < 1e-12
    assert bias[1, 2, 2] == 0


# cope


def cope_of_the_reference() -> CoPE:
    encoding = CoPE(d_head=K, max_position=4).double()
    fill(encoding.table, series(torch.sin, 0.19, 4, K))
    return encoding


def test_cope_has_its_reference_positions_and_output() -> None:
    scores, visible = Q4 @ K4.mT / 2, torch.ones(T, T).tril().bool()
    assert near(contextual_position(scores, visible)[0, 0, 3], [1.875397, 1.03172, 0.407142, 0.133567])
    assert near(output(cope_of_the_reference())[0, 0, 3].detach(), [0.469462, 0.652659, 0.777556, 0.832997])


def test_cope_gates_that_are_all_open_count_every_token() -> None:
    visible = torch.ones(T, T).tril().bool()
    counted = contextual_position(torch.full((T, T), 1e3), visible)
    assert counted[3].tolist() == [4, 3, 2, 1]
    assert counted[1, :2].tolist() == [2, 1]


def test_cope_is_its_double_loop() -> None:
    encoding, tokens = CoPE(d_head=K, max_position=3).double(), 6
    table = series(torch.sin, 0.9, 3, K)
    fill(encoding.table, table)
    q, k, v = (series(torch.sin, step, 1, 1, tokens, K) for step in (0.3, 0.5, 0.7))
    result = reference_attention(encoding, k, q, k, v, torch.arange(tokens), block=4)[0, 0]
    for i in range(tokens):
        z = [float(q[0, 0, i] @ k[0, 0, j]) / math.sqrt(K) for j in range(i + 1)]
        gates = [1 / (1 + math.exp(-score)) for score in z]
        for j in range(i + 1):
            p = min(sum(gates[j:]), 2)
            row = table[math.floor(p)] * (math.floor(p) + 1 - p)
            row = row + (table[math.ceil(p)] * (p - math.floor(p)) if p % 1 else 0)
            z[j] += float(q[0, 0, i] @ row)
        expected = torch.tensor(z, dtype=torch.float64).softmax(-1) @ v[0, 0, : i + 1]
        assert near(result[i].detach(), expected, 1e-12)


# stick-breaking


def test_stick_breaking_gives_the_first_token_its_own_value() -> None:
    assert torch.equal(output(StickBreaking())[..., 0, :], V4[..., 0, :])
    assert torch.equal(output(StickBreaking(remainder=False))[..., 0, :], torch.zeros(B, H, K).double())


def test_stick_breaking_in_logarithms_is_the_product_and_stays_finite() -> None:
    scores, visible = series(torch.sin, 0.8, 7, 7) * 4, torch.ones(7, 7).tril(-1).bool()
    weights, broken = StickBreaking().weights(scores, visible), scores.sigmoid()
    for i in range(7):
        for j in range(7):
            left = math.prod(1 - float(broken[i, between]) for between in range(j + 1, i))
            assert abs(float(weights[i, j]) - (float(broken[i, j]) * left if j < i else 0)) < 1e-12
    extreme = StickBreaking().weights(200 * scores.float(), visible)
    assert extreme.isfinite().all()
    assert (extreme.sum(-1) <= 1 + 1e-5).all()


# log-n


def test_logn_reads_the_position_and_not_the_index() -> None:
    moved = output(LogN(2), torch.arange(T) + 100)
    factor = torch.tensor([math.log(101 + p) / math.log(2) for p in range(T)]).double()
    weights = ((Q4 @ K4.mT / 2) * factor[:, None]).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    assert near(moved, weights.softmax(-1) @ V4, 1e-5)


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_fast_path_of_fox_is_its_reference(tokens: int) -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    x = series(torch.sin, 0.3, 2, tokens, D)
    q, k, v = (series(torch.cos, step, 2, H, tokens, K) for step in (0.3, 0.5, 0.7))
    fast = attention(encoding, x, q, k, v, torch.arange(tokens))
    assert near(
        fast.detach(), reference_attention(encoding, x, q, k, v, torch.arange(tokens)).detach(), 1e-12
    )
