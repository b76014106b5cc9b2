"""Encodings whose whole effect on scores and values is in tables with a row for each distance."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from pe_bench.encodings.base import LayerEncoding


class Tables(NamedTuple):
    """Tables [n, K] or [H, n, K] with a row for each distance 0 to n - 1; the last row serves all beyond.

    With r_ij the row at the distance of query i and key j, of each table that is given,

        z_ij = factor * scale * (q_i . k_j + q_i . relative_keys[r_ij] + k_j . relative_queries[r_ij])
        out_i = sum_j w_ij (v_j + relative_values[r_ij])
    """

    relative_keys: Tensor | None = None
    relative_queries: Tensor | None = None
    relative_values: Tensor | None = None
    factor: float = 1.0


class Relative(LayerEncoding, ABC):
    """A relative encoding whose whole effect is in `tables`; its hooks compute the same effect."""

    @abstractmethod
    def tables(self) -> Tables:
        """Return the tables for positions 0, 1, 2, ..."""

    def has_tables(self) -> bool:
        """Return true if the class itself defines `tables`: inherited ones would ignore its other hooks."""
        return "tables" in vars(type(self))
