"""The decoder's layers between attentions and its loss, in compiled code where that is possible.

Their results are those of PyTorch's operations, which serve everywhere else: on other devices, in other
types, and without a compiler.

Letters: B batch, T tokens, D model width, F width of the feedforward layer, E = 2 F, V tokens of the
vocabulary, N tokens of all windows.
"""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pe_bench.native import layers as native
from pe_bench.system.machine import processor_facts

EPSILON = 1e-5  # of every norm


def is_native(x: Tensor, *more: Tensor) -> bool:
    """Return whether compiled code serves these tensors."""
    single = all(tensor.dtype == torch.float32 for tensor in (x, *more))
    on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return single and on_cpu and x.numel() > 0 and native.kernel().library is not None


class RMSNorm(nn.RMSNorm):
    def __init__(self, width: int):
        super().__init__(width, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        if not is_native(x, self.weight):
            return super().forward(x)
        if not torch.is_grad_enabled():
            return native.rms_norm(x.contiguous(), self.weight, EPSILON)[0]
        return cast(tuple[Tensor], _Projections.apply(x, self.weight))[0]


class Linear(nn.Linear):
    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled() or not is_native(x, self.weight):
            return super().forward(x)
        return linear(x, self.weight)


def projections(x_BTD: Tensor, norm: RMSNorm, *layers: Linear) -> tuple[Tensor, ...]:
    """Return the norm of x, and each layer's output for it."""
    weights = [layer.weight for layer in layers]
    if torch.is_grad_enabled() and is_native(x_BTD, norm.weight, *weights):
        return cast(tuple[Tensor, ...], _Projections.apply(x_BTD, norm.weight, *weights))
    normed_BTD = norm(x_BTD)
    return normed_BTD, *(layer(normed_BTD) for layer in layers)


def gated(x_BTD: Tensor, gate: Linear, up: Linear) -> Tensor:
    """Return silu(gate) up [B, T, F]."""
    if torch.is_grad_enabled() or not is_native(x_BTD, gate.weight, up.weight):
        return functional.silu(gate(x_BTD)) * up(x_BTD)
    return native.swiglu(linear(x_BTD, torch.cat([gate.weight, up.weight])))


class _Projections(torch.autograd.Function):
    """A norm, and products of it with matrices [*, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
        x = x.contiguous()
        normed, factor_N = native.rms_norm(x, weight_D, EPSILON)
        ctx.save_for_backward(x, weight_D, normed, factor_N, *matrices)
        ctx.set_materialize_grads(False)
        return normed, *(linear(normed, matrix) for matrix in matrices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_normed: Tensor | None, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight_D, normed, factor_N, *matrices = ctx.saved_tensors
        rows_ND = normed.flatten(0, -2)
        of_rows_ND = None if of_normed is None else of_normed.reshape(rows_ND.shape)
        slopes_N = [None if slope is None else slope.reshape(-1, slope.shape[-1]) for slope in slopes]
        of_matrices = iter(weight_gradients(rows_ND, *(slope for slope in slopes_N if slope is not None)))
        for matrix, slope_N in zip(matrices, slopes_N, strict=True):
            if slope_N is not None:
                of_rows_ND = mm(slope_N, matrix) if of_rows_ND is None else addmm(of_rows_ND, slope_N, matrix)
        assert of_rows_ND is not None, "some output has a gradient"
        of_x, of_weight = native.rms_norm_backward(of_rows_ND.contiguous(), x, weight_D, factor_N, None)
        return of_x, of_weight, *(None if slope is None else next(of_matrices) for slope in slopes)


class AfterAttention(torch.autograd.Function):
    """The rest of a block after attention: y + down(swiglu(norm(y))) with y = x + output(read)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, read: Tensor, output: Tensor, weight_D: Tensor, *matrices: Tensor
    ) -> Tensor:
        gate_FD, up_FD, down_DF = matrices
        read_N = read.reshape(-1, read.shape[-1])
        x_ND = addmm(x.reshape(-1, x.shape[-1]), read_N, output.t())
        normed_ND, factor_N = native.rms_norm(x_ND, weight_D, EPSILON)
        both_ED = torch.cat([gate_FD, up_FD])  # one product is faster than two
        both_NE = linear(normed_ND, both_ED)
        product_NF = native.swiglu(both_NE)
        ctx.save_for_backward(
            read_N, output, x_ND, weight_D, normed_ND, factor_N, both_NE, product_NF, both_ED, down_DF
        )
        return addmm(x_ND, product_NF, down_DF.t()).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (read_N, output, x_ND, weight_D, normed_ND, factor_N, both_NE, product_NF, both_ED, down_DF) = (
            ctx.saved_tensors
        )
        slope_ND = slope.reshape(x_ND.shape).contiguous()
        of_down = mm(slope_ND.t(), product_NF)
        of_both_NE = native.swiglu_backward(mm(slope_ND, down_DF), both_NE)
        of_gate, of_up = weight_gradients(normed_ND, of_both_NE)[0].chunk(2)
        of_normed_ND = mm(of_both_NE, both_ED)
        of_x_ND, of_weight = native.rms_norm_backward(of_normed_ND, x_ND, weight_D, factor_N, slope_ND)
        of_read = mm(of_x_ND, output).view(*slope.shape[:-1], -1)
        of_output = mm(of_x_ND.t(), read_N)
        return of_x_ND.view(slope.shape), of_read, of_output, of_weight, of_gate, of_up, of_down


class _NLL(torch.autograd.Function):
    """The product with the output's matrix, and the NLL of each target."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV = linear(hidden_ND, weight_VD)
        nll_N, normalizers = native.nll(logits_NV, targets_N)
        ctx.save_for_backward(hidden_ND, weight_VD, logits_NV, targets_N, normalizers)
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope_N: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_ND, weight_VD, *of_nll = ctx.saved_tensors
        of_logits_NV = native.nll_backward(slope_N.contiguous(), *of_nll)
        [of_weight_VD] = weight_gradients(hidden_ND, of_logits_NV)
        return mm(of_logits_NV, weight_VD), of_weight_VD, None


# The loss of next tokens, in chunks, so that logits are never tokens x vocabulary at once.

# The largest block of logits, in elements; 2^24 float32 are 64 MB.
LOGIT_ELEMENTS = 2**24


def token_nll(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, has_loss_N: Tensor | None = None
) -> Tensor:
    """Return the negative log-likelihood of each target in nats, float32 [N]; or of those that have a loss.

    Where gradients are wanted and the tokens need several chunks, each chunk's logits are
    computed again in the backward pass instead of being kept.
    """
    if has_loss_N is not None:
        hidden_ND, targets_N = hidden_ND[has_loss_N], targets_N[has_loss_N]
    rows = max(1, LOGIT_ELEMENTS // weight_VD.shape[0])
    chunks = zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
    if len(targets_N) <= rows or not torch.is_grad_enabled():
        return torch.cat([_chunk_nll(hidden, weight_VD, targets) for hidden, targets in chunks])
    nll = [checkpoint(_chunk_nll, hidden, weight_VD, t, use_reentrant=False) for hidden, t in chunks]
    return torch.cat(cast(list[Tensor], nll))


def _chunk_nll(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    if not is_native(hidden_ND, weight_VD) or targets_N.dtype != torch.int64:
        logits_NV = functional.linear(hidden_ND, weight_VD)
        return functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
    return cast(Tensor, _NLL.apply(hidden_ND, weight_VD, targets_N.contiguous()))


# Products of float32 matrices, by the library in PyTorch that uses the whole processor.
#
# PyTorch multiplies such matrices with MKL, which leaves AVX-512 unused on processors that are not Intel's.
# oneDNN, the other library in PyTorch, uses it there. No gradient flows through these functions.


@cache
def is_onednn_faster() -> bool:
    facts = processor_facts()
    has_avx512 = "avx512f" in facts.get("flags", "").split()
    is_there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_avx512 and facts.get("vendor_id") != "GenuineIntel" and is_there


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weightᵀ, [.., N], from x [.., K] and weight [N, K]."""
    if not is_onednn_faster():
        return functional.linear(x, weight)
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, as `torch.mm` does."""
    return linear(a, b.t())


def addmm(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return c + a b, as `torch.addmm` does."""
    return linear(a, b.t()).add_(c) if is_onednn_faster() else torch.addmm(c, a, b)


def weight_gradients(rows_NK: Tensor, *slopes_NM: Tensor) -> list[Tensor]:
    """Return the gradient [M, K] of each weight that rows were multiplied by, from that of its product."""
    if not slopes_NM or not is_onednn_faster():
        return [torch.mm(slope_NM.t(), rows_NK) for slope_NM in slopes_NM]
    # oneDNN copies a first operand that is a transpose. One copy of the rows serves all products.
    turned_KN = rows_NK.t().contiguous()
    return [mm(turned_KN, slope_NM).t() for slope_NM in slopes_NM]
