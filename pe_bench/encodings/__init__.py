"""Positional encodings: the variable under study. One idea, one file."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding, Side

__all__ = ["LayerEncoding", "LengthError", "PositionalEncoding", "Side"]


def __getattr__(name: str) -> Any:
    """Load what a person's own encoding is made of, and PyTorch with it, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'pe_bench.encodings' has no attribute '{name}'")
    from pe_bench.encodings import base

    return getattr(base, name)
