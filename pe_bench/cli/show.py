"""The `show` command: the manual page of each encoding, and a picture of them."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pe_bench.errors import require
from pe_bench.inspection.resolve import ResolvedEncoding, resolve
from pe_bench.system.terminal import say, width_of, write_out


def show_encodings(
    arguments: Sequence[str] | None, plot: Path | None, config_dir: Sequence[Path] | None
) -> None:
    """Print the page of each encoding among `arguments`, or of a task, and draw encodings into `plot`.

    Raises `UserError` for arguments and files that cannot be, before anything is printed.
    """
    arguments, search = arguments or [], config_dir or []
    if any(map(_names_task, arguments)):
        from pe_bench.inspection.show.page import task_page

        require(plot is None, "a task has no picture: leave --plot out")
        write_out(task_page(arguments, search, width_of(sys.stdout)))
        return
    if plot is not None:
        from pe_bench.cli.outputs import Outputs, check_outputs

        check_outputs(Outputs(plot=plot))
    found = resolve(arguments, search)
    from pe_bench.inspection.show.page import page

    # All pages and the picture first: what cannot be drawn is refused before anything is printed.
    width = width_of(sys.stdout)
    pages = [page(subject, width, must_be_built=plot is not None) for subject in found]
    if plot is not None:
        _draw(found, plot)
    write_out("\n\n".join(pages))
    if plot is not None:
        say(f"wrote {plot}")


def _names_task(argument: str) -> bool:
    return re.match(r"\+*task[.=]", argument) is not None


def _draw(found: Sequence[ResolvedEncoding], plot: Path) -> None:
    from pe_bench.inspection.show.picture import draw_subjects
    from pe_bench.model.checks import user_code_errors

    with user_code_errors(*(subject.encoding for subject in found)):
        draw_subjects(found, plot)
