"""The compiled layers between attentions give what PyTorch's operations give, and gradients of float64."""

import copy
import functools

import pytest
import torch
from support.native import here
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn.functional import cross_entropy

from pe_bench.config.compose import compose_config
from pe_bench.encodings.rotary.rope import rotate
from pe_bench.model import accelerate, products
from pe_bench.model.accelerate import FASTER
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.native import inductor
from pe_bench.native import layers as native
from pe_bench.native.build import Kernel
from pe_bench.native.layers import is_rotated_natively

VOCABULARY = tuple(map(str, range(37)))
SIZES = {"d_model": 20, "n_heads": 2, "n_kv_heads": 1, "d_head": 12, "d_ff": 27, "n_layers": 2}
ODD = [f"model.{name}={size}" for name, size in SIZES.items()]


def model_of(*overrides: str) -> Decoder:
    return build_decoder(compose_config([*ODD, *overrides]), VOCABULARY)


def tokens() -> Tensor:
    return torch.randint(len(VOCABULARY), (3, 33), generator=torch.Generator().manual_seed(0))


def results(model: Decoder, first: int = 0, *, bfloat16: bool = False) -> dict[str, Tensor]:
    """The NLL of every target, and the gradients of a weighted sum of them; bfloat16: under autocast."""
    tokens_BT = tokens()
    ids = model.encoding.ids(tokens_BT[:, :-1], train=True, generator=torch.Generator().manual_seed(0))
    targets_N = tokens_BT[:, 1 + first :].flatten()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        hidden_BTD = model.hidden(tokens_BT[:, :-1], ids, first=first)
        if hidden_BTD.dtype == torch.float32:
            nll = model.nll(hidden_BTD.flatten(0, 1), targets_N)
        else:
            logits_NV = hidden_BTD.flatten(0, 1) @ model.output_weight.mT
            nll = cross_entropy(logits_NV, targets_N, reduction="none")
    model.zero_grad()
    (nll * torch.linspace(-1, 2, len(nll))).sum().backward()
    gradients = {name: leaf.grad.clone() for name, leaf in model.named_parameters() if leaf.grad is not None}
    return {"nll": nll.detach(), **gradients}


def largest_errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest error of each result, relative to its largest number.

    It is relative to the largest of all results where a gradient is zero but for rounding, as that of a bias
    which adds the same to all logits of a row.
    """
    assert found.keys() == exact.keys()
    sizes = {name: float(values.abs().max()) for name, values in exact.items()}
    largest = max(sizes.values())
    return {
        name: float((found[name] - exact[name]).abs().max()) / (size if size > 1e-12 * largest else largest)
        for name, size in sizes.items()
    }


def test_a_built_model_has_the_faster_forms_of_its_layers_and_the_same_weights() -> None:
    config = compose_config([*ODD, "encoding=rope", "model.qk_norm=true", "model.tie_embeddings=false"])
    built = build_decoder(config, VOCABULARY)
    plain = copy.deepcopy(built)
    slower = {fast: layer for layer, fast in FASTER.items()}
    found = {type(module) for module in built.modules()} & slower.keys()
    assert found == slower.keys()
    for module in plain.modules():
        module.__class__ = slower.get(type(module), type(module))
    assert built.state_dict().keys() == plain.state_dict().keys()
    for name, error in largest_errors(results(built), results(plain)).items():
        assert error < 2e-5, name
    with torch.no_grad():
        hidden = [model.hidden(tokens(), torch.arange(33), first=5) for model in (built, plain)]
    torch.testing.assert_close(*hidden, rtol=1e-5, atol=1e-5)


has_onednn = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="no oneDNN")


@here
@pytest.mark.parametrize("is_onednn", [False, pytest.param(True, marks=has_onednn)])
@pytest.mark.parametrize("encoding", ["rope", "t5", "fox", "dape"])
def test_losses_and_gradients_are_as_near_to_float64_as_those_of_pytorch(
    encoding: str, is_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "is_onednn_faster", lambda: is_onednn)
    for first, more in ((0, []), (7, ["model.tie_embeddings=false", "model.qk_norm=true"])):
        overrides = [f"encoding={encoding}", *more]
        found = results(model_of(*overrides), first)
        exact = results(model_of(*overrides).double(), first)
        with monkeypatch.context() as patch:
            patch.setattr(native, "kernel", lambda: Kernel(None, "switched off"))
            theirs = largest_errors(results(model_of(*overrides), first), exact)
        for name, error in largest_errors(found, exact).items():
            assert error <= 4 * theirs[name] + 2e-6, name


@here
@pytest.mark.parametrize("encoding", ["rope", "t5", "fox", "dape", "gated_deltanet"])
def test_blocks_trained_in_bfloat16_are_as_near_to_float64_as_those_of_pytorch(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for more in ([], ["model.tie_embeddings=false", "model.qk_norm=true"]):
        overrides = [f"encoding={encoding}", *more]
        exact = results(model_of(*overrides).double())
        with monkeypatch.context() as patch:
            calls = called_functions(patch)
            found = results(model_of(*overrides), bfloat16=True)
        assert {"pe_bench_swiglu_bfloat16", "pe_bench_swiglu_backward_bfloat16"} <= {*calls}
        with monkeypatch.context() as patch:
            patch.setattr(native, "kernel", lambda: Kernel(None, "switched off"))
            theirs = largest_errors(results(model_of(*overrides), bfloat16=True), exact)
        ours = largest_errors(found, exact)
        assert sum(ours.values()) <= 1.2 * sum(theirs.values())
        for name, error in ours.items():
            assert error <= 4 * theirs[name] + 2**-8, name


@has_onednn
@pytest.mark.parametrize(
    ("vendor", "flag", "is_faster"),
    [("AuthenticAMD", "avx512f", True), ("AuthenticAMD", "fma", False), ("GenuineIntel", "avx512f", False)],
)
def test_onednn_multiplies_where_mkl_leaves_avx512_unused(vendor, flag, is_faster, monkeypatch) -> None:
    facts = {"vendor_id": vendor, "flags": f"sse {flag} avx2"}
    monkeypatch.setattr(products, "processor_facts", lambda: facts)
    assert products.is_onednn_faster.__wrapped__() is is_faster


def called_functions(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each compiled function for rows that is called from now on."""
    calls: list[str] = []
    call = native._call_for_rows
    patch.setattr(native, "_call_for_rows", lambda name, *given: (calls.append(name), call(name, *given)))
    return calls


@here
@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_block_reads_inputs_of_any_layout(bfloat16: bool) -> None:
    model = model_of("encoding=alibi")
    turned_BTD = torch.randn(1, 20, 33, generator=torch.Generator().manual_seed(0)).mT
    outputs = []
    for x_BTD in (turned_BTD, turned_BTD.contiguous()):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            outputs.append(model.blocks[0](x_BTD, model.encoding.layer(0), torch.arange(33), None))
    torch.testing.assert_close(*outputs)


@here
def test_training_runs_in_the_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = called_functions(monkeypatch)
    results(model_of("encoding=rope"))
    assert {f"pe_bench_{name}" for name in ("rms_norm", "rms_norm_backward", "swiglu", "nll")} <= {*calls}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which the compiler looks at
def test_the_functions_that_a_gpu_compiles_are_traced_whole_and_compute_what_the_layers_do(monkeypatch):
    model = model_of("encoding=rope")
    exact = results(copy.deepcopy(model).double())
    traced: list[str] = []

    @functools.cache
    def traced_alone(function, backend):
        traced.append(function.__name__)
        return torch.compile(function, backend="eager", fullgraph=True)

    def is_trained(x: object) -> bool:
        return torch.is_grad_enabled() and not torch.compiler.is_compiling()

    monkeypatch.setattr(native, "kernel", lambda: Kernel(None, "switched off"))
    theirs = largest_errors(results(model), exact)
    monkeypatch.setattr(inductor, "compiled", traced_alone)
    for module in (inductor, accelerate):
        monkeypatch.setattr(module, "is_training_on_gpu", is_trained)
    found = largest_errors(results(model), exact)
    assert {*traced} == {"project_fused", "finish_block_fused", "nll_fused", "turn_in_type"}
    for name, error in found.items():
        assert error <= 4 * theirs[name] + 2e-6, name


@here
def test_logits_of_any_size_have_a_loss_and_what_is_no_number_stays_none() -> None:
    logits = torch.tensor([[1e30, 0.0, -1e30], [0.0, float("nan"), 0.0], [-90.0, 0.0, 90.0]])
    nll, normalizers = native.nll(logits, torch.tensor([0, 1, 0]))
    assert nll[0] == 0 and nll[1].isnan() and nll[2] == 180
    gradient = native.nll_backward(torch.ones(3), logits, torch.tensor([0, 1, 0]), normalizers)
    assert torch.equal(gradient[0], torch.zeros(3)) and gradient[1].isnan().all()
    assert torch.equal(gradient[2], torch.tensor([-1.0, 0.0, 1.0]))
    huge = native.swiglu(torch.tensor([[1e30, -1e30, -200.0, 1.0, 1.0, 1.0]]))
    assert torch.equal(huge, torch.tensor([[1e30, 0.0, 0.0]]))


def test_other_types_and_scoring_under_autocast_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_call_for_rows", lambda *_: pytest.fail("compiled code ran"))
    results(model_of("encoding=rope").double())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model_of("encoding=nope").hidden(tokens(), torch.arange(33))
    with torch.autocast("cpu", torch.float16):
        model_of("encoding=nope").hidden(tokens(), torch.arange(33))


@here
def test_rotated_pairs_and_their_gradients_are_those_of_float64() -> None:
    for pairs, per_window in ((3, True), (10, False), (17, True), (17, False)):
        generator = torch.Generator().manual_seed(pairs)
        x, slope = torch.randn(2, 2, 41, 3, 34, generator=generator).transpose(2, 3)
        position = torch.randint(900, (2, 1, 41) if per_window else (41,), generator=generator)
        frequencies = torch.rand(pairs, generator=generator)

        def turned(x: Tensor, slope: Tensor, arguments=(position, frequencies, "half")) -> list[Tensor]:
            leaf = x.clone().requires_grad_()
            out = rotate(leaf, *arguments)
            return [out.detach(), *torch.autograd.grad((out * slope).sum(), leaf)]

        assert is_rotated_natively(x, frequencies.expand(41, pairs))
        for found, exact in zip(turned(x, slope), turned(x.double(), slope.double()), strict=True):
            assert float((found - exact).abs().max()) < 2e-6
        assert torch.equal(turned(x, slope)[0], rotate(x, position, frequencies, "half"))


@here
def test_more_pairs_than_a_head_has_are_an_error_and_no_memory_of_others() -> None:
    x = torch.ones(1, 2, 5, 8)
    assert not is_rotated_natively(x, torch.ones(5, 5))
    with pytest.raises(RuntimeError, match="must match"):
        rotate(x, torch.arange(5), torch.ones(5), "half")


@here
def test_tensors_without_data_are_not_rotated_by_compiled_code() -> None:
    x, cosines = torch.randn(2, 3, 5, 8), torch.rand(5, 4)
    with FakeTensorMode() as mode:
        assert not is_rotated_natively(mode.from_tensor(x), mode.from_tensor(cosines))


def test_positions_of_their_own_for_each_head_or_one_for_all_tokens_turn_as_in_float64() -> None:
    x, frequencies = torch.randn(2, 3, 5, 8), torch.tensor([1.0, 0.5, 0.2, 0.1])
    of_heads = torch.arange(30).view(2, 3, 5)
    for position in (
        of_heads,
        of_heads[:1],
        of_heads[0],
        of_heads[:, :1],
        of_heads[:, :, :1],
        torch.tensor([7]),
    ):
        expected = rotate(x.double(), position, frequencies, "half")
        assert (rotate(x, position, frequencies, "half").double() - expected).abs().max() < 1e-5
