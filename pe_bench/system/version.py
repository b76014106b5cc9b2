"""The version of pe-bench that runs."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


@cache
def own_version(checkout: Path = CHECKOUT) -> str:
    """Return the version of the installed package, or of a checkout from which pe-bench runs uninstalled."""
    try:
        return version("pe-bench")
    except PackageNotFoundError:
        project = (checkout / "pyproject.toml").read_text(encoding="utf-8")
        stated = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
        assert stated, "pyproject.toml states the version"
        return stated[1]
