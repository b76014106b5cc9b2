"""The files that `report` writes, checked before any work is done."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.errors import UserError
from pe_bench.report.charts.curves import PlotValues
from pe_bench.report.columns import to_latex, to_markdown
from pe_bench.report.export import to_csv
from pe_bench.report.records import Table

STANDARD_OUTPUT = Path("-")
TEXTS = ("--csv", "--markdown", "--latex")


@dataclass(frozen=True)
class Outputs:
    """Files to write beside the table that is printed; `-` prints text in its place."""

    csv: Path | None = None
    markdown: Path | None = None
    latex: Path | None = None
    html: Path | None = None
    plot: Path | None = None
    view: PlotValues = "levels"  # of the pictures

    @property
    def files(self) -> dict[str, Path]:
        """Return the files by the option that names them."""
        return {option: path for option, path in self._given.items() if path != STANDARD_OUTPUT}

    @property
    def printed(self) -> list[str]:
        """Return the options that print in place of the table."""
        return [option for option, path in self._given.items() if path == STANDARD_OUTPUT]

    @property
    def _given(self) -> dict[str, Path]:
        return {f"--{name}": path for name, path in vars(self).items() if isinstance(path, Path)}


def check_outputs(outputs: Outputs) -> None:
    """Raises `UserError` for a target that cannot be written, with the way out."""
    for option in outputs.printed:
        if option not in TEXTS:
            raise UserError(f"{option} - would print something other than text: name a file")
    if len(outputs.printed) > 1:
        options = " and ".join(f"{option} -" for option in outputs.printed)
        raise UserError(f"{options} all print instead of the table: choose one of them")
    taken: dict[Path, str] = {}
    for option, path in outputs.files.items():
        _require_writable(option, path)
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UserError(f"{other} and {option} both name {path}: name a file for each")
    if outputs.plot is not None:
        from pe_bench.plot.paper import picture_format

        picture_format(outputs.plot)


def text_of(option: str, tables: Sequence[Table], details: bool) -> str:
    """Return what an option of `TEXTS` writes; the numbers of CSV are the same with and without details."""
    if option == "--markdown":
        return to_markdown(tables, details=details)
    if option == "--latex":
        return to_latex(tables, details=details)
    return to_csv(tables)


def _require_writable(option: str, path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"{option} {path}: there is no folder {folder}; make it, or name a file elsewhere")
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise UserError(f"{option} {path} is not a regular file: name one that may be replaced")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(f"{option} {path} cannot be written (no permission): name a file elsewhere")
