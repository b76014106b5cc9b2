"""All commands, in the order in which help lists them."""

from importlib import import_module

from pe_bench.cli.options import app as app

for name in ("train", "score", "report", "explain", "inspect", "list", "reproduce", "exchange", "remove"):
    import_module(f"pe_bench.cli.{name}")
