"""pe-bench: train short, test long. A runner for length-extrapolation experiments.

From Python: `train`, `evaluate`, `probe` and `results` do what the commands do, and raise `UserError` and
`RunError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_bench.errors import RunError, UserError
    from pe_bench.interface.evaluate import evaluate
    from pe_bench.interface.probe import probe
    from pe_bench.interface.results import results
    from pe_bench.interface.train import train

__all__ = ["RunError", "UserError", "evaluate", "probe", "results", "train"]

# Imported at their first use: PyTorch takes seconds, and `pe-bench --help` needs none of it.
_MODULES = {
    "RunError": "pe_bench.errors",
    "UserError": "pe_bench.errors",
    "evaluate": "pe_bench.interface.evaluate",
    "probe": "pe_bench.interface.probe",
    "results": "pe_bench.interface.results",
    "train": "pe_bench.interface.train",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
