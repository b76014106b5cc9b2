"""Bind the process that imports this, the forkserver, to its parent."""

from pe_bench.system.signals import end_with_parent

end_with_parent()
