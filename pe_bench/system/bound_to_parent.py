"""Bind the process that imports this to its parent: the one that children are copied from does."""

from pe_bench.system.processes import end_with_parent

end_with_parent()
