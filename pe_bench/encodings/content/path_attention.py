r"""PaTH: z_ij = q_i^T H_i H_{i-1} .. H_{j+1} k_j / sqrt(K), H_t = I - beta_t w_t w_t^T read from token t.

Each head of each layer has its w_t = silu(conv(U D x))_t, divided by its norm, of the layer's input x: D maps
it to `rank` numbers, U to the K features of each head, and conv mixes each feature of the last three tokens.
beta_t = 2 sigmoid(b_h . x_t + c_h), so that H_t can reflect. Products of this kind replace the rotations of
RoPE.

$z_{ij} = \frac{q_i^\top H_i H_{i-1} \cdots H_{j+1} k_j}{\sqrt{K}}, \quad H_t = I - \beta_t w_t w_t^\top$

Past the training length: defined; what lies between two tokens counts, and no position.

Yang et al. 2025, "PaTH Attention: Position Encoding via Accumulating Householder Transformations",
arXiv:2505.16381; w, beta and the order of the products as in flash-linear-attention, `layers/path_attn.py`.

There heads that share a key share w and beta; here each head has its own. Matrices are N(0, 1/width) at first
as all linear layers here, conv is uniform within 1 / sqrt(3) and c is 0. It runs on the reference path, over
chunks of keys.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, Side, full_precision
from pe_bench.encodings.initial import random_matrix, random_taps

DIRECTION, STRENGTH = "path_direction", "path_strength"
CONVOLUTION_TAPS = 3
KEYS_PER_CHUNK = 64  # keys
NORM_EPSILON = 1e-6


class Path(LayerEncoding):
    """Options:

    rank: of the map from the layer's input to the directions of the reflections
    """

    per_layer = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, rank: AtLeast1 = 32):
        super().__init__()
        self.n_heads = n_heads
        self.down = random_matrix(rank, d_model)
        self.up = random_matrix(n_heads * d_head, rank)
        self.conv = random_taps(n_heads * d_head, CONVOLUTION_TAPS)
        self.weight = random_matrix(n_heads, d_model)
        self.intercept = nn.Parameter(torch.zeros(n_heads))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        # Products over thousands of tokens: never in half precision, not even where a model is autocast.
        with full_precision(x):
            x = x.to(self.weight.dtype)
            compressed = nn.functional.linear(x, self.down)
            mapped = nn.functional.linear(compressed, self.up).mT
            before = nn.functional.pad(mapped, (CONVOLUTION_TAPS - 1, 0))
            mixed = nn.functional.conv1d(before, self.conv.unsqueeze(1), groups=len(self.conv))
            activated = nn.functional.silu(mixed)
            direction = activated.unflatten(1, (self.n_heads, -1))  # [B, H, K, T]
            square = direction.square().sum(-2, keepdim=True)
            norm = (square + NORM_EPSILON).sqrt()
            gate = nn.functional.linear(x, self.weight, self.intercept)
            strength = 2 * gate.sigmoid().mT  # [B, H, T]
            return {DIRECTION: direction / norm, STRENGTH: strength}

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        """Compute the scores in chunks of keys, the last chunk first, and apply each chunk to the queries.

        With u^T the query after all later tokens, H_t takes c_t = beta_t w_t . (u - sum_{s > t} c_s w_s) from
        it along w_t, which is a triangular system. Then z_j = u . k_j - sum_{s > j} c_s w_s . k_j, and the
        query u - sum_s c_s w_s goes on to the earlier chunk. H_t of a token after the query is the identity:
        c_t = 0.
        """
        directions = keys.values[DIRECTION].mT  # [B, H, N, K]
        dtype = torch.promote_types(queries.x.dtype, directions.dtype)
        u = queries.x.to(dtype)
        scores: list[Tensor] = []
        for stop in range(keys.x.shape[-2], 0, -KEYS_PER_CHUNK):
            chunk = slice(max(0, stop - KEYS_PER_CHUNK), stop)
            w = directions[..., chunk, :].to(dtype)
            k = keys.x[..., chunk, :].to(dtype)
            beta = keys.values[STRENGTH][..., chunk].unsqueeze(-2).to(dtype)
            passed = keys.index[chunk] <= queries.index.unsqueeze(-1)
            eye = torch.eye(w.shape[-2], dtype=dtype, device=w.device)
            system = (w @ w.mT * beta).tril(-1) + eye
            right_side = (u @ w.mT * beta).masked_fill(~passed, 0)
            taken = torch.linalg.solve_triangular(
                system, right_side, upper=False, left=False, unitriangular=True
            )
            corrections = taken @ (w @ k.mT).tril(-1)
            scores.append(u @ k.mT - corrections)
            u = u - taken @ w
        scores.reverse()
        return scale * torch.cat(scores, -1)
