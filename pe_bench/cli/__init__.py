"""app.py declares the commands, options.py their options; one file per command does the work."""

from pe_bench.cli.program import main

__all__ = ["main"]
