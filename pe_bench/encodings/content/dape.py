r"""DAPE: z = S + B + f([S; B]), where B is the bias of an inner encoding and S_ij = q_i . k_j / sqrt(K).

f reads, for each query and key, the S and the B of all heads, and gives one number for each head: a
network with one hidden layer of LeakyReLUs. So the bias depends on the content. Every layer has its own
f and its own inner encoding.

$z = S + B + f([S; B]), \quad S_{ij} = \frac{q_i \cdot k_j}{\sqrt{K}}$

Past the training length: defined, as every inner encoding; f reads biases that it was not trained on.

Zheng et al. 2024, "DAPE: Data-Adaptive Positional Encoding for Length Extrapolation", NeurIPS,
arXiv:2405.14722; the form of the authors' code, https://github.com/chuanyang-Zheng/DAPE.

The weights of f have PyTorch's initial values, as there. With FIRE inside they take LeakyReLUs for its
hidden layer too; here FIRE is unchanged. S includes the changes by modifiers, such as logn.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, Side, full_precision
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.errors import require

Inner = Literal["alibi", "kerple_log", "fire"]
# Pairs of a query and a key computed at a time on a CPU; the hidden layers of more pairs overflow its caches.
PAIRS_AT_ONCE = 2_048


class DAPE(LayerEncoding):
    """Options:

    train_length: only sets the default of threshold
    inner: the encoding whose bias f reads: alibi, kerple_log or fire
    threshold: the option of fire, for inner=fire alone; null: an eighth of train_length
    d_hidden: width of the hidden layer of f
    """

    per_layer = True
    inert = frozenset({"output.bias"})  # one number more for all keys of a query

    def __init__(
        self,
        n_heads: int,
        train_length: AtLeast1,
        inner: Inner = "kerple_log",
        threshold: AtLeast1 | None = None,
        d_hidden: AtLeast1 = 32,
    ):
        super().__init__()
        is_read = threshold is None or inner == "fire"
        require(is_read, f"encoding.threshold={threshold} is for encoding.inner=fire: leave it out")
        fire_threshold = max(1, train_length // 8) if threshold is None else threshold
        inner_encodings: dict[Inner, Callable[[], LayerEncoding]] = {
            "alibi": lambda: ALiBi(n_heads),
            "kerple_log": lambda: KerpleLog(n_heads),
            "fire": lambda: FIRE(n_heads, fire_threshold),
        }
        self.inner = inner_encodings[inner]()
        self.claims = self.inner.claims - {"decaying"}  # f may reverse it
        self.hidden = nn.Linear(2 * n_heads, d_hidden)
        self.output = nn.Linear(d_hidden, n_heads)

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        bias = self.inner.bias(queries, keys)
        assert bias is not None
        # Biases of thousands do not fit half precision, not even where a model is autocast.
        with full_precision(scores):
            both = torch.cat([scores, bias.expand_as(scores)], 1)
            pairs = both.to(self.hidden.weight.dtype).flatten(2)  # [B, 2 H, Q N]
            size = PAIRS_AT_ONCE if pairs.device.type == "cpu" else pairs.shape[-1]
            changes = [self._network(some) for some in pairs.split(size, -1)]
            change = torch.cat(changes, -1)
        return scores + bias + change.view_as(scores)

    def _network(self, pairs: Tensor) -> Tensor:
        """Return f of pairs [B, 2 H, n] for each head, [B, H, n]; numbers of one neuron are contiguous."""
        hidden = nn.functional.leaky_relu(_apply_to_features(self.hidden, pairs))
        return _apply_to_features(self.output, hidden)


def _apply_to_features(linear: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer to the features, the second axis of x [B, features, n]."""
    weight = linear.weight.expand(len(x), -1, -1)
    intercept = linear.bias.unsqueeze(-1).expand(len(x), -1, -1)
    return torch.baddbmm(intercept, weight, x)
