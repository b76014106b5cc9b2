"""The commands, one file each; shell completion; suggestions for a mistyped line."""

from pe_bench.cli.program import main

__all__ = ["main"]
