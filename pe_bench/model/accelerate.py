"""Faster forms of the decoder's layers, with the results of `layers.py`; only `FASTER` registers them.

On a CPU in float32, `products.py` multiplies matrices, and compiled code (`pe_bench.native`) computes norms,
activations and losses between the products, with gradients written by hand. In training under autocast to
bfloat16, only blocks do so, for the norms of their inputs and for SwiGLU. On a GPU with gradients, PyTorch's
compiler fuses the operations between the products. In all other cases (other types, scoring under autocast,
no compiler) these classes call the plain layers.

Letters: B batch, T tokens, D model width, F width of the feedforward layer, E = 2 F, V tokens of the
vocabulary, N tokens of all windows.
"""

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.layers import NORM_EPSILON, Block, Linear, RMSNorm, SwiGLU, TokenLoss
from pe_bench.model.products import addmm, linear, mm, weight_gradients
from pe_bench.native import layers as native
from pe_bench.native.inductor import fused_on_gpu, is_training_on_gpu

# Tokens of each sequence in one call of a feedforward layer, without gradients.
FEEDFORWARD_TOKENS = 4_096

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model) -> Model:
    """Give the layers of a model their faster forms, in place, and return the model.

    Parameters and `state_dict` stay as they are. Shard a model afterwards, because sharding changes the
    classes of blocks.
    """
    for module in model.modules():
        module.__class__ = FASTER.get(type(module), type(module))
    return model


def is_native(x: Tensor, *more: Tensor) -> bool:
    """Return true if compiled code can handle these tensors; false under autocast."""
    return not torch.is_autocast_enabled("cpu") and is_supported(x, *more)


def trains_natively(x: Tensor, *weights: Tensor) -> bool:
    """Return true if compiled code can train a block with these tensors, also under autocast to bfloat16."""
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    return torch.is_grad_enabled() and is_supported(x, *weights)


def is_supported(x: Tensor, *more: Tensor) -> bool:
    """Return true for float32 tensors on the CPU if there is compiled code for them."""
    if any(tensor.dtype != torch.float32 for tensor in (x, *more)):
        return False
    return x.device.type == "cpu" and x.numel() > 0 and native.kernel().library is not None


def operand_type() -> torch.dtype:
    """Return the type of the operands of products on the CPU: float32, or that of autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


# Layers


class FastRMSNorm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not is_native(x, self.weight):
            return super().forward(x)
        if not torch.is_grad_enabled():
            return native.rms_norm(x.contiguous(), self.weight, NORM_EPSILON)[0]
        return cast(tuple[Tensor], NormedProjections.apply(x, self.weight))[0]


class FastLinear(Linear):
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled() or not is_native(x, self.weight):
            return super().forward(x)
        return linear(x, self.weight)


class FastSwiGLU(SwiGLU):
    """SwiGLU, computed without gradients in parts of `FEEDFORWARD_TOKENS` tokens, to save memory."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().forward(x_BTD)
        parts = x_BTD.split(FEEDFORWARD_TOKENS, 1)
        return torch.cat([self._forward_part(part) for part in parts], 1)

    def _forward_part(self, x_BTD: Tensor) -> Tensor:
        if not is_native(x_BTD, self.gate.weight, self.up.weight):
            return super().forward(x_BTD)
        both_ED = torch.cat([self.gate.weight, self.up.weight])
        return self.down(native.swiglu(linear(x_BTD, both_ED)))


class FastBlock(Block):
    """A block that training computes with two fused functions, one before and one after its attention."""

    def forward(
        self, x_BTD: Tensor, encoding: LayerEncoding, ids: Tensor, window: int | None, first: int = 0
    ) -> Tensor:
        attention = self.attention
        before = (self.attention_norm, attention.query, attention.key, attention.value)
        weights = [layer.weight for layer in before]
        is_fused = is_training_on_gpu(x_BTD)
        can_accelerate = first == 0 and torch.is_grad_enabled()
        if not can_accelerate or not (is_fused or trains_natively(x_BTD, *weights)):
            return super().forward(x_BTD, encoding, ids, window, first)
        project = project_fused if is_fused else NormedProjections.apply
        projected = cast(tuple[Tensor, ...], project(x_BTD, *weights))
        normed_BTD, queries, keys, values = projected
        read = attention.read(normed_BTD, queries, keys, values, encoding, ids, window)
        ffn = self.feedforward
        after = (attention.output, self.feedforward_norm, ffn.gate, ffn.up, ffn.down)
        weights = [layer.weight for layer in after]
        if is_fused:
            return finish_block_fused(x_BTD, read, *weights)
        if trains_natively(x_BTD, *weights) and read.dtype == operand_type():
            return cast(Tensor, AfterAttention.apply(x_BTD, read, *weights))
        x_BTD = x_BTD + attention.output(read)
        return x_BTD + ffn(self.feedforward_norm(x_BTD))


class FastTokenLoss(TokenLoss):
    def chunk_nll(self, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        if is_training_on_gpu(hidden_ND):
            return nll_fused(hidden_ND, weight_VD, targets_N)
        if not is_native(hidden_ND, weight_VD) or targets_N.dtype != torch.int64:
            return super().chunk_nll(hidden_ND, weight_VD, targets_N)
        return cast(Tensor, NegativeLogLikelihood.apply(hidden_ND, weight_VD, targets_N.contiguous()))


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
    """Return x after RMSNorm, and the product of this normed x with each of the matrices [*, D].

    norm_D: the scale of the norm.
    """
    normed_BTD = functional.rms_norm(x_BTD, norm_D.shape, norm_D, NORM_EPSILON)
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
    """Return the output of a block from its input and its attention.

    read: the heads' output, before the matrix `output`. norm_D: the scale of the norm.
    """
    x_BTD = functional.linear(read, output) + x_BTD
    normed_BTD = functional.rms_norm(x_BTD, norm_D.shape, norm_D, NORM_EPSILON)
    gate_BTF = functional.silu(functional.linear(normed_BTD, gate_FD))
    up_BTF = functional.linear(normed_BTD, up_FD)
    return x_BTD + functional.linear(gate_BTF * up_BTF, down_DF)


@fused_on_gpu
def nll_fused(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the negative log-likelihood of each target in nats, float32 [N]."""
    logits_NV = functional.linear(hidden_ND, weight_VD)
    return functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")


# Functions with hand-written gradients


class NormedProjections(torch.autograd.Function):
    """RMSNorm of x with the scale `weight_D`, and the products of the normed x with matrices [*, D].

    The normed x is float32; the products have the type of their operands (`operand_type`).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
        x = x.contiguous()
        normed, factor_N = native.rms_norm(x, weight_D, NORM_EPSILON)
        operand = normed.to(operand_type())
        operand_matrices = [matrix.to(operand.dtype) for matrix in matrices]
        ctx.save_for_backward(x, weight_D, operand, factor_N, *operand_matrices)
        ctx.set_materialize_grads(False)
        return normed, *(linear(operand, matrix) for matrix in operand_matrices)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_normed: Tensor | None, *grad_products: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight_D, operand, factor_N, *matrices = ctx.saved_tensors
        rows_ND = operand.flatten(0, -2)
        grad_rows_ND = None if grad_normed is None else grad_normed.reshape(rows_ND.shape)
        grad_products_N = []  # the gradients of the products that have one
        for matrix, grad_product in zip(matrices, grad_products, strict=True):
            if grad_product is None:
                continue
            grad_product_N = grad_product.reshape(-1, grad_product.shape[-1])
            grad_products_N.append(grad_product_N)
            if grad_rows_ND is None:
                grad_rows_ND = mm(grad_product_N, matrix).float()
            else:
                grad_rows_ND = addmm(grad_rows_ND, grad_product_N, matrix)
        assert grad_rows_ND is not None, "some output has a gradient"
        grads = iter(weight_gradients(rows_ND, *grad_products_N))
        grad_x, grad_weight = native.rms_norm_backward(grad_rows_ND.contiguous(), x, weight_D, factor_N, None)
        grad_matrices = [None if grad_product is None else next(grads) for grad_product in grad_products]
        return grad_x, grad_weight, *grad_matrices


class AfterAttention(torch.autograd.Function):
    """The rest of a block after attention: y + down(swiglu(norm(y))) with y = x + output(read).

    x and the result are float32. read has the type of the operands of products (`operand_type`).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, read: Tensor, output: Tensor, weight_D: Tensor, *matrices: Tensor
    ) -> Tensor:
        gate_FD, up_FD, down_DF = matrices
        dtype = read.dtype
        read_N = read.reshape(-1, read.shape[-1])
        output = output.to(dtype)
        down_DF = down_DF.to(dtype)
        x_ND = addmm(x.reshape(-1, x.shape[-1]), read_N, output.t())
        normed_ND, factor_N = native.rms_norm(x_ND, weight_D, NORM_EPSILON)
        operand_ND = normed_ND.to(dtype)
        both_ED = gate_FD.new_empty(2 * len(gate_FD), gate_FD.shape[1], dtype=dtype)
        torch.cat([gate_FD, up_FD], out=both_ED)  # one product is faster than two
        both_NE = linear(operand_ND, both_ED)
        product_NF = native.swiglu(both_NE)
        ctx.save_for_backward(
            read_N, output, x_ND, weight_D, operand_ND, factor_N, both_NE, product_NF, both_ED, down_DF
        )
        return addmm(x_ND, product_NF, down_DF.t()).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (read_N, output, x_ND, weight_D, operand_ND, factor_N, both_NE, product_NF, both_ED, down_DF) = (
            ctx.saved_tensors
        )
        dtype = read_N.dtype
        grad_ND = grad_out.reshape(x_ND.shape).contiguous()
        grad_operand_ND = grad_ND.to(dtype)
        grad_down = mm(grad_operand_ND.t(), product_NF).float()
        grad_both_NE = native.swiglu_backward(mm(grad_operand_ND, down_DF), both_NE)
        grad_gate, grad_up = weight_gradients(operand_ND, grad_both_NE)[0].chunk(2)
        grad_normed_ND = mm(grad_both_NE, both_ED).float()
        grad_x_ND, grad_norm = native.rms_norm_backward(grad_normed_ND, x_ND, weight_D, factor_N, grad_ND)
        grad_x = grad_x_ND.view(grad_out.shape)
        grad_sum_ND = grad_x_ND.to(dtype)
        grad_read = mm(grad_sum_ND, output).view(*grad_out.shape[:-1], -1)
        grad_output = mm(grad_sum_ND.t(), read_N).float()
        return grad_x, grad_read, grad_output, grad_norm, grad_gate, grad_up, grad_down


class NegativeLogLikelihood(torch.autograd.Function):
    """The negative log-likelihood of each target in nats, from hidden states and the output matrix."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV = linear(hidden_ND, weight_VD)
        nll_N, normalizers = native.nll(logits_NV, targets_N)
        ctx.save_for_backward(hidden_ND, weight_VD, logits_NV, targets_N, normalizers)
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nll_N: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_ND, weight_VD, logits_NV, targets_N, normalizers = ctx.saved_tensors
        grad_logits_NV = native.nll_backward(grad_nll_N.contiguous(), logits_NV, targets_N, normalizers)
        [grad_weight_VD] = weight_gradients(hidden_ND, grad_logits_NV)
        return mm(grad_logits_NV, weight_VD), grad_weight_VD, None
