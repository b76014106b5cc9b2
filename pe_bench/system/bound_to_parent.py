"""Bind the process that imports this, the forkserver, to its parent."""

from pe_bench.system.processes import end_with_parent

end_with_parent()
