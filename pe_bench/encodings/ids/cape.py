r"""Continuous augmented positions (CAPE): p' = (p + Delta + delta_p) lambda, in training only.

For each sequence Delta ~ U(-max_global_shift, max_global_shift) and
ln lambda ~ U(-ln max_scale, ln max_scale); for each token
delta_p ~ U(-max_local_shift, max_local_shift), which keeps the order up to 0.5. Outside training
positions are 0, 1, 2, .. An absolute encoding so learns to rely on differences of positions, roughly.

$p' = (p + \Delta + \delta_p)\, \lambda, \quad \Delta \sim U(-\Delta_{\max}, \Delta_{\max}), \; \delta_p \sim
U(-\delta_{\max}, \delta_{\max}), \; \ln \lambda \sim U(-\ln \lambda_{\max}, \ln \lambda_{\max})$

Past the training length: defined, as the encoding that reads the positions.

Likhomanenko et al. 2021, "CAPE: Encoding Relative Positions with Continuous Augmented Positional
Embeddings", NeurIPS, arXiv:2106.03143.

Defaults are the example values of a public implementation, https://github.com/gcambara/cape, which
draws delta from half of the range of the same name. It can also subtract the mean of the positions,
as for images; a decoder does not know the mean beforehand, and we do not. Positions may be negative.
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from pe_bench.encodings.base import Factor, NotNegative, PositionalEncoding
from pe_bench.values import Range

Half = Annotated[float, Range(0, 0.5)]  # larger shifts would change the order of tokens


class CAPE(PositionalEncoding):
    """Options:

    max_global_shift: of a sequence, in tokens, to either side
    max_local_shift: of each token, to either side; at most 0.5
    max_scale: of a sequence; its inverse is the smallest
    """

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(
        self, max_global_shift: NotNegative = 5.0, max_local_shift: Half = 0.5, max_scale: Factor = 1.03
    ):
        super().__init__()
        self.max_global_shift = max_global_shift
        self.max_local_shift = max_local_shift
        self.max_scale = max_scale

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        index = torch.arange(tokens.shape[-1], device=tokens.device)
        return self._augmented(index, len(tokens), generator) if train else index

    def _augmented(self, index: Tensor, batch: int, generator: torch.Generator | None) -> Tensor:
        """Return positions [B, T] in float32: `index` [T], shifted and scaled at random for each sequence."""

        def draw_uniform(largest: float, count: int) -> Tensor:
            """Return numbers between -`largest` and `largest`, float64 [B, count]."""
            device = torch.device("cpu") if generator is None else generator.device
            unit = torch.rand(batch, count, dtype=torch.float64, generator=generator, device=device)
            return ((2 * unit - 1) * largest).to(index.device)

        global_shift = draw_uniform(self.max_global_shift, 1)
        shift = global_shift + draw_uniform(self.max_local_shift, len(index))
        scale = draw_uniform(math.log(self.max_scale), 1).exp()
        return ((index + shift) * scale).float()
