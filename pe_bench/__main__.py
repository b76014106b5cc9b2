"""`python -m pe_bench` is `pe-bench`."""

from pe_bench.cli.program import main

main()
