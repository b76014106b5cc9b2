r"""Bilevel positions (BiPE): where a token stands in its segment, and the number of the segment.

A segment ends with a separator. Any encoding reads the number of the segment as its position; a learned
row, I_m for place m in the segment, is added to the embeddings. I is [max_position, D], drawn from
N(0, 0.02^2); places beyond it share its last row. Separators are all tokens whose text ends with one
of `separators`: a token of several characters is never split, and one such as '. ', with a space at
the end, is no separator unless it is named. Without separators I is a clamped table, and all tokens
have one position.

$p'_t = \#\{ u < t : u \in S \}, \quad x_t \mapsto x_t + I_{m_t}, \quad m_t = t - \max( \{ 0 \} \cup \{ u \le
t : u - 1 \in S \} ), \quad S = \text{places of separators}$

Past the training length: defined; segments are as long as in training, and only their number grows:
the encoding that reads the number must handle larger numbers.

He et al. 2024, "Two Stones Hit One Bird: Bilevel Positional Encoding for Better Length
Extrapolation", ICML, arXiv:2401.16421.

The authors' code has the separators '.' and line end as two ids of Llama's tokenizer, and 1,024 rows.
With ALiBi they make the slopes 96 times as steep, for segment numbers grow slowly; here that is
`encoding=alibi modifier=[bipe] encoding.slope_scale=96`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import NO_VOCABULARY, AtLeast1, PositionalEncoding
from pe_bench.errors import require

SEPARATORS = [".", "\n"]


class BiPE(PositionalEncoding):
    """Options:

    max_position: rows for places in a segment; later ones share the last
    separators: a token whose text ends with one of them ends a segment
    """

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    is_separator: Tensor | None  # [V]

    def __init__(self, d_model: int, max_position: AtLeast1, separators: list[str] = SEPARATORS):
        super().__init__()
        require("" not in separators, f"a separator has at least 1 character, not 0 as in {separators}")
        self.separators = tuple(separators)
        self.register_buffer("is_separator", None, persistent=False)
        self.table = nn.Parameter(0.02 * torch.randn(max_position, d_model))

    def read_vocabulary(self, texts: Sequence[str]) -> None:
        if not texts:
            return
        self.is_separator = torch.tensor([text.endswith(self.separators) for text in texts])
        ends = f"none of {len(texts)} tokens ends with one of separators={list(self.separators)}"
        is_any = not self.separators or bool(self.is_separator.any())
        require(is_any, f"{ends}: name others that stand in the vocabulary")

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        return self._starts(tokens).cumsum(-1)

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        index = torch.arange(tokens.shape[-1], device=tokens.device)
        start = (index * self._starts(tokens)).cummax(-1).values
        last_row = len(self.table) - 1
        place = (index - start).clamp(max=last_row)
        return x + self.table[place].to(x.dtype)

    def _starts(self, tokens: Tensor) -> Tensor:
        """Return 1 for each token [B, T] that begins a segment after a separator, 0 for the others.

        Raises `UserError` without a vocabulary.
        """
        require(self.is_separator is not None, NO_VOCABULARY)
        assert self.is_separator is not None
        first = torch.zeros_like(tokens[:, :1])
        after_separator = self.is_separator[tokens[:, :-1]]
        return torch.cat([first, after_separator], -1)
