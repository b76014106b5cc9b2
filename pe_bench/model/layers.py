"""The layers of the decoder and its loss, in plain PyTorch.

`accelerate.py` has faster forms of these classes with the same results.

Letters: B batch, T tokens, D model width, F width of the feedforward layer, H query heads, K head width, V
tokens of the vocabulary, N tokens of all windows.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pe_bench.config.schema import ModelConfig
from pe_bench.encodings.base import FULL_SEQUENCE_HOOKS, LayerEncoding
from pe_bench.model.attention import attention

NORM_EPSILON = 1e-5  # the epsilon of every norm
MAX_LOGIT_ELEMENTS = 2**24  # the elements of the largest block of logits; 64 MB in float32


class RMSNorm(nn.RMSNorm):
    """x / rms(x), times a scale for each feature (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int):
        super().__init__(width, eps=NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        # Queries and keys are bfloat16 under autocast, and PyTorch warns if the scale has another type.
        dtype = torch.promote_types(x.dtype, self.weight.dtype)
        normed = functional.rms_norm(x.to(dtype), self.normalized_shape, self.weight.to(dtype), self.eps)
        return normed.to(x.dtype)


class Linear(nn.Linear):
    """A product with a matrix, without a bias."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)


class SelfAttention(nn.Module):
    """Causal grouped-query attention under an encoding."""

    def __init__(self, model: ModelConfig):
        super().__init__()
        self.d_head = model.d_head
        self.group = model.n_heads // model.n_kv_heads
        self.query = Linear(model.d_model, model.n_heads * model.d_head)
        self.key = Linear(model.d_model, model.n_kv_heads * model.d_head)
        self.value = Linear(model.d_model, model.n_kv_heads * model.d_head)
        self.output = Linear(model.n_heads * model.d_head, model.d_model)
        # Norms of each head, with scales that heads share, as in Qwen3 and Gemma 3.
        self.query_norm = RMSNorm(model.d_head) if model.qk_norm else None
        self.key_norm = RMSNorm(model.d_head) if model.qk_norm else None

    def forward(
        self, x_BTD: Tensor, encoding: LayerEncoding, ids: Tensor, window: int | None, first: int = 0
    ) -> Tensor:
        """Return the output for the tokens from `first` on, [B, T - first, D]; x is normed."""
        start = 0 if encoding.overrides(*FULL_SEQUENCE_HOOKS) else first
        queries = self.query(x_BTD[:, start:] if start else x_BTD)
        read = self.read(x_BTD, queries, self.key(x_BTD), self.value(x_BTD), encoding, ids, window)
        return self.output(read[:, first - start :] if first > start else read)

    def read(
        self,
        x_BTD: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        encoding: LayerEncoding,
        ids: Tensor,
        window: int | None,
    ) -> Tensor:
        """Return the output of attention for each query, [B, queries, H K].

        x_BTD: the normed input. queries, keys, values: the projections of x; queries are of its last
        tokens. ids, window: as `position` and `window` of `attention`.
        """
        q_BHTK, k_BHTK, v_BHTK = self.heads(queries, keys, values)
        read_BHTK = attention(encoding, x_BTD, q_BHTK, k_BHTK, v_BHTK, ids, window)
        return read_BHTK.transpose(1, 2).flatten(2)

    def heads(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the projections into heads [B, H, T, K], normed if the model norms queries and keys.

        Keys and values are repeated for all query heads that share them.
        """
        q_BHTK = self._split_heads(queries)
        k_BHTK = self._split_heads(keys)
        v_BHTK = self._split_heads(values)
        if self.query_norm is not None and self.key_norm is not None:
            q_BHTK = self.query_norm(q_BHTK)
            k_BHTK = self.key_norm(k_BHTK)
        if self.group > 1:  # encodings have parameters for every query head
            k_BHTK = k_BHTK.repeat_interleave(self.group, 1)
            v_BHTK = v_BHTK.repeat_interleave(self.group, 1)
        return q_BHTK, k_BHTK, v_BHTK

    def _split_heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.d_head)).transpose(1, 2)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, model: ModelConfig):
        super().__init__()
        self.gate = Linear(model.d_model, model.d_ff)
        self.up = Linear(model.d_model, model.d_ff)
        self.down = Linear(model.d_ff, model.d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nn.Module):
    """Attention and a feedforward layer, each applied to the norm of its input and added to the input."""

    def __init__(self, model: ModelConfig):
        super().__init__()
        self.attention_norm = RMSNorm(model.d_model)
        self.attention = SelfAttention(model)
        self.feedforward_norm = RMSNorm(model.d_model)
        self.feedforward = SwiGLU(model)

    def forward(
        self, x_BTD: Tensor, encoding: LayerEncoding, ids: Tensor, window: int | None, first: int = 0
    ) -> Tensor:
        """Return the output for the tokens from `first` on, [B, T - first, D]."""
        normed_BTD = self.attention_norm(x_BTD)
        x_BTD = self.attention(normed_BTD, encoding, ids, window, first) + x_BTD[:, first:]
        return x_BTD + self.feedforward(self.feedforward_norm(x_BTD))


class TokenLoss(nn.Module):
    """The negative log-likelihood of next tokens, in chunks: logits of all tokens never exist at once."""

    def forward(
        self, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, has_loss_N: Tensor | None = None
    ) -> Tensor:
        """Return the negative log-likelihood of each target with a loss in nats, float32 [N or fewer].

        has_loss_N: true for the targets with a loss; None: all. With gradients and several chunks,
        each chunk's logits are computed again in the backward pass, not kept.
        """
        if has_loss_N is not None:
            hidden_ND = hidden_ND[has_loss_N]
            targets_N = targets_N[has_loss_N]
        rows = max(1, MAX_LOGIT_ELEMENTS // weight_VD.shape[0])
        chunks = zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
        recomputes = len(targets_N) > rows and torch.is_grad_enabled()
        nll_of_chunks: list[Tensor] = []
        for hidden, targets in chunks:
            chunk = (hidden, weight_VD, targets)
            if recomputes:
                nll_of_chunks.append(cast(Tensor, checkpoint(self.chunk_nll, *chunk, use_reentrant=False)))
            else:
                nll_of_chunks.append(self.chunk_nll(*chunk))
        return torch.cat(nll_of_chunks)

    def chunk_nll(self, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target of a chunk in nats, float32 [N]."""
        logits_NV = functional.linear(hidden_ND, weight_VD)
        return functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
