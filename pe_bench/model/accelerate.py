"""Faster forms of the decoder's layers, which compute what those of `layers.py` do; registered here alone.

In float32 on a CPU, compiled code (`pe_bench.native`) computes what lies between the products of matrices,
with gradients written by hand, and `products.py` multiplies. On a GPU with gradients, PyTorch's compiler
fuses what lies between the products. Everywhere else (other types, autocast, without a compiler) these
classes do what the plain ones do.

Letters: B batch, T tokens, D model width, F width of the feedforward layer, E = 2 F, V tokens of the
vocabulary, N tokens of all windows.
"""

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.layers import EPSILON, Block, Linear, RMSNorm, SwiGLU, TokenLoss
from pe_bench.model.products import addmm, linear, mm, weight_gradients
from pe_bench.native import layers as native
from pe_bench.native.inductor import fused_on_gpu, is_compiled_for

# So many tokens of each sequence pass through a feedforward layer at a time, where no gradient is wanted.
FEEDFORWARD_TOKENS = 4_096

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model) -> Model:
    """Give the layers of a model their faster forms, and return it.

    Their parameters stay what they are, so that `state_dict` does not change. To be called before a model is
    sharded, which gives its blocks classes of their own.
    """
    for module in model.modules():
        module.__class__ = FASTER.get(type(module), type(module))
    return model


def is_native(x: Tensor, *more: Tensor) -> bool:
    """Return whether compiled code serves these tensors."""
    single = all(tensor.dtype == torch.float32 for tensor in (x, *more))
    on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return single and on_cpu and x.numel() > 0 and native.kernel().library is not None


# Layers


class FastRMSNorm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not is_native(x, self.weight):
            return super().forward(x)
        if not torch.is_grad_enabled():
            return native.rms_norm(x.contiguous(), self.weight, EPSILON)[0]
        return cast(tuple[Tensor], Projections.apply(x, self.weight))[0]


class FastLinear(Linear):
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled() or not is_native(x, self.weight):
            return super().forward(x)
        return linear(x, self.weight)


class FastSwiGLU(SwiGLU):
    """Without gradients, tokens pass in parts, so that long texts need little memory."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().forward(x_BTD)
        return torch.cat([self._of_part(part) for part in x_BTD.split(FEEDFORWARD_TOKENS, 1)], 1)

    def _of_part(self, x_BTD: Tensor) -> Tensor:
        if not is_native(x_BTD, self.gate.weight, self.up.weight):
            return super().forward(x_BTD)
        both_ED = torch.cat([self.gate.weight, self.up.weight])
        return self.down(native.swiglu(linear(x_BTD, both_ED)))


class FastBlock(Block):
    """With gradients, all of a block but its attention is two functions with gradients of their own."""

    def forward(
        self, x_BTD: Tensor, encoding: LayerEncoding, ids: Tensor, window: int | None, first: int = 0
    ) -> Tensor:
        attention = self.attention
        before = (self.attention_norm, attention.query, attention.key, attention.value)
        weights = [layer.weight for layer in before]
        is_fused = is_compiled_for(x_BTD)
        if first or not torch.is_grad_enabled() or not (is_fused or is_native(x_BTD, *weights)):
            return super().forward(x_BTD, encoding, ids, window, first)
        project = project_fused if is_fused else Projections.apply
        normed_BTD, queries, keys, values = cast(tuple[Tensor, ...], project(x_BTD, *weights))
        read = attention.read(normed_BTD, queries, keys, values, encoding, ids, window)
        ffn = self.feedforward
        after = (attention.output, self.feedforward_norm, ffn.gate, ffn.up, ffn.down)
        weights = [layer.weight for layer in after]
        if is_fused:
            return finish_block_fused(x_BTD, read, *weights)
        if is_native(x_BTD, read, *weights):
            return cast(Tensor, AfterAttention.apply(x_BTD, read, *weights))
        x_BTD = x_BTD + attention.output(read)
        return x_BTD + ffn(self.feedforward_norm(x_BTD))


class FastTokenLoss(TokenLoss):
    def chunk_nll(self, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        if is_compiled_for(hidden_ND):
            return nll_fused(hidden_ND, weight_VD, targets_N)
        if not is_native(hidden_ND, weight_VD) or targets_N.dtype != torch.int64:
            return super().chunk_nll(hidden_ND, weight_VD, targets_N)
        return cast(Tensor, NLL.apply(hidden_ND, weight_VD, targets_N.contiguous()))


FASTER: dict[type[nn.Module], type[nn.Module]] = {
    RMSNorm: FastRMSNorm,
    Linear: FastLinear,
    SwiGLU: FastSwiGLU,
    Block: FastBlock,
    TokenLoss: FastTokenLoss,
}


# Functions that a GPU runs as few kernels


@fused_on_gpu
def project_fused(x_BTD: Tensor, norm_D: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
    """Return the norm of x, and its products with matrices [*, D]."""
    normed_BTD = functional.rms_norm(x_BTD, norm_D.shape, norm_D, EPSILON)
    return normed_BTD, *(functional.linear(normed_BTD, matrix) for matrix in matrices)


@fused_on_gpu
def finish_block_fused(
    x_BTD: Tensor,
    read: Tensor,
    output: Tensor,
    norm_D: Tensor,
    gate_FD: Tensor,
    up_FD: Tensor,
    down_DF: Tensor,
) -> Tensor:
    """Return the output of a block from its input and what its attention read."""
    x_BTD = functional.linear(read, output) + x_BTD
    normed_BTD = functional.rms_norm(x_BTD, norm_D.shape, norm_D, EPSILON)
    gate_BTF = functional.silu(functional.linear(normed_BTD, gate_FD))
    up_BTF = functional.linear(normed_BTD, up_FD)
    return x_BTD + functional.linear(gate_BTF * up_BTF, down_DF)


@fused_on_gpu
def nll_fused(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    logits_NV = functional.linear(hidden_ND, weight_VD)
    return functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")


# Functions with gradients of their own


class Projections(torch.autograd.Function):
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
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_normed: Tensor | None, *grad_products: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight_D, normed, factor_N, *matrices = ctx.saved_tensors
        rows_ND = normed.flatten(0, -2)
        grad_rows_ND = None if grad_normed is None else grad_normed.reshape(rows_ND.shape)
        grad_products_N = []  # of the products with a gradient
        for matrix, grad_product in zip(matrices, grad_products, strict=True):
            if grad_product is None:
                continue
            grad_product_N = grad_product.reshape(-1, grad_product.shape[-1])
            grad_products_N.append(grad_product_N)
            if grad_rows_ND is None:
                grad_rows_ND = mm(grad_product_N, matrix)
            else:
                grad_rows_ND = addmm(grad_rows_ND, grad_product_N, matrix)
        assert grad_rows_ND is not None, "some output has a gradient"
        grads = iter(weight_gradients(rows_ND, *grad_products_N))
        grad_x, grad_weight = native.rms_norm_backward(grad_rows_ND.contiguous(), x, weight_D, factor_N, None)
        return (
            grad_x,
            grad_weight,
            *(None if grad_product is None else next(grads) for grad_product in grad_products),
        )


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
        grad_down = mm(slope_ND.t(), product_NF)
        grad_both_NE = native.swiglu_backward(mm(slope_ND, down_DF), both_NE)
        grad_gate, grad_up = weight_gradients(normed_ND, grad_both_NE)[0].chunk(2)
        grad_normed_ND = mm(grad_both_NE, both_ED)
        grad_x_ND, grad_norm = native.rms_norm_backward(grad_normed_ND, x_ND, weight_D, factor_N, slope_ND)
        grad_x = grad_x_ND.view(slope.shape)
        grad_read = mm(grad_x_ND, output).view(*slope.shape[:-1], -1)
        grad_output = mm(grad_x_ND.t(), read_N)
        return grad_x, grad_read, grad_output, grad_norm, grad_gate, grad_up, grad_down


class NLL(torch.autograd.Function):
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
        hidden_ND, weight_VD, logits_NV, targets_N, normalizers = ctx.saved_tensors
        grad_logits_NV = native.nll_backward(slope_N.contiguous(), logits_NV, targets_N, normalizers)
        [grad_weight_VD] = weight_gradients(hidden_ND, grad_logits_NV)
        return mm(grad_logits_NV, weight_VD), grad_weight_VD, None
