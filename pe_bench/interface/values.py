"""Values of other libraries as the configuration has them."""

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from pe_bench.errors import require


def plain(value: Any) -> Any:
    """Return a value as YAML has it: paths as text, numbers and arrays of NumPy as Python's.

    Raise `UserError` for what is neither a text, a number nor a list of these.
    """
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    is_list = isinstance(value, Iterable) and not isinstance(value, Mapping | bytes)
    require(is_list, f"{value!r} is no value of a key: give a text, a number or a list")
    return [plain(inner) for inner in value]
