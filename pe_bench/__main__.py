"""`python -m pe_bench` is `pe-bench`."""

from pe_bench.cli import main

main()
