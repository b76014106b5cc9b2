"""Tables with a row for each distance, which is all that some encodings add to scores and values."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from pe_bench.encodings.base import LayerEncoding


class Tables(NamedTuple):
    """Rows [n, K] or [H, n, K] for the distances 0 to n - 1, of which the last serves all beyond.

    With the row of the distance of query i and key j, and without what is None,

        z_ij = factor * scale * (q_i . k_j + q_i . relative_keys + k_j . relative_queries)
        out_i = sum_j w_ij (v_j + relative_values)
    """

    relative_keys: Tensor | None = None
    relative_queries: Tensor | None = None
    relative_values: Tensor | None = None
    factor: float = 1.0


class Relative(LayerEncoding, ABC):
    """A relative encoding whose whole effect is in its tables; its hooks, if it has any, compute the same."""

    @abstractmethod
    def tables(self) -> Tables:
        """Return the tables for positions that count tokens."""

    def has_tables(self) -> bool:
        """Return whether `tables` are of this very class, not of one whose other hooks it has changed."""
        return "tables" in vars(type(self))
