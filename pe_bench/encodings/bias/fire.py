r"""FIRE: b(i, j) = f(psi(i - j) / (psi(max(threshold |m|, i)) + 1e-6)), psi(x) = ln(|c| x + 1).

f is a network with one hidden layer of ReLUs, from one number to one for each head. c is initially 0.1
and m is 1; every layer learns its own f, c and m. A query within threshold |m| reads distances; one
beyond it reads them as fractions of its own position i, the first being 0.

$b(i, j) = f \left( \frac{\psi(i - j)}{\psi(\max(\text{threshold} \cdot |m|,\, i)) + 10^{-6}} \right), \quad
\psi(x) = \ln(|c|\, x + 1)$

Past the training length: defined; fractions stay between 0 and 1, however long the text.

Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context Transformers",
ICLR, arXiv:2310.04418, and the listing in its appendix.

The weights of f have PyTorch's initial values, as there. The listing's threshold is 512, with which a model
trained at fewer tokens would never see a fraction of its text. Ours is an eighth of the training length,
as in the released code of DAPE.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, Side, batch_first, full_precision

# Keeps a fraction of 0 from being 0 / 0.
ADDED_TO_DENOMINATOR = 1e-6
# Pairs of a query and a key computed at a time on a CPU; the hidden layers of more pairs overflow its caches.
PAIRS_AT_ONCE = 8_192


class FIRE(LayerEncoding):
    """Options:

    threshold: up to this position, times a learned factor, distances are not interpolated
    d_hidden: width of the hidden layer of f
    """

    claims = frozenset({"prefix_consistent"})
    per_layer = True
    inert = frozenset({"output.bias"})  # one number more for all keys of a query

    def __init__(self, n_heads: int, threshold: AtLeast1, d_hidden: AtLeast1 = 32):
        super().__init__()
        self.threshold = threshold
        self.hidden = nn.Linear(1, d_hidden)
        self.output = nn.Linear(d_hidden, n_heads)
        self.c = nn.Parameter(torch.tensor(0.1))
        self.m = nn.Parameter(torch.tensor(1.0))

    def bias(self, queries: Side, keys: Side) -> Tensor:
        # The fractions of neighbours are one number in half precision, even where a model is autocast.
        with full_precision(queries.position):
            fraction = self.fractions(queries.position, keys.position)
            size = PAIRS_AT_ONCE if fraction.device.type == "cpu" else fraction.numel()
            pairs = [self._network(pairs) for pairs in fraction.flatten().split(size)]
            bias = torch.cat(pairs, -1)
        return batch_first(bias.unflatten(-1, fraction.shape))

    def _network(self, fraction: Tensor) -> Tensor:
        """Return each head's bias [H, n] for fractions of the distance [n]: f in the module's equation."""
        hidden_bias = self.hidden.bias.unsqueeze(-1)
        hidden = torch.addcmul(hidden_bias, self.hidden.weight, fraction).relu()
        output_bias = self.output.bias.unsqueeze(-1)
        return torch.addmm(output_bias, self.output.weight, hidden)

    def fractions(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        """Return the argument of f, [Q, N] or [B, 1, Q, N]; 0 for keys after the query."""
        i = query_position.to(self.c.dtype)
        j = key_position.to(self.c.dtype)
        # Clamped before the logarithm: not even a masked entry may have a gradient that is not a number.
        distance = (i.unsqueeze(-1) - j.unsqueeze(-2)).clamp(min=0)
        learned_threshold = self.threshold * self.m.abs()
        normaliser = torch.maximum(i, learned_threshold).unsqueeze(-1)
        return self._psi(distance) / (self._psi(normaliser) + ADDED_TO_DENOMINATOR)

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log1p(self.c.abs() * x)
