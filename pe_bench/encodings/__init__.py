"""Positional encodings: the variable under study. One idea, one file."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding, Side

__all__ = ["LayerEncoding", "LengthError", "PositionalEncoding", "Side"]


def __getattr__(name: str) -> Any:
    """Import a public class, and PyTorch with it, at its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'pe_bench.encodings' has no attribute '{name}'")
    from pe_bench.encodings import base

    return getattr(base, name)
