"""app.py declares all commands and options; one file per command does the work."""

from pe_bench.cli.program import main

__all__ = ["main"]
