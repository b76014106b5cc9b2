"""pe-bench: train short, test long. A runner for length-extrapolation experiments.

From Python: `train`, `evaluate`, `explain`, `extend`, `probe`, `results`, `try_change` and `import_runs` do
what the commands do, and raise `UserError` and `RunError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_bench.api import evaluate, explain, extend, import_runs, probe, results, train, try_change
    from pe_bench.errors import RunError, UserError

__all__ = [
    "RunError",
    "UserError",
    "evaluate",
    "explain",
    "extend",
    "import_runs",
    "probe",
    "results",
    "train",
    "try_change",
]


def __getattr__(name: str) -> Any:
    """Import a call at its first use: PyTorch takes seconds, and `pe-bench --help` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pe_bench.{'errors' if name.endswith('Error') else 'api'}"), name)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
