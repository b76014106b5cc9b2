"""Layers without softmax: their recurrence is that of the papers, and chunks of it give the same."""

import math
import re
from typing import Any

import pytest
import torch
from support import wrong_encodings
from support.cases import find_case, find_wrong, finding
from support.native import here
from support.wrong_encodings import EQUATIONS, STRONG_DECAYS, WRONG_LAYERS
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from pe_bench.encodings.recurrent import recurrence as module
from pe_bench.encodings.recurrent.gated_deltanet import GatedDeltaNet
from pe_bench.encodings.recurrent.kda import KDA
from pe_bench.encodings.recurrent.recurrence import (
    RecurrenceInputs,
    Recurrent,
    chunked_recurrence,
    convolved,
    fast_recurrence,
    recurrence,
    unit_norm,
)
from pe_bench.encodings.recurrent.retention import Retention
from pe_bench.errors import UserError
from pe_bench.inspection.check.case import (
    TRAIN_LENGTH,
    Case,
    hidden,
    largest_difference,
    layer_inputs,
    tokens,
)
from pe_bench.model.attention import RECURRENT, attention, choose_path, reference_attention
from pe_bench.native.recurrence import has_native_recurrence, native_recurrence

B, H, T, K, V = 2, 3, 75, 8, 5
D = 16


def leaves(decay: float, groups: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, H, T, K), (B, H, T, K), (B, H, T, V), (B, H, T, groups), (B, H, T))
    q, k, v, log_decay, strength = (torch.rand(shape, generator=generator).double() for shape in shapes)
    made = [q - 0.5, unit_norm(k - 0.5), v - 0.5, -decay * log_decay, strength]
    return [each.to(dtype).requires_grad_() for each in made]


def outputs_and_gradients(read, inputs: list[Tensor], corrects: bool) -> list[Tensor]:
    used = inputs if corrects else inputs[:4]
    output = read(RecurrenceInputs(*used))
    weights = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), used)]


def strided_leaves(width: int, value_width: int) -> list[Tensor]:
    """Return inputs of two sequences and two heads, none contiguous, with log decays that are expanded."""
    generator = torch.Generator().manual_seed(0)
    q, k = unit_norm(torch.randn(2, 2, 70, 2, width, generator=generator)).transpose(2, 3)
    v = torch.randn(2, 70, 2, 2 * value_width, generator=generator).transpose(1, 2)[..., ::2]
    log_decay = -torch.rand(2, 1, 1, width, generator=generator).expand(2, 2, 70, width)
    strength = torch.rand(2, 70, 2, generator=generator).transpose(1, 2)
    return [each.requires_grad_() for each in (q, k, v, log_decay, strength)]


def compiled(inputs: RecurrenceInputs) -> Tensor:
    assert has_native_recurrence(*inputs)
    return native_recurrence(*inputs)


# Float32 is tested too: chunks run in it on a GPU, and on a CPU without a compiler.
@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize("groups", [1, K])
@pytest.mark.parametrize("decay", [0.1, 1, 5, 20, 39, 60])
def test_chunks_give_the_recurrence_and_its_gradients_at_any_decay(
    decay: float, groups: int, corrects: bool
) -> None:
    truth = outputs_and_gradients(recurrence, leaves(decay, groups), corrects)
    found = outputs_and_gradients(chunked_recurrence, leaves(decay, groups), corrects)
    single = outputs_and_gradients(chunked_recurrence, leaves(decay, groups, torch.float32), corrects)
    for exact, double, rounded in zip(truth, found, single, strict=True):
        assert rounded.isfinite().all()
        assert largest_difference(double, exact) <= 1e-13 * max(1.0, float(exact.abs().max()))
        assert largest_difference(rounded, exact) <= 1e-4 * float(exact.abs().max())


@here
@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize("groups", [1, K])
@pytest.mark.parametrize("decay", [-0.1, 0, 0.1, 5, 60])
def test_compiled_code_gives_the_recurrence_and_its_gradients_at_any_decay(
    decay: float, groups: int, corrects: bool
) -> None:
    truth = outputs_and_gradients(recurrence, leaves(decay, groups), corrects)
    found = outputs_and_gradients(compiled, leaves(decay, groups, torch.float32), corrects)
    for exact, rounded in zip(truth, found, strict=True):
        assert largest_difference(rounded, exact) <= 1e-6 * float(exact.abs().max())


@here
@pytest.mark.parametrize("width", [1, 16, 33])
@pytest.mark.parametrize("value_width", [1, 16, 33, 65, 130])
def test_compiled_code_takes_any_widths_and_strides(width: int, value_width: int) -> None:
    inputs = strided_leaves(width, value_width)
    found = outputs_and_gradients(compiled, inputs, True)
    double = [each.detach().double().requires_grad_() for each in inputs]
    for rounded, exact in zip(found, outputs_and_gradients(recurrence, double, True), strict=True):
        assert largest_difference(rounded, exact) <= 2e-6 * float(exact.abs().max())
    with torch.no_grad():
        assert torch.equal(compiled(RecurrenceInputs(*inputs)), found[0])


@here
@pytest.mark.parametrize("value_width", [5, 65])
def test_threads_change_no_bit_of_a_recurrence(value_width: int) -> None:
    inputs = strided_leaves(K, value_width)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = outputs_and_gradients(compiled, inputs, True)
        torch.set_num_threads(7)  # more than heads, so the forward pass splits those of 65 columns
        seven = outputs_and_gradients(compiled, inputs, True)
    finally:
        torch.set_num_threads(threads)
    for each, other in zip(one, seven, strict=True):
        assert torch.equal(each, other)


@here
def test_inputs_that_compiled_code_cannot_handle_are_read_in_chunks() -> None:
    single = [each.detach() for each in leaves(1, K, torch.float32)]
    q, k, v, log_decay, strength = single
    assert has_native_recurrence(*single) and has_native_recurrence(*single[:4])
    assert not has_native_recurrence(*[each.double() for each in single])
    for inputs in ([q, k, v, log_decay[:1], strength], [q, k, v, log_decay, strength[:1]]):
        assert not has_native_recurrence(*inputs)
        found = fast_recurrence(RecurrenceInputs(*inputs))
        torch.testing.assert_close(found, recurrence(RecurrenceInputs(*inputs)), rtol=1e-5, atol=1e-6)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert not has_native_recurrence(*(mode.from_tensor(each) for each in single))


def test_a_state_decays_before_it_is_corrected_and_a_token_reads_itself() -> None:
    """With keys of one feature, the state is a number for each feature of the values."""
    ones = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    values = torch.tensor([3.0, 5.0], dtype=torch.float64).view(1, 1, 2, 1)
    log_decay = math.log(0.5) * ones
    strength = 0.25 * ones.squeeze(-1)
    corrected = recurrence(RecurrenceInputs(ones, ones, values, log_decay, strength)).flatten()
    first = 0.25 * 3.0
    assert corrected.tolist() == pytest.approx([first, 0.5 * first + 0.25 * (5.0 - 0.5 * first)])
    summed = recurrence(RecurrenceInputs(ones, ones, values, log_decay)).flatten()
    assert summed.tolist() == pytest.approx([3.0, 0.5 * 3.0 + 5.0])


@torch.no_grad()
def test_recurrences_are_those_of_the_models_in_transformers() -> None:
    from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    for groups, theirs in ((1, torch_recurrent_gated_delta_rule), (K, recurrent_kimi_delta_attention)):
        q, k, v, log_decay, strength = leaves(2.0, groups, torch.float32)
        decay = log_decay.squeeze(-1) if groups == 1 else log_decay
        given = [each.transpose(1, 2) for each in (3 * q, 3 * k, v, decay, strength)]
        expected, _ = theirs(
            *given, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True
        )
        found = recurrence(
            RecurrenceInputs(unit_norm(3 * q) * K**-0.5, unit_norm(3 * k), v, log_decay, strength)
        )
        torch.testing.assert_close(found, expected.transpose(1, 2), rtol=1e-5, atol=1e-6)


def test_segments_without_gradients_hand_the_state_on(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [each.detach() for each in leaves(0.5, K)]
    whole = chunked_recurrence(RecurrenceInputs(*inputs))
    monkeypatch.setattr(module, "TOKENS_PER_SEGMENT", 64)
    with torch.no_grad():
        assert torch.equal(chunked_recurrence(RecurrenceInputs(*inputs)), whole)


def test_a_convolution_mixes_the_token_with_those_before_it() -> None:
    x = torch.arange(1.0, 6.0).view(1, 1, 5, 1)
    taps = torch.tensor([100.0, 10.0, 1.0]).view(1, 1, 3)
    assert convolved(x, taps).flatten().tolist() == [1, 12, 123, 234, 345]


def decays_of(layer: GatedDeltaNet | KDA, factor: float) -> Tensor:
    x = factor * torch.randn(1, 50, 16, generator=torch.Generator().manual_seed(1))
    return layer.log_decay(x)


def test_decays_have_their_first_values_and_bounds() -> None:
    torch.manual_seed(0)
    plain = GatedDeltaNet(16, 4, 8)
    rates = -decays_of(plain, 0.0)[0, :, 0, 0]
    steps = torch.nn.functional.softplus(plain.step)
    torch.testing.assert_close(rates, plain.log_rate.exp() * steps)
    assert (steps > 0.00099).all() and (steps < 0.101).all() and (plain.log_rate.exp() <= 16.01).all()
    bounded = decays_of(KDA(16, 4, 8, lower_bound=-5.0), 100.0).detach()
    assert float(bounded.min()) == pytest.approx(-5.0) and float(bounded.max()) <= 0
    assert bounded.shape == (1, 4, 50, 8)
    first = Retention().recurrence_inputs(*layer_inputs(9)).log_decay[0, 0, 0, 0]
    assert math.exp(float(first)) == pytest.approx(31 / 32)


def by_equations(
    layer: Recurrent,
    inputs: list[Tensor],
    negative: bool = False,
    gate: str = "",
    lower_bound: float | None = None,
) -> Tensor:
    """Return what a layer of one head gives [T, K], from the docstrings alone, with PyTorch's own norms.

    inputs: x [1, T, D], and q, k, v [1, 1, T, K].
    """
    x, q, k, v = inputs
    assert isinstance(layer, GatedDeltaNet | KDA)
    mixed = []
    for name, each in zip("qkv", (q, k, v), strict=True):
        padded = functional.pad(each[0, 0].mT, (3, 0))
        weights = layer.taps[name][0].unsqueeze(1)
        mixed.append(functional.silu(functional.conv1d(padded, weights, groups=K)).mT)
    queries, keys, values = mixed
    queries = functional.normalize(queries, dim=-1) / math.sqrt(K)
    keys = functional.normalize(keys, dim=-1)
    strength = torch.sigmoid(x[0] @ layer.strength[0]) * (2 if negative else 1)
    if isinstance(layer, KDA):
        raw = x[0] @ layer.decay_down.mT @ layer.decay_up.mT + layer.step[0]
        factor = torch.sigmoid(x[0] @ layer.gate_down.mT @ layer.gate_up.mT)
    else:
        raw = x[0] @ layer.decay.mT + layer.step
        activation = torch.sigmoid if gate == "sigmoid" else functional.silu
        factor = activation(x[0] @ layer.gate_matrix.mT)
    rate = math.exp(float(layer.log_rate))
    decay = -rate * functional.softplus(raw)
    if lower_bound is not None:
        decay = lower_bound * torch.sigmoid(rate * raw)
    state = torch.zeros(K, K).double()
    rows = []
    for t in range(len(queries)):
        state = torch.diag(decay[t].expand(K).exp()) @ state
        state = state + torch.outer(keys[t], strength[t] * (values[t] - state.T @ keys[t]))
        rows.append(state.T @ queries[t])
    return functional.rms_norm(torch.stack(rows), (K,), eps=1e-6) * layer.norm * factor


def drawn(layer: Recurrent) -> tuple[Recurrent, list[Tensor]]:
    """Return a layer in float64 whose parameters are drawn, and inputs of 40 tokens for its one head."""
    torch.manual_seed(0)
    layer.double()
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    return layer, [torch.randn(1, 40, D).double(), *torch.randn(3, 1, 1, 40, K).double()]


EQUATIONS_OF: list[tuple[type[GatedDeltaNet] | type[KDA], dict[str, Any]]] = [
    (GatedDeltaNet, {}),
    (GatedDeltaNet, {"negative": True, "gate": "sigmoid"}),
    (wrong_encodings.SteppedDeltaNet, {}),
    (KDA, {}),
    (KDA, {"lower_bound": -5.0, "negative": True}),
]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options"), EQUATIONS_OF)
def test_a_layer_is_its_equations(kind: type[GatedDeltaNet] | type[KDA], options: dict[str, Any]) -> None:
    layer, inputs = drawn(kind(D, 1, K, **options))
    expected = by_equations(layer, inputs, **options)
    assert largest_difference(layer.attend(*inputs)[0, 0], expected) < 1e-5 * float(expected.abs().max())


def retained(heads: int) -> tuple[list[Tensor], Tensor]:
    """Return inputs of several heads, and what retention gives [1, H, T, K] by a matrix of decays."""
    torch.manual_seed(0)
    x, q, k, v = torch.randn(1, 40, D).double(), *torch.randn(3, 1, heads, 40, K).double()
    distance = (torch.arange(40)[:, None] - torch.arange(40)).clamp(min=0)
    kept = (1 - 2.0 ** (-5.0 - torch.arange(heads).double()))[:, None, None] ** distance
    read = (q @ k.mT * kept / math.sqrt(K)).tril() @ v
    return [x, q, k, v], functional.rms_norm(read, (K,), eps=1e-6)


def test_retention_is_a_matrix_of_powers_of_each_heads_decay() -> None:
    inputs, expected = retained(H)
    assert largest_difference(Retention().attend(*inputs), expected) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("name", WRONG_LAYERS)
def test_a_fault_that_is_planted_in_a_layer_without_softmax_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by, options = WRONG_LAYERS[name]
    kind = getattr(wrong_encodings, name)
    if by == STRONG_DECAYS:
        layer, inputs = drawn(kind(D, 1, K, **options))
        layer.float().log_rate.fill_(2.0)
        single = [each.float() for each in inputs]
        monkeypatch.setattr(module, "has_native_recurrence", lambda *_: False)  # the fault is in chunks
        assert not layer.attend_chunked(*single).isfinite().all()
        assert layer.attend(*single).isfinite().all() and KDA.attend(layer, *single).isfinite().all()
    elif by != EQUATIONS:
        with torch.enable_grad():
            found = finding(find_wrong(name), by)
        assert found.state == "fails" and re.search(r" by \d", found.measured)
    elif issubclass(kind, Retention):
        inputs, expected = retained(H)
        assert largest_difference(kind().attend(*inputs), expected) > 0.1
    else:
        layer, inputs = drawn(kind(D, 1, K, **options))
        expected = by_equations(layer, inputs, **options)
        assert largest_difference(layer.attend(*inputs)[0, 0], expected) > 1e-2 * float(expected.abs().max())


def case_of(*arguments: str) -> Case:
    return find_case(arguments[0], arguments[1:])


@torch.no_grad()
def test_the_last_layer_computes_the_last_tokens_as_it_does_within_the_whole() -> None:
    for case in (case_of("kimi_linear"), case_of("gated_deltanet"), case_of("rope", "modifier=[short_conv]")):
        text = tokens(2, TRAIN_LENGTH)
        ids = torch.arange(TRAIN_LENGTH)
        whole = case.model.hidden(text, ids)
        assert largest_difference(case.model.hidden(text, ids, first=9), whole[:, 9:]) < 1e-12


def test_a_layer_without_softmax_is_computed_in_chunks_and_refuses_the_window_control() -> None:
    case = case_of("kimi_linear")
    layer = case.layers[0]
    x, q, k, v = layer_inputs(TRAIN_LENGTH)
    position = torch.arange(TRAIN_LENGTH)
    assert choose_path(layer, q, position) is RECURRENT
    assert (
        largest_difference(
            attention(layer, x, q, k, v, position), reference_attention(layer, x, q, k, v, position)
        )
        < 1e-12
    )
    assert "sees no window" in case.model.control_refusal("window", 64)
    assert case.model.control_refusal("swap", 64) == ""
    assert case_of("rope").model.control_refusal("window", 64) == ""


@pytest.mark.parametrize("modifier", ["logn", "sink", "sliding_window"])
def test_what_acts_on_the_softmax_is_refused_where_there_is_none(modifier: str) -> None:
    for name in ("gated_deltanet", "kimi_linear"):
        with pytest.raises(UserError, match=f"{modifier} acts on softmax attention.*encoding.global"):
            _ = case_of(name, f"modifier=[{modifier}]").model
    with pytest.raises(UserError, match="set both to null"):
        _ = case_of("kimi_linear", "encoding.window=8").model
    inside = "encoding.global={name: nope, modifiers: {logn: {}}}"
    assert hidden(case_of("kimi_linear", inside).model, tokens(1, 9)).isfinite().all()


def test_a_gate_multiplies_what_heads_read_in_every_kind_of_layer() -> None:
    for name in ("rope", "gated_deltanet", "t5"):
        plain = case_of(name)
        gated = case_of(name, "modifier=[gate]")
        layer = gated.layers[0]
        x, q, k, v = layer_inputs(TRAIN_LENGTH)
        position = torch.arange(TRAIN_LENGTH)
        with torch.no_grad():
            read = attention(plain.layers[0], x, q, k, v, position)
            factor = layer.gate(x)
            assert factor is not None and factor.shape == q.shape
            # The base encoding's parameters are drawn first, and are the same with and without a modifier.
            assert largest_difference(attention(layer, x, q, k, v, position), factor * read) < 1e-12
            rows = range(20, 25)
            some = reference_attention(layer, x, q, k, v, position, rows=rows)
            assert largest_difference(some, (factor * read)[:, :, 20:25]) < 1e-12


def test_short_convolutions_begin_as_none() -> None:
    for name in ("rope", "t5"):
        text = tokens(2, TRAIN_LENGTH)
        plain, mixed = case_of(name), case_of(name, "modifier=[short_conv]")
        before, after = (hidden(case.model_of(case.as_built()), text) for case in (plain, mixed))
        assert largest_difference(before, after) < 1e-12
        assert largest_difference(hidden(plain.model, text), hidden(mixed.model, text)) > 1e-3
