"""The `extend` command: its table, and its picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_bench import api
from pe_bench.errors import require
from pe_bench.plot.paper import picture_format
from pe_bench.report.columns import show
from pe_bench.runs.commands import results_option
from pe_bench.system.terminal import say


def extend(words: Sequence[str], plot: Path | None, options: dict[str, Any]) -> None:
    """Extend the runs that are named, and print the table of their family."""
    names, overrides = ([word for word in words if ("=" in word) is is_key] for is_key in (False, True))
    require(bool(names), "no run is named: say pe-bench extend rope, or the beginning of a run's name")
    results_dir = Path(options["results_dir"])
    picture = plot or results_dir / "extend.png"
    picture_format(picture)
    family = api.extend(names, overrides=overrides, **options)
    show(family.tables)
    family.plot(picture)
    say(f"wrote {picture}   details: pe-bench report{results_option(results_dir)} --all --details")
