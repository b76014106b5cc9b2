"""The report as one page that needs nothing else: no network, no other file, no other program."""

from pe_bench.html.page import to_html

__all__ = ["to_html"]
