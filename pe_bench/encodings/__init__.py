"""Positional encodings: the variable under study. One idea, one file."""

from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding, Side

__all__ = ["LayerEncoding", "LengthError", "PositionalEncoding", "Side"]
