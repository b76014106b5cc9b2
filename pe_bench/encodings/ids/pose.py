r"""Positional skip-wise training (PoSE): a window of T tokens is numbered as two chunks, with a gap between.

In training, for each sequence, the first chunk has r ~ U{1, .., (T + 1) // 2} tokens and ids 0, 1, ..;
the ids of the second go on u ~ U{0, .., max_position - T} further. So short windows show every
distance below max_position. Any encoding reads the ids; outside training they are 0, 1, 2, ..

$p' = p \text{ for } p < r, \; p + u \text{ from there on}, \quad r \sim U\{1, \dots, \lfloor (T + 1) / 2
\rfloor\}, \; u \sim U\{0, \dots, M - T\}, \; M = \text{max\_position}$

Past the training length: defined, as the encoding that reads the ids; below max_position every
distance was seen in training.

Zhu et al. 2024, "PoSE: Efficient Context Window Extension of LLMs via Positional Skip-wise Training",
ICLR, arXiv:2309.10400.

As in the second version of the authors' code, where the first chunk starts at 0. There the text of the
second chunk is also taken from further on in the document, and positions are interpolated as well, in
fine-tuning; here the text is as it stands, and a scaling of rotary positions is a choice of its own.
"""

import torch
from torch import Tensor

from pe_bench.encodings.base import AtLeast1, LengthError, PositionalEncoding


class PoSE(PositionalEncoding):
    """Options:

    max_position: ids of training lie below this
    """

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(self, max_position: AtLeast1):
        super().__init__()
        self.max_position = max_position

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        index = torch.arange(tokens.shape[-1], device=tokens.device)
        return self._with_a_gap(index, len(tokens), generator) if train else index

    def _with_a_gap(self, index: Tensor, batch: int, generator: torch.Generator | None) -> Tensor:
        """Return ids [B, T]: `index` [T], with a gap at a place and of a size drawn for each sequence.

        Raises `LengthError` for more tokens than `max_position`.
        """
        count = len(index)
        if count > self.max_position:
            raise LengthError(f"{count} tokens need a max_position of {count}, not {self.max_position}")

        def draw_integer(smallest: int, largest: int) -> Tensor:
            """Return an integer from `smallest` to `largest` for each sequence, [B, 1]."""
            device = torch.device("cpu") if generator is None else generator.device
            drawn = torch.randint(smallest, largest + 1, (batch, 1), generator=generator, device=device)
            return drawn.to(index.device)

        first = draw_integer(1, (count + 1) // 2)
        gap = draw_integer(0, self.max_position - count)
        return index + gap * (index >= first)
